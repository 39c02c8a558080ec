"""Compiles a checked tree to a program: closures that call each other, on a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from listwatch.cel.checker import check
from listwatch.cel.cost import (
    AUTHORIZATION_CHECK,
    LIST,
    MAP,
    OBJECT,
    PER_CHARACTER,
    PER_PATTERN_CHARACTER,
)
from listwatch.cel.environment import TYPE_NAMES, Environment
from listwatch.cel.errors import CostLimitExceededError, EvaluationError, InstantiationError
from listwatch.cel.parser import children, parse, qualified_name
from listwatch.cel.patterns import compile_pattern
from listwatch.cel.syntax import (
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
from listwatch.cel.values import (
    NOTHING,
    Optional,
    TypeName,
    Value,
    equal,
    size,
    type_name,
)

if TYPE_CHECKING:
    from listwatch.cel.functions import Overload
    from listwatch.cel.types import Type

PER_CALL_LIMIT = 1_000_000
"""Cost limit of one evaluation, as in k8s.io/apiserver, pkg/apis/cel/config.go."""


class Run:
    """One evaluation: its variables and its cost so far."""

    __slots__ = ("cost", "limit", "variables")

    def __init__(self, variables: Mapping[str, Value], limit: int) -> None:
        self.variables: dict[str, Value] = dict(variables)
        self.limit = limit
        self.cost = 0

    def spend(self, cost: int) -> None:
        """Add to the cost. Raises CostLimitExceededError once the budget is spent."""
        self.cost += cost
        if self.cost > self.limit:
            raise CostLimitExceededError


Step: TypeAlias = Callable[[Run], Value]


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression. Immutable: any thread may evaluate it."""

    source: str
    root: Node
    type: Type
    variables: frozenset[str]
    _step: Step

    def evaluate(
        self, variables: Mapping[str, Value], *, limit: int = PER_CALL_LIMIT
    ) -> tuple[Value, int]:
        """Return the value and its cost.

        Raises EvaluationError if it fails, including its subclass CostLimitExceededError.
        """
        run = Run(variables, limit)
        try:
            value = self._step(run)
            run.spend(0)
        except EvaluationError as error:
            error.cost = min(run.cost, limit)
            raise
        return value, run.cost


def compile_expression(source: str, environment: Environment) -> Program:
    """Parse, check and compile an expression.

    Raises CompilationError with every reason why it does not compile, and InstantiationError for a
    constant that would fail in each evaluation.
    """
    root = parse(source)
    found = check(source, root, environment)
    nodes = _walk(root)
    _check_constants(nodes, environment)
    used = frozenset(node.name for node in nodes if isinstance(node, Ident))
    names = used & frozenset(environment.variables)
    return Program(source, root, found, names, _Planner(environment).plan(root))


_FOLDED = frozenset({"int", "uint", "double", "bool"})


def _check_constants(nodes: list[Node], environment: Environment) -> None:
    """Refuse conversions and patterns of constants that always fail, as the reference does."""
    for node in nodes:
        if not isinstance(node, Call) or not node.arguments:
            continue
        argument = node.arguments[0]
        if not isinstance(argument, Literal) or not isinstance(argument.value, str):
            continue
        try:
            if node.function in {"find", "findAll"}:
                compile_pattern(argument.value)
            elif node.function in _FOLDED and node.target is None:
                environment.functions[node.function].call(argument.value)
        except EvaluationError as error:
            reason = str(error)
            if node.function in _FOLDED:
                reason = f"type conversion error from 'string' to '{node.function}'"
            raise InstantiationError(f"program instantiation failed: {reason}") from None


def _walk(root: Node) -> list[Node]:
    nodes = [root]
    for node in nodes:
        nodes.extend(children(node))
    return nodes


