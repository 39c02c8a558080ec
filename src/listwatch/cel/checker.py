"""The checker: types every node, chooses the overload of every call, or refuses.

The rules are those of the CEL language definition. The messages are the reference's, because they
are what an API server returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from listwatch.cel.environment import TYPE_NAMES
from listwatch.cel.errors import CompilationError, EvaluationError, Issue
from listwatch.cel.parser import children, qualified_name
from listwatch.cel.patterns import compile_pattern
from listwatch.cel.standard import to_duration, to_timestamp
from listwatch.cel.strings import format_one, read_clause
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
from listwatch.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    ERROR,
    INT,
    NULL,
    STRING,
    UINT,
    Substitution,
    Type,
    list_of,
    map_of,
    object_named,
    optional_of,
    parameter,
    unwrap_optional,
)
from listwatch.cel.values import UInt

if TYPE_CHECKING:
    from collections.abc import Callable

    from listwatch.cel.environment import Environment
    from listwatch.cel.functions import Function, Overload

_CONSTANTS: dict[type, Type] = {
    bool: BOOL, int: INT, UInt: UINT, float: DOUBLE, str: STRING, bytes: BYTES, type(None): NULL,
}  # fmt: skip


def check(source: str, root: Node, environment: Environment) -> Type:
    """Set types and overloads in a tree and return the type of the whole.

    Raises CompilationError with all problems.
    """
    checker = _Checker(environment)
    checker.check(root)
    checker.settle(root)
    if not checker.issues:
        _check_literals(root, checker.issues)
    if checker.issues:
        raise CompilationError(source, checker.issues)
    return root.type


class _Checker(Visitor[Type]):
    def __init__(self, environment: Environment) -> None:
        super().__init__()
        self.issues: list[Issue] = []
        self._environment = environment
        self._bound = Substitution()
        self._scopes: list[dict[str, Type]] = []
        self._parameters = 0
        self._mixed = 0

    def check(self, node: Node) -> Type:
        node.type = found = self._by_node[type(node)](node)
        return found

    def settle(self, root: Node) -> None:
        """Replace types left open by dyn, in the whole tree."""
        stack = [root]
        while stack:
            node = stack.pop()
            node.type = self._bound.apply(node.type, free=DYN)
            stack.extend(children(node))

    def _issue(self, node: Node, message: str) -> Type:
        self.issues.append(Issue(node.line, node.column, message))
        return ERROR

    def _literal(self, node: Literal) -> Type:
        return _CONSTANTS[type(node.value)]

    def _local(self, name: str) -> Type | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    def _named(self, name: str) -> Type | None:
        found = self._environment.variables.get(name) or TYPE_NAMES.get(name)
        if found is None and name in self._environment.objects:
            return Type("type", "", (object_named(name),))
        return found

    def _ident(self, node: Ident) -> Type:
        found = self._local(node.name) or self._named(node.name)
        if found is None:
            return self._undeclared(node, node.name)
        return found

    def _undeclared(self, node: Node, name: str) -> Type:
        return self._issue(node, f"undeclared reference to '{name}' (in container '')")

    def _select(self, node: Select) -> Type:
        full = qualified_name(node)
        if full is not None and self._local(full.partition(".")[0]) is None:
            found = self._named(full)
            if found is not None:
                return found
        operand = self._bound.apply(self.check(node.operand))
        result = self._field(node, operand)
        return BOOL if node.test else result

    def _field(self, node: Select, operand: Type) -> Type:
        held, was_optional = unwrap_optional(operand)
        match held.kind:
            case "map":
                result = held.parameters[1]
            case "object":
                fields = self._environment.objects.get(held.name, {})
                if node.name not in fields:
                    result = self._issue(node, f"undefined field '{node.name}'")
                else:
                    result = fields[node.name]
            case "param":
                self._bound.assign(DYN, held)
                result = DYN
            case "dyn" | "error":
                result = DYN
            case _:
                self._issue(node, f"type '{held}' does not support field selection")
                result = DYN
        return optional_of(result) if was_optional or node.optional else result

    def _call(self, node: Call) -> Type:
        # The arguments of a format may have several types; any other list has one.
        self._mixed += node.function == "format"
        for argument in node.arguments:
            self.check(argument)
        self._mixed -= node.function == "format"
        target = node.target
        functions = self._environment.functions
        if target is not None:
            prefix = qualified_name(target)
            if prefix is not None and f"{prefix}.{node.function}" in functions:
                node.function, node.target = f"{prefix}.{node.function}", None
            else:
                self.check(target)
        found = functions.get(node.function)
        if found is None:
            return self._undeclared(node, node.function)
        return self._resolve(node, found)

    def _resolve(self, node: Call, function: Function) -> Type:
        parts = node.arguments if node.target is None else [node.target, *node.arguments]
        types = [part.type for part in parts]
        if function.name in {"_&&_", "_||_"}:
            node.overloads = [function.overloads[0].id]
            fits = [self._logical(part) for part in parts]
            return BOOL if all(fits) else ERROR
        result: Type | None = None
        for overload in function.overloads:
            if overload.method != (node.target is not None):
                continue
            wanted, given = self._fresh(overload)
            if not self._bound.assign_all(types, wanted):
                continue
            node.overloads.append(overload.id)
            found = self._bound.apply(given)
            if result is None:
                result = found
            elif result.kind != "dyn" and result != found:
                result = DYN
        if result is None:
            return self._no_overload(node, function, types)
        return result

    def _logical(self, part: Node) -> bool:
        if self._bound.assign(part.type, BOOL):
            return True
        self._issue(part, f"expected type 'bool' but found '{self._shown(part.type)}'")
        return False

    def _fresh(self, overload: Overload) -> tuple[list[Type], Type]:
        """Rename the overload's type parameters to unused names."""
        if not overload.generic:
            return list(overload.parameters), overload.result
        names = {}
        for name in overload.generic:
            self._parameters += 1
            names[name] = parameter(f"_var{self._parameters}")
        renamed = Substitution(names)
        return [renamed.apply(one) for one in overload.parameters], renamed.apply(overload.result)

    def _no_overload(self, node: Call, function: Function, types: list[Type]) -> Type:
        shown = [self._shown(one) for one in types]
        if node.target is not None:
            signature = f"{shown[0]}.({', '.join(shown[1:])})"
        else:
            signature = f"({', '.join(shown)})"
        name = function.name
        return self._issue(
            node, f"found no matching overload for '{name}' applied to '{signature}'"
        )

    def _shown(self, what: Type) -> str:
        return str(self._bound.apply(what, free=DYN))

    def _list(self, node: ListLiteral) -> Type:
        item: Type | None = None
        for position, element in enumerate(node.elements):
            found = self.check(element)
            if position in node.optional:
                found, was_optional = unwrap_optional(self._bound.apply(found))
                if not was_optional and found.kind != "dyn":
                    self._issue(
                        element, f"expected type 'optional_type({found})' but found '{found}'"
                    )
            item = self._joined(element, item, found)
        if item is None:
            self._parameters += 1
            item = parameter(f"_var{self._parameters}")
        return list_of(item)

    def _joined(self, where: Node, known: Type | None, found: Type) -> Type:
        """Return the common type of all elements so far; elements of one literal share a type."""
        if known is None or self._bound.assign(found, known):
            return found if known is None else known
        if self._mixed:
            return DYN
        return self._issue(
            where, f"expected type '{self._shown(known)}' but found '{self._shown(found)}'"
        )

    def _map(self, node: MapLiteral) -> Type:
        key: Type | None = None
        value: Type | None = None
        for entry in node.entries:
            key = self._joined(entry.key, key, self.check(entry.key))
            found = self.check(entry.value)
            if entry.optional:
                found, _ = unwrap_optional(self._bound.apply(found))
            value = self._joined(entry.value, value, found)
        if key is None or value is None:
            self._parameters += 2
            key = parameter(f"_var{self._parameters - 1}")
            value = parameter(f"_var{self._parameters}")
        return map_of(key, value)

    def _object(self, node: ObjectLiteral) -> Type:
        fields = self._environment.objects.get(node.name)
        for entry in node.entries:
            found = self.check(entry.value)
            if entry.optional:
                found, _ = unwrap_optional(self._bound.apply(found))
            assert isinstance(entry.key, Literal)
            name = entry.key.value
            assert isinstance(name, str)
            if fields is None:
                continue
            wanted = fields.get(name)
            if wanted is None:
                self._issue(entry.key, f"undefined field '{name}'")
            elif not self._bound.assign(found, wanted):
                self._issue(
                    entry.key,
                    f"expected type of field '{name}' is '{wanted}' but provided type "
                    f"is '{self._shown(found)}'",
                )
        if fields is None:
            return self._undeclared(node, node.name)
        return object_named(node.name)

    def _comprehension(self, node: Comprehension) -> Type:
        over = self._bound.apply(self.check(node.range))
        initial = self.check(node.initial)
        key, value = self._range_types(node, over)
        self._scopes.append({node.accumulator: initial})
        if node.variable2:
            names = {node.variable: key, node.variable2: value}
        else:
            names = {node.variable: key if over.kind == "map" else value}
        self._scopes.append(names)
        condition = self.check(node.condition)
        if not self._bound.assign(condition, BOOL):
            self._issue(
                node.condition, f"expected type 'bool' but found '{self._shown(condition)}'"
            )
        step = self.check(node.step)
        if not self._bound.assign(step, initial):
            self._issue(
                node.step,
                f"expected type '{self._shown(initial)}' but found '{self._shown(step)}'",
            )
        self._scopes.pop()
        result = self.check(node.result)
        self._scopes.pop()
        return result

    def _range_types(self, node: Comprehension, over: Type) -> tuple[Type, Type]:
        match over.kind:
            case "list":
                return INT, over.parameters[0]
            case "map":
                return over.parameters[0], over.parameters[1]
            case "dyn" | "error" | "param":
                if over.kind == "param":
                    self._bound.assign(DYN, over)
                return DYN, DYN
        self._issue(
            node.range,
            f"expression of type '{self._shown(over)}' cannot be range of a comprehension (must "
            "be list, map, or dynamic)",
        )
        return ERROR, ERROR


