"""Macros: calls that the parser expands, because they bind names or test for presence.

The expansions follow CEL's language definition and the two-variable comprehensions extension, so
that the cost of a macro is the cost of the loop it stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from listwatch.cel.syntax import (
    ACCUMULATOR,
    Call,
    Comprehension,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
)

if TYPE_CHECKING:
    from listwatch.cel.syntax import Constant


class ExpressionSyntaxError(Exception):
    """Neither the grammar nor the macro allows this."""

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


def expand_macro(call: Call) -> Node | None:
    """Return the expansion of a macro call, or None for an ordinary call.

    Raises ExpressionSyntaxError if an argument that must be a name is not one.
    """
    count = len(call.arguments)
    if call.target is None:
        return _has(call) if (call.function, count) == ("has", 1) else None
    match call.function, count:
        case (("all" | "exists" | "exists_one" | "map" | "filter"), 2):
            return _one_variable(call, call.target, call.function)
        case "map", 3:
            return _one_variable(call, call.target, "map")
        case (
            ("all" | "exists" | "existsOne" | "exists_one" | "transformList" | "transformMap"),
            3,
        ):
            return _two_variables(call, call.target)
        case "transformMapEntry", 3:
            return _two_variables(call, call.target)
        case (("transformList" | "transformMap" | "transformMapEntry"), 4):
            return _two_variables(call, call.target)
        case (("optMap" | "optFlatMap"), 2):
            return _optional(call, call.target)
        case "sortBy", 2:
            return _sort_by(call, call.target)
    return None


def _has(call: Call) -> Node:
    (argument,) = call.arguments
    if not isinstance(argument, Select) or argument.test:
        raise ExpressionSyntaxError(
            argument.line, argument.column, "invalid argument to has() macro"
        )
    return Select(call.line, call.column, argument.operand, argument.name, test=True)


def _variable(node: Node) -> str:
    if not isinstance(node, Ident):
        raise ExpressionSyntaxError(node.line, node.column, "argument must be a simple name")
    return node.name


class _Builder:
    """Creates nodes at the position of the macro's call."""

    def __init__(self, call: Call) -> None:
        self._place = (call.line, call.column)

    def literal(self, value: Constant) -> Node:
        return Literal(*self._place, value)

    def ident(self, name: str) -> Node:
        return Ident(*self._place, name)

    def accumulator(self) -> Node:
        return self.ident(ACCUMULATOR)

    def call(self, function: str, *arguments: Node) -> Node:
        return Call(*self._place, function, None, list(arguments))

    def list(self, *elements: Node) -> Node:
        return ListLiteral(*self._place, list(elements))

    def map(self) -> Node:
        return MapLiteral(*self._place, [])

    def loop(
        self,
        names: tuple[str, str],
        over: Node,
        initial: Node,
        condition: Node,
        step: Node,
        result: Node | None = None,
    ) -> Node:
        return Comprehension(
            *self._place, *names, over, ACCUMULATOR, initial, condition, step,
            result or self.accumulator(),
        )  # fmt: skip

    def bind(self, name: str, value: Node, result: Node) -> Node:
        return Comprehension(
            *self._place, "#unused", "", self.list(), name, value, self.literal(False),
            self.ident(name), result,
        )  # fmt: skip


def _one_variable(call: Call, target: Node, name: str) -> Node:
    variable = _variable(call.arguments[0])
    names = (variable, "")
    build = _Builder(call)
    if name == "filter":
        step = build.call(
            "_?_:_",
            call.arguments[1],
            build.call("_+_", build.accumulator(), build.list(call.arguments[0])),
            build.accumulator(),
        )
        return build.loop(names, target, build.list(), build.literal(True), step)
    if name == "map":
        step = build.call("_+_", build.accumulator(), build.list(call.arguments[-1]))
        if len(call.arguments) == 3:
            step = build.call("_?_:_", call.arguments[1], step, build.accumulator())
        return build.loop(names, target, build.list(), build.literal(True), step)
    return _quantifier(build, name, names, target, call.arguments[1])


def _quantifier(build: _Builder, name: str, names: tuple[str, str], over: Node, body: Node) -> Node:
    if name == "all":
        return build.loop(
            names,
            over,
            build.literal(True),
            build.call("@not_strictly_false", build.accumulator()),
            build.call("_&&_", build.accumulator(), body),
        )
    if name == "exists":
        return build.loop(
            names,
            over,
            build.literal(False),
            build.call("@not_strictly_false", build.call("!_", build.accumulator())),
            build.call("_||_", build.accumulator(), body),
        )
    counted = build.call("_+_", build.accumulator(), build.literal(1))
    return build.loop(
        names,
        over,
        build.literal(0),
        build.literal(True),
        build.call("_?_:_", body, counted, build.accumulator()),
        build.call("_==_", build.accumulator(), build.literal(1)),
    )


def _two_variables(call: Call, target: Node) -> Node:
    first, second = _variable(call.arguments[0]), _variable(call.arguments[1])
    if first == second:
        again = call.arguments[1]
        raise ExpressionSyntaxError(again.line, again.column, f"duplicate variable name: {first}")
    names = (first, second)
    build = _Builder(call)
    body = call.arguments[-1]
    if call.function in {"all", "exists", "existsOne", "exists_one"}:
        return _quantifier(build, call.function, names, target, body)
    if call.function == "transformList":
        initial = build.list()
        step = build.call("_+_", build.accumulator(), build.list(body))
    elif call.function == "transformMap":
        initial = build.map()
        step = build.call("@insert", build.accumulator(), build.ident(first), body)
    else:
        initial = build.map()
        step = build.call("@insert", build.accumulator(), body)
    if len(call.arguments) == 4:
        step = build.call("_?_:_", call.arguments[2], step, build.accumulator())
    return build.loop(names, target, initial, build.literal(True), step)


def _optional(call: Call, target: Node) -> Node:
    build = _Builder(call)
    name = _variable(call.arguments[0])
    held = Call(call.line, call.column, "value", target, [])
    result = build.bind(name, held, call.arguments[1])
    if call.function == "optMap":
        result = Call(call.line, call.column, "optional.of", None, [result])
    present = Call(call.line, call.column, "hasValue", target, [])
    absent = Call(call.line, call.column, "optional.none", None, [])
    return build.call("_?_:_", present, result, absent)


def _sort_by(call: Call, target: Node) -> Node:
    build = _Builder(call)
    _variable(call.arguments[0])
    name = "@sorted"
    keys = Call(call.line, call.column, "map", build.ident(name), call.arguments)
    sorted_list = Call(
        call.line,
        call.column,
        "@sortBy",
        build.ident(name),
        [_one_variable(keys, build.ident(name), "map")],
    )
    return build.bind(name, target, sorted_list)