class _Planner(Visitor[Step]):
    def __init__(self, environment: Environment) -> None:
        super().__init__()
        self._environment = environment
        self._locals: list[str] = []

    def plan(self, node: Node) -> Step:
        return self._by_node[type(node)](node)

    def _literal(self, node: Literal) -> Step:
        value = node.value
        return lambda run: value

    def _type(self, name: str) -> Step | None:
        if name in TYPE_NAMES or name in self._environment.objects:
            value = TypeName(name)
            return lambda run: value
        return None

    def _ident(self, node: Ident) -> Step:
        name = node.name
        if name not in self._locals and name not in self._environment.variables:
            found = self._type(name)
            if found is not None:
                return found

        def step(run: Run) -> Value:
            run.cost += 1
            try:
                value = run.variables[name]
            except KeyError:
                raise EvaluationError(f"no such attribute(s): {name}") from None
            if type(value) is _Failed:
                raise value.error
            return value

        return step

    def _select(self, node: Select) -> Step:
        full = qualified_name(node)
        if full is not None and full.partition(".")[0] not in self._locals:
            variables = self._environment.variables
            if full in variables:
                return self._ident(Ident(node.line, node.column, full))
            if full.partition(".")[0] not in variables:
                found = self._type(full)
                if found is not None:
                    return found
        operand, name = self.plan(node.operand), node.name
        if node.test:
            return lambda run: _has(operand(run), name)

        def step(run: Run) -> Value:
            value = operand(run)
            run.cost += 1
            if isinstance(value, Mapping):
                try:
                    return value[name]
                except KeyError:
                    raise EvaluationError(f"no such key: {name}") from None
            if isinstance(value, Optional):
                return _optional_field(value, name)
            # The reference's message for anything without members, such as null and numbers.
            raise EvaluationError(f"no such key: {name}")

        if node.optional:
            return lambda run: _optional_field(operand(run), name)
        return step

    def _list(self, node: ListLiteral) -> Step:
        elements = [
            (self.plan(element), position in node.optional)
            for position, element in enumerate(node.elements)
        ]

        def step(run: Run) -> Value:
            run.spend(LIST)
            result = []
            for element, optional in elements:
                value = element(run)
                if optional:
                    assert isinstance(value, Optional)
                    if not value.present:
                        continue
                    value = value.value
                result.append(value)
            return result

        return step

    def _map(self, node: MapLiteral) -> Step:
        entries = [
            (self.plan(entry.key), self.plan(entry.value), entry.optional) for entry in node.entries
        ]

        def step(run: Run) -> Value:
            run.spend(MAP)
            result: dict[Value, Value] = {}
            for key, value, optional in entries:
                name, found = key(run), value(run)
                if type_name(name) not in {"string", "int", "uint", "bool"}:
                    raise EvaluationError(f"unsupported key type: {type_name(name)}")
                if name in result:
                    raise EvaluationError(f"Failed with repeated key in map: {name}")
                if optional:
                    assert isinstance(found, Optional)
                    if not found.present:
                        continue
                    found = found.value
                result[name] = found
            return result

        return step

    def _object(self, node: ObjectLiteral) -> Step:
        entries = [
            (entry.key.value, self.plan(entry.value), entry.optional)
            for entry in node.entries
            if isinstance(entry.key, Literal)
        ]
        name = node.name

        def step(run: Run) -> Value:
            run.spend(OBJECT)
            result = ObjectValue(name)
            for key, value, optional in entries:
                found = value(run)
                if optional:
                    assert isinstance(found, Optional)
                    if not found.present:
                        continue
                    found = found.value
                result[str(key)] = found
            return result

        return step

    def _call(self, node: Call) -> Step:
        match node.function:
            case "_&&_":
                return _and(*map(self.plan, node.arguments))
            case "_||_":
                return _or(*map(self.plan, node.arguments))
            case "_?_:_":
                return _conditional(*map(self.plan, node.arguments))
            case "@not_strictly_false":
                return _not_strictly_false(self.plan(node.arguments[0]))
            case "_==_":
                return _equality(*map(self.plan, node.arguments), wanted=True)
            case "_!=_":
                return _equality(*map(self.plan, node.arguments), wanted=False)
            case "_[_]" | "_[?_]":
                return self._index(node)
        parts = node.arguments if node.target is None else [node.target, *node.arguments]
        function = self._environment.functions[node.function]
        overloads = [one for one in function.overloads if one.id in node.overloads]
        # If all types are known, the values fit; otherwise they are checked in each evaluation.
        known = not any(_open(part.type) for part in parts)
        return _function_call(
            function.name, function.call, [self.plan(part) for part in parts],
            None if known else overloads,
        )  # fmt: skip

    def _index(self, node: Call) -> Step:
        container, key = map(self.plan, node.arguments)
        call = self._environment.functions[node.function].call

        def step(run: Run) -> Value:
            value, index = container(run), key(run)
            run.cost += 1
            return call(value, index)

        return step

    def _comprehension(self, node: Comprehension) -> Step:
        over, initial = self.plan(node.range), self.plan(node.initial)
        self._locals.append(node.accumulator)
        if node.binds:
            result = self.plan(node.result)
            self._locals.pop()
            return _bind(node.accumulator, initial, result)
        self._locals += [node.variable, node.variable2]
        condition, step = self.plan(node.condition), self.plan(node.step)
        del self._locals[-2:]
        result = self.plan(node.result)
        self._locals.pop()
        if isinstance(node.condition, Literal):
            return _fold(node, over, initial, None, step, result)
        return _fold(node, over, initial, condition, step, result)