def _check_literals(root: Node, issues: list[Issue]) -> None:
    """Refuse constants that would always fail: times, patterns, formats."""
    stack = [root]
    while stack:
        node = stack.pop()
        stack.extend(children(node))
        if not isinstance(node, Call) or not node.arguments:
            continue
        argument = node.arguments[-1]
        if isinstance(argument, Literal) and isinstance(argument.value, str):
            problem = _refused(node.function, argument.value)
            if problem is not None:
                issues.append(Issue(argument.line, argument.column, problem))
        if (
            node.function == "format"
            and isinstance(node.target, Literal)
            and isinstance(argument, ListLiteral)
        ):
            _check_format(node, str(node.target.value), argument, issues)


def _refused(function: str, text: str) -> str | None:
    checks: dict[str, Callable[[str], object]] = {
        "duration": to_duration, "timestamp": to_timestamp, "matches": compile_pattern,
    }  # fmt: skip
    if function not in checks:
        return None
    try:
        checks[function](text)
    except EvaluationError:
        return f"invalid {function} argument"
    return None


_EXAMPLES: dict[str, object] = {
    "bool": True, "int": 0, "uint": UInt(0), "double": 0.0, "string": "", "bytes": b"",
    "list": [], "map": {}, "null": None,
}  # fmt: skip


def _check_format(node: Call, text: str, arguments: ListLiteral, issues: list[Issue]) -> None:
    used = position = 0
    while True:
        position = text.find("%", position)
        if position < 0:
            break
        if text.startswith("%%", position):
            position += 2
            continue
        try:
            clause, precision, position = read_clause(text, position)
        except EvaluationError as error:
            issues.append(Issue(node.line, node.column, str(error)))
            return
        if used >= len(arguments.elements):
            issues.append(Issue(node.line, node.column, f"index {used} out of range"))
            return
        argument = arguments.elements[used]
        used += 1
        if argument.type.kind not in _EXAMPLES:
            continue
        try:
            format_one(clause, precision, _EXAMPLES[argument.type.kind])
        except EvaluationError as error:
            issues.append(Issue(argument.line, argument.column, str(error)))
            return
    if used < len(arguments.elements):
        issues.append(
            Issue(
                node.line,
                node.column,
                f"too many arguments supplied to string.format (expected {used}, got "
                f"{len(arguments.elements)})",
            )
        )
