"""Estimates the maximum cost of an expression, before any value is known.

An API server refuses a rule whose estimate is too high, so the numbers are part of the interface:
they follow github.com/google/cel-go, checker/cost.go and ext, and k8s.io/apiserver,
pkg/cel/library/cost.go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from listwatch.cel.environment import TYPE_NAMES
from listwatch.cel.parser import qualified_name
from listwatch.cel.syntax import (
    ACCUMULATOR,
    Call,
    Comprehension,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    ObjectLiteral,
    Select,
    Visitor,
)
from listwatch.cel.types import SCALARS, Type, unwrap_optional

if TYPE_CHECKING:
    from listwatch.cel.schema_types import SchemaType

UNLIMITED = (1 << 64) - 1

PER_CHARACTER = 0.1
PER_PATTERN_CHARACTER = 0.25
LIST = 10
MAP = 30
OBJECT = 40
AUTHORIZATION_CHECK = 350_000


@dataclass(frozen=True, slots=True)
class Range:
    """Minimum and maximum of a size or cost. Saturates at 2^64 - 1."""

    least: int
    most: int

    def __add__(self, other: Range) -> Range:
        """Add both ends."""
        return Range(_bounded(self.least + other.least), _bounded(self.most + other.most))

    def __mul__(self, other: Range) -> Range:
        """Multiply both ends."""
        return Range(_bounded(self.least * other.least), _bounded(self.most * other.most))

    def times(self, factor: float) -> Range:
        """Multiply both ends by a number and round up."""
        return Range(_scaled(self.least, factor), _scaled(self.most, factor))

    def __or__(self, other: Range) -> Range:
        """Return the smallest range that contains both."""
        return Range(min(self.least, other.least), max(self.most, other.most))


def _bounded(number: int) -> int:
    return min(number, UNLIMITED)


def _scaled(number: int, factor: float) -> int:
    return _bounded(math.ceil(number * factor))


def exactly(number: int) -> Range:
    """Return the range of one number."""
    return Range(number, number)


UNKNOWN = Range(0, UNLIMITED)
ONE = exactly(1)
NONE = exactly(0)

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Entries:
    """The sizes of the keys and values of a literal list or map."""

    container: str
    key: Range
    value: Range


@dataclass(frozen=True, slots=True)
class _Local:
    path: Path
    size: Range | None
    entries: _Entries | None


def estimate(root: Node, of: SchemaType | None) -> int:
    """Return the maximum cost of a checked expression.

    `of` is the type of `self` and `oldSelf`, whose limits bound sizes; without it, the content of a
    variable may be of any size.
    """
    return _Estimator(of).cost(root).most


class _Estimator(Visitor[Range]):
    def __init__(self, of: SchemaType | None) -> None:
        super().__init__()
        self._root = of
        self._paths: dict[int, Path] = {}
        self._sizes: dict[int, Range] = {}
        self._entries: dict[int, _Entries] = {}
        self._locals: dict[str, list[_Local]] = {}

    def cost(self, node: Node) -> Range:
        return self._by_node[type(node)](node)

    def _local(self, node: Node) -> _Local | None:
        if isinstance(node, Ident):
            stack = self._locals.get(node.name)
            if stack:
                return stack[-1]
        return None

    def path(self, node: Node) -> Path:
        local = self._local(node)
        return local.path if local is not None else self._paths.get(id(node), ())

    def _literal(self, node: Literal) -> Range:  # noqa: ARG002 - a constant is free
        return NONE

    def _ident(self, node: Ident) -> Range:
        local = self._local(node)
        self._paths[id(node)] = local.path if local is not None else (node.name,)
        return ONE

    def _select(self, node: Select) -> Range:
        if node.type.kind == "type" and qualified_name(node) in TYPE_NAMES:
            self._paths[id(node)] = (node.name,)
            return ONE
        total = self.cost(node.operand)
        if node.test:
            return total
        if node.optional:
            return total + ONE
        if node.operand.type.kind in {"map", "object", "param"}:
            total += ONE
        self._paths[id(node)] = (*self.path(node.operand), node.name)
        return total

    def _list(self, node: ListLiteral) -> Range:
        total = exactly(LIST)
        item = Range(UNLIMITED if node.elements else 0, 0)
        for element in node.elements:
            total += self.cost(element)
            item |= self.size(element)
        self._entries[id(node)] = _Entries("list", ONE, item)
        return total

    def _map(self, node: MapLiteral) -> Range:
        total = exactly(MAP)
        key = value = Range(UNLIMITED if node.entries else 0, 0)
        for entry in node.entries:
            total += self.cost(entry.key) + self.cost(entry.value)
            key |= self.size(entry.key)
            value |= self.size(entry.value)
        self._entries[id(node)] = _Entries("map", key, value)
        return total

    def _object(self, node: ObjectLiteral) -> Range:
        total = exactly(OBJECT)
        for entry in node.entries:
            total += self.cost(entry.value)
        return total

    def _comprehension(self, node: Comprehension) -> Range:
        total = self.cost(node.range) + self.cost(node.initial)
        self._push(
            node.accumulator,
            _Local(
                self.path(node.initial),
                self._known_size(node.initial),
                self._known_entries(node.initial),
            ),
        )
        if node.binds:
            total += self.cost(node.result)
            self._pop(node.accumulator)
            self._copy(node, node.result)
            return total
        self._push_variables(node)
        each = self.cost(node.condition) + self.cost(node.step)
        self._pop(node.variable)
        if node.variable2:
            self._pop(node.variable2)
        total += self.cost(node.result)
        self._pop(node.accumulator)
        count = self.size(node.range)
        total += count * each
        if isinstance(node.initial, ListLiteral | MapLiteral):
            self._sizes[id(node)] = count
            entries = self._known_entries(node.step)
            if entries is not None:
                self._entries[id(node)] = entries
        else:
            self._sizes[id(node)] = ONE
        return total

    def _push_variables(self, node: Comprehension) -> None:
        entries = self._known_entries(node.range)
        container = entries.container if entries else node.range.type.kind
        path = self.path(node.range)
        keys, values = ("@indices", "@items") if container == "list" else ("@keys", "@values")
        key = _Local((*path, keys), entries.key if entries else None, None)
        value = _Local((*path, values), entries.value if entries else None, None)
        if node.variable2:
            self._push(node.variable, key)
            self._push(node.variable2, value)
        else:
            self._push(node.variable, value if container == "list" else key)

    def _push(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _pop(self, name: str) -> None:
        self._locals[name].pop()

    def _copy(self, node: Node, source: Node) -> None:
        size, entries = self._known_size(source), self._known_entries(source)
        if size is not None:
            self._sizes[id(node)] = size
        if entries is not None:
            self._entries[id(node)] = entries

    def size(self, node: Node) -> Range:
        """Return the size range of a node's value."""
        known = self._known_size(node)
        return UNKNOWN if known is None else known

    def _known_size(self, node: Node) -> Range | None:
        known = self._sizes.get(id(node))
        if known is not None:
            return known
        match node:
            case Literal():
                value = node.value
                return exactly(len(value) if isinstance(value, str | bytes) else 1)
            case ListLiteral():
                return exactly(len(node.elements))
            case MapLiteral():
                return exactly(len(node.entries))
        limit = self.limit(self.path(node))
        if limit is not None:
            self._sizes[id(node)] = limit
            return limit
        if _is_scalar(node.type):
            return ONE
        local = self._local(node)
        return local.size if local is not None else None

    def limit(self, path: Path) -> Range | None:
        """Return the limit that the schema sets for the value at a path."""
        if not path or path[0] == ACCUMULATOR or self._root is None:
            return None
        current: SchemaType | None = self._root
        for name in path[1:]:
            if current is None:
                return None
            if name in {"@items", "@values"}:
                current = current.item
            elif name == "@keys":
                current = current.key
            else:
                current = current.fields.get(name)
        return None if current is None else Range(0, current.most)

    def _known_entries(self, node: Node) -> _Entries | None:
        known = self._entries.get(id(node))
        if known is not None:
            return known
        local = self._local(node)
        return local.entries if local is not None else None

    def _call(self, node: Call) -> Range:
        if node.function == "dyn":
            total = ONE + self.cost(node.arguments[0])
            self._copy(node, node.arguments[0])
            return total
        costs = [self.cost(argument) for argument in node.arguments]
        total = NONE
        if node.target is not None:
            total += self.cost(node.target)
        call = Range(UNLIMITED, 0)
        result: Range | None = None
        for overload in node.overloads:
            cost, size = self._function(node, overload, costs)
            call |= cost
            if size is not None:
                result = size if result is None else result | size
            if overload in {"index_list", "index_map"}:
                container = node.arguments[0]
                entries = self._known_entries(container)
                result = entries.value if entries is not None else None
                step = "@items" if overload == "index_list" else "@values"
                self._paths[id(node)] = (*self.path(container), step)
            if result is None:
                result = self._known_size(node)
        if result is not None:
            self._sizes[id(node)] = result
        return total + call if node.overloads else total

    def _function(
        self, node: Call, overload: str, costs: list[Range]
    ) -> tuple[Range, Range | None]:
        arguments = NONE
        for cost in costs:
            arguments += cost
        special = self._special(node, overload, costs)
        if special is not None:
            return special
        found = self._library(node, overload) or self._core(node, overload)
        cost, size = found if found is not None else (ONE, None)
        return cost + arguments, size

    def _special(
        self, node: Call, overload: str, costs: list[Range]
    ) -> tuple[Range, Range | None] | None:
        """Handle operators that do not evaluate all their arguments."""
        if overload in {"logical_or", "logical_and"}:
            return Range(costs[0].least, (costs[0] + costs[1]).most), None
        if overload == "conditional":
            _, yes, no = node.arguments
            entries = _union(self._known_entries(yes), self._known_entries(no))
            if entries is not None:
                self._entries[id(node)] = entries
            return costs[0] + (costs[1] | costs[2]), self.size(yes) | self.size(no)
        return None

    def _core(self, node: Call, overload: str) -> tuple[Range, Range | None] | None:
        args = [self.size(argument) for argument in node.arguments]
        target = self.size(node.target) if node.target is not None else UNKNOWN
        match overload:
            case "string_format":
                return target.times(PER_CHARACTER), None
            case "string_to_bytes":
                return args[0].times(PER_CHARACTER), Range(
                    args[0].least, _bounded(args[0].most * 4)
                )
            case "bytes_to_string":
                return args[0].times(PER_CHARACTER), Range(args[0].least // 4, args[0].most)
            case "strings_quote":
                size = Range(_bounded(args[0].least + 2), _bounded(args[0].most * 2 + 2))
                return args[0].times(PER_CHARACTER), size
            case "starts_with_string" | "ends_with_string":
                return args[0].times(PER_CHARACTER), None
            case "in_list":
                return args[1], None
            case "matches_string":
                text = (target + ONE).times(PER_CHARACTER)
                return text * args[0].times(PER_PATTERN_CHARACTER), None
            case "contains_string":
                return target.times(PER_CHARACTER) * args[0].times(PER_CHARACTER), None
            case "add_string" | "add_bytes" | "add_list":
                size = args[0] + args[1]
                entries = _union(*map(self._known_entries, node.arguments))
                if entries is not None:
                    self._entries[id(node)] = entries
                return (ONE if overload == "add_list" else size.times(PER_CHARACTER)), size
        compared = overload.startswith(("less", "greater")) and overload.endswith(
            ("_string", "_bytes")
        )
        if compared or overload in {"equals", "not_equals"}:
            smaller = min(args[0].most, args[1].most)
            return Range(1 if smaller else 0, smaller).times(PER_CHARACTER), None
        return None

    def _library(self, node: Call, overload: str) -> tuple[Range, Range | None] | None:
        name = node.function
        target = node.target
        size = self.size(target) if target is not None else UNKNOWN
        args = [self.size(argument) for argument in node.arguments]
        match name:
            case "check":
                return exactly(AUTHORIZATION_CHECK), None
            case "fieldSelector" | "labelSelector":
                return _selector(args[0]), None
            case "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf":
                return self._traversal(target, size)
            case "url":
                return args[0].times(PER_CHARACTER), args[0]
            case "lowerAscii" | "upperAscii" | "substring" | "trim":
                return size.times(PER_CHARACTER), size
            case "replace":
                return size.times(2 * PER_CHARACTER), _replaced(size, args[0], args[1])
            case "split":
                return size.times(2 * PER_CHARACTER), Range(0, _split_count(node, size))
            case "join":
                joined = self._joined(target, size, args)
                return joined.times(PER_CHARACTER), joined
            case "find" | "findAll":
                text = (size + ONE).times(PER_CHARACTER)
                return text * args[0].times(PER_PATTERN_CHARACTER), Range(0, size.most)
            case "ip" if overload == "cidr_ip":
                return ONE, None
            case (
                "cidr" | "isIP" | "isCIDR" | "ip"
                | "quantity" | "isQuantity" | "semver" | "isSemver"
            ):  # fmt: skip
                return args[0].times(PER_CHARACTER), None
            case "ip.isCanonical":
                return args[0].times(2 * PER_CHARACTER), None
            case "containsIP" | "containsCIDR":
                return self._contains_address(name, overload, args[0]), None
            case "validate":
                return args[0].times(PER_CHARACTER).times(128 * PER_PATTERN_CHARACTER), None
            case "_==_" if node.arguments[0].type == node.arguments[1].type:
                return self._equality(node.arguments[0].type, args)
            case "slice" | "flatten" | "lists.range" | "reverse" | "distinct" | "sort" | "@sortBy":
                return self._list_function(name, node, size, args)
            case "sets.contains" | "sets.intersects":
                return (args[0] * args[1]) + ONE, None
            case "sets.equivalent":
                return (args[0] * args[1]).times(2) + ONE, None
        return None

    def _traversal(self, target: Node | None, size: Range) -> tuple[Range, Range | None] | None:
        if target is None:
            return None
        item = _item_type(target.type)
        if item is None:
            return size.times(PER_CHARACTER), None
        each = ONE
        if item.kind in {"string", "bytes"}:
            each += self._item_size(target).times(PER_CHARACTER)
        return size * each, None

    def _item_size(self, container: Node) -> Range:
        path = self.path(container)
        limit = self.limit((*path, "@items")) if path else None
        return UNKNOWN if limit is None else limit

    def _joined(self, target: Node | None, size: Range, args: list[Range]) -> Range:
        assert target is not None
        joined = size * self._item_size(target)
        if args:
            joined += args[0] * Range(max(size.least - 1, 0), max(size.most - 1, 0))
        return joined

    def _contains_address(self, name: str, overload: str, other: Range) -> Range:
        bits = Range(4, 16)
        cost = (bits + bits).times(PER_CHARACTER)
        if name == "containsCIDR":
            cost += bits.times(PER_CHARACTER) + ONE
        if overload.endswith("_string"):
            cost += other.times(PER_CHARACTER)
        return cost

    def _equality(self, what: Type, args: list[Range]) -> tuple[Range, None] | None:
        match what.name:
            case "net.IP" | "net.CIDR" | "kubernetes.Quantity" | "kubernetes.Semver":
                return ONE, None
            case "kubernetes.NamedFormat":
                return Range(1, 64).times(PER_CHARACTER), None
            case "kubernetes.URL":
                return Range(1, args[1].most).times(PER_CHARACTER), None
        return None

    def _list_function(
        self, name: str, node: Call, size: Range, args: list[Range]
    ) -> tuple[Range, Range]:
        arguments = node.arguments
        factor = 1.0
        match name:
            case "slice":
                start = _number(arguments[0], 0)
                counted = exactly(max(_number(arguments[1], size.most) - start, 0))
            case "lists.range":
                counted = exactly(_number(arguments[0], UNLIMITED))
            case "flatten":
                factor = float(_number(arguments[0], UNLIMITED)) if arguments else 1.0
                counted = size
            case "reverse":
                counted = size
            case _:
                keys = args[0] if name == "@sortBy" else size
                counted = keys * keys
                factor = 2.0
                sorted_list = arguments[0] if name == "@sortBy" else node.target
                item = _item_type(sorted_list.type) if sorted_list is not None else None
                if name != "distinct" and item is not None and item.kind in {"string", "bytes"}:
                    factor += PER_CHARACTER
        return counted.times(factor) + exactly(1 + LIST), counted


def _is_scalar(what: Type) -> bool:
    held, _ = unwrap_optional(what)
    return held.kind in SCALARS


def _item_type(what: Type) -> Type | None:
    return what.parameters[0] if what.kind == "list" else None


def _union(one: _Entries | None, other: _Entries | None) -> _Entries | None:
    if one is None or other is None:
        return None
    return _Entries(one.container, one.key | other.key, one.value | other.value)


def _number(node: Node, otherwise: int) -> int:
    if isinstance(node, Literal) and type(node.value) is int:
        return max(node.value, 0)
    return otherwise


def _selector(length: Range) -> Range:
    requirements = length.times(0.5).times(LIST + OBJECT)
    return exactly(LIST) + length.times(PER_CHARACTER) + requirements


def _replaced(text: Range, old: Range, new: Range) -> Range:
    """Return the size range of a text after replacements: the longest and the shortest case."""
    if old.least == 0:
        most = min(text.most + 1, UNLIMITED) * new.most + text.most
    elif new.most <= old.least:
        most = text.most
    else:
        most = math.ceil(text.most / old.least) * new.most
    if old.most == 0:
        least = (text.least + 1) * new.least + text.least
    elif old.most <= new.least:
        least = text.least
    else:
        least = math.ceil(text.least / old.most) * new.least
    return Range(_bounded(least), _bounded(most))


def _split_count(node: Call, size: Range) -> int:
    if len(node.arguments) > 1:
        limit = node.arguments[1]
        if isinstance(limit, Literal) and isinstance(limit.value, int):
            return limit.value if limit.value >= 0 else UNLIMITED
    return size.most