class ObjectValue(dict[Value, Value]):
    """An object created by an expression, such as `Object.spec{replicas: 1}`."""

    __slots__ = ("type_name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.type_name = name


def _has(value: Value, name: str) -> bool:
    if isinstance(value, Mapping):
        return name in value
    if isinstance(value, Optional):
        return value.present and _has(value.value, name)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        raise EvaluationError("no such overload")
    return False


def _optional_field(value: Value, name: str) -> Optional:
    if isinstance(value, Optional):
        return _optional_field(value.value, name) if value.present else NOTHING
    if not isinstance(value, Mapping):
        raise EvaluationError("no such overload")
    return Optional(value[name]) if name in value else NOTHING


class _Failed:
    """An error as accumulator value: a later element may still decide the result."""

    __slots__ = ("error",)

    def __init__(self, error: EvaluationError) -> None:
        self.error = error


def _decide(left: Step, right: Step, decisive: bool) -> Step:
    """Return the operator that stops at a deciding value, and then ignores errors of the other."""

    def step(run: Run) -> Value:
        try:
            one = left(run)
        except CostLimitExceededError:
            raise
        except EvaluationError as error:
            one = _Failed(error)
        if one is decisive:
            return decisive
        other = right(run)
        if other is decisive:
            return decisive
        if isinstance(one, _Failed):
            raise one.error
        if not (isinstance(one, bool) and isinstance(other, bool)):
            raise EvaluationError("no such overload")
        return not decisive

    return step


def _and(left: Step, right: Step) -> Step:
    return _decide(left, right, decisive=False)


def _or(left: Step, right: Step) -> Step:
    return _decide(left, right, decisive=True)


def _conditional(condition: Step, yes: Step, no: Step) -> Step:
    def step(run: Run) -> Value:
        value = condition(run)
        if value is True:
            return yes(run)
        if value is False:
            return no(run)
        raise EvaluationError("no such overload")

    return step


def _not_strictly_false(inner: Step) -> Step:
    def step(run: Run) -> Value:
        run.cost += 1
        try:
            return inner(run) is not False
        except CostLimitExceededError:
            raise
        except EvaluationError:
            return True

    return step


def _equality(left: Step, right: Step, *, wanted: bool) -> Step:
    def step(run: Run) -> Value:
        one, other = left(run), right(run)
        run.spend(math.ceil(min(size(one), size(other)) * PER_CHARACTER))
        return equal(one, other) is wanted

    return step


def _bind(name: str, value: Step, result: Step) -> Step:
    def step(run: Run) -> Value:
        before = run.variables
        run.variables = {**before, name: value(run)}
        try:
            return result(run)
        finally:
            run.variables = before

    return step


def _fold(
    node: Comprehension, over: Step, initial: Step, condition: Step | None, step: Step, result: Step
) -> Step:
    first, second, accumulator = node.variable, node.variable2, node.accumulator

    def run_loop(run: Run) -> Value:
        container = over(run)
        before = run.variables
        value: Value = initial(run)
        scope = run.variables = dict(before)
        outer = {name: before[name] for name in (first, second) if name in before}
        try:
            for names in _elements(container, first, second):
                scope[accumulator] = value
                scope.update(names)
                run.spend(0)
                if condition is not None and condition(run) is False:
                    break
                try:
                    value = step(run)
                except CostLimitExceededError:
                    raise
                except EvaluationError as error:
                    if condition is None:
                        raise
                    # A later element may still decide: `[0, 1].exists(x, 1 / x == 1)` is true.
                    value = _Failed(error)
            scope[accumulator] = value
            for name in (first, second):
                scope.pop(name, None)
            scope.update(outer)
            return result(run)
        finally:
            run.variables = before

    return run_loop


def _elements(container: Value, first: str, second: str) -> list[dict[str, Value]]:
    if isinstance(container, Mapping):
        if second:
            return [{first: key, second: value} for key, value in container.items()]
        return [{first: key} for key in container]
    if isinstance(container, Sequence) and not isinstance(container, str | bytes):
        if second:
            return [{first: i, second: item} for i, item in enumerate(container)]
        return [{first: item} for item in container]
    raise EvaluationError("no such overload")


def _open(what: Type) -> bool:
    """Return whether a type is decided only at evaluation."""
    return what.kind in {"dyn", "param"} or any(map(_open, what.parameters))


def _function_call(
    name: str, call: Callable[..., Value], parts: list[Step], overloads: list[Overload] | None
) -> Step:
    price = _PRICES.get(name)

    def step(run: Run) -> Value:
        values = [part(run) for part in parts]
        if overloads is not None and not any(_fits(one, values) for one in overloads):
            raise EvaluationError("no such overload")
        if price is None:
            run.cost += 1
            return call(*values)
        # A result that can get large is paid in advance, and by its actual size if that is larger.
        run.spend(price(values))
        result = call(*values)
        run.spend(0 if name not in _PAID_BY_RESULT else math.ceil(size(result) * PER_CHARACTER))
        return result

    return step


def _fits(overload: Overload, values: list[Value]) -> bool:
    return len(values) == len(overload.parameters) and all(
        _is_a(value, wanted) for value, wanted in zip(values, overload.parameters, strict=True)
    )


def _is_a(value: Value, wanted: Type) -> bool:
    match wanted.kind:
        case "dyn" | "param":
            return True
        case "list":
            if not isinstance(value, Sequence) or isinstance(value, str | bytes):
                return False
            return all(_is_a(item, wanted.parameters[0]) for item in value)
        case "map":
            return isinstance(value, Mapping)
        case "opaque" if wanted.name == "optional_type":
            return isinstance(value, Optional)
        case "null":
            return value is None
        case "type":
            return isinstance(value, TypeName)
        case "object" | "opaque":
            return type_name(value) == wanted.name
    return type_name(value) == _RUNTIME_NAMES.get(wanted.kind, wanted.kind)


_RUNTIME_NAMES = {"timestamp": "google.protobuf.Timestamp", "duration": "google.protobuf.Duration"}


def _characters(values: list[Value], position: int, factor: float = PER_CHARACTER) -> int:
    return math.ceil(size(values[position]) * factor)


def _traversal(value: Value) -> int:
    match value:
        case str() | bytes():
            return int(len(value) * PER_CHARACTER)
        case Mapping():
            return sum(_traversal(key) + _traversal(held) for key, held in value.items())
        case Sequence():
            return sum(map(_traversal, value))
    return 1


def _pattern(values: list[Value]) -> int:
    text = math.ceil((1.0 + size(values[0])) * PER_CHARACTER)
    return text * _characters(values, 1, PER_PATTERN_CHARACTER)


def _square(values: list[Value]) -> int:
    items = values[-1]
    return 2 * size(items) ** 2 + 1 + LIST


def _linear(values: list[Value]) -> int:
    return size(values[0]) + 1 + LIST


def _product(factor: int) -> Callable[[list[Value]], int]:
    return lambda values: size(values[0]) * size(values[1]) * factor + 1


def _once(values: list[Value]) -> int:
    return _characters(values, 0)


def _twice(values: list[Value]) -> int:
    return _characters(values, 0, 2 * PER_CHARACTER)


def _smaller(values: list[Value]) -> int:
    return math.ceil(min(size(values[0]), size(values[1])) * PER_CHARACTER)


def _both(values: list[Value]) -> int:
    if isinstance(values[0], str | bytes):
        return math.ceil((size(values[0]) + size(values[1])) * PER_CHARACTER)
    if isinstance(values[0], Sequence):
        return 1 + (len(values[0]) + size(values[1])) // 100
    return 1


def _address(values: list[Value]) -> int:
    return 8 + _characters(values, 1)


_PAID_BY_RESULT = frozenset({"join", "replace", "format", "split", "@insert"})

_PRICES: Mapping[str, Callable[[list[Value]], int]] = {
    "check": lambda values: AUTHORIZATION_CHECK,
    **dict.fromkeys(
        ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"),
        lambda values: _traversal(values[0]),
    ),
    **dict.fromkeys(
        (
            "url", "lowerAscii", "upperAscii", "substring", "trim", "cidr", "isIP", "isCIDR", "ip",
            "quantity", "isQuantity", "semver", "isSemver", "startsWith", "endsWith", "bytes",
            "string", "strings.quote", "format", "isURL",
        ),
        _once,
    ),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _twice),
    **dict.fromkeys(("matches", "find", "findAll"), _pattern),
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), _smaller),
    **dict.fromkeys(("distinct", "sort", "@sortBy"), _square),
    **dict.fromkeys(("slice", "flatten", "reverse"), _linear),
    **dict.fromkeys(("sets.contains", "sets.intersects"), _product(1)),
    **dict.fromkeys(("containsIP", "containsCIDR"), _address),
    "sets.equivalent": _product(2),
    "lists.range": lambda values: int(values[0]) + 1 + LIST,  # type: ignore[call-overload]  # int
    "join": _linear,
    "@in": lambda values: size(values[1]) if not isinstance(values[1], Mapping) else 1,
    "_+_": _both,
    "contains": lambda values: _characters(values, 0) * _characters(values, 1),
    "validate": lambda values: math.ceil((1 + size(values[1])) * PER_CHARACTER) * 32,
}  # fmt: skip
