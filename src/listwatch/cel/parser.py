"""Parses the text of an expression into a tree.

The grammar is CEL's (github.com/google/cel-spec, doc/langdef.md); lark builds the parser from it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import lark

from listwatch.cel.errors import CompilationError, Issue
from listwatch.cel.macros import ExpressionSyntaxError, expand_macro
from listwatch.cel.syntax import (
    RESERVED_WORDS,
    Call,
    Comprehension,
    Entry,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    ObjectLiteral,
    Select,
)
from listwatch.cel.values import UInt, in_int64

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_EXPRESSION = 100_000
DEEPEST_EXPRESSION = 250

_QUOTED_FORMS = [
    r"'{3}(?:[^\\]|\\[\s\S])*?'{3}",
    r'"{3}(?:[^\\]|\\[\s\S])*?"{3}',
    r"'(?:[^'\\\n\r]|\\.)*'",
    r'"(?:[^"\\\n\r]|\\.)*"',
]
_QUOTED = "|".join(_QUOTED_FORMS)
_RAW_FORMS = [r"'{3}[\s\S]*?'{3}", r'"{3}[\s\S]*?"{3}', r"'[^'\n\r]*'", r'"[^"\n\r]*"']
_RAW = "|".join(_RAW_FORMS)

_GRAMMAR = r"""
start: expression

?expression: disjunction
    | disjunction QUESTION disjunction ":" expression -> conditional
?disjunction: conjunction (OR conjunction)*
?conjunction: relation (AND relation)*
?relation: addition | relation RELATION addition -> binary | relation IN addition -> binary
?addition: multiplication | addition (PLUS | MINUS) multiplication -> binary
?multiplication: unary | multiplication (TIMES | OVER | MODULO) unary -> binary
?unary: member | NOT+ member -> negation | MINUS+ member -> minus

?member: primary
    | member DOT IDENT -> select
    | member OPTIONAL_DOT IDENT -> optional_select
    | member DOT IDENT OPEN arguments ")" -> method
    | member BRACKET expression "]" -> index
    | member OPTIONAL_BRACKET expression "]" -> optional_index

?primary: IDENT -> identifier
    | DOT IDENT -> rooted_identifier
    | IDENT OPEN arguments ")" -> function
    | DOT IDENT OPEN arguments ")" -> rooted_function
    | "(" expression ")" -> parenthesis
    | BRACKET elements "]" -> list_literal
    | BRACE entries "}" -> map_literal
    | member BRACE entries "}" -> object
    | literal

arguments: [expression ("," expression)*]
elements: [element ("," element)* [","]]
element: expression | QUESTION expression
entries: [entry ("," entry)* [","]]
entry: expression ":" expression | QUESTION expression ":" expression

literal: INT | UINT | FLOAT | STRING | RAW_STRING | BYTES | RAW_BYTES | TRUE | FALSE | NULL

TRUE: "true"
FALSE: "false"
NULL: "null"
IN: "in"
QUESTION: "?"
DOT: "."
OPTIONAL_DOT: ".?"
OPEN: "("
BRACKET: "["
OPTIONAL_BRACKET: "[?"
BRACE: "{"
OR: "||"
AND: "&&"
NOT: "!"
MINUS: "-"
PLUS: "+"
TIMES: "*"
OVER: "/"
MODULO: "%"
RELATION: "<=" | ">=" | "==" | "!=" | "<" | ">"
IDENT: /[_a-zA-Z][_a-zA-Z0-9]*/
FLOAT.3: /(\d+\.\d+|\.\d+)([eE][+-]?\d+)?/ | /\d+[eE][+-]?\d+/
UINT.2: /(0x[0-9a-fA-F]+|\d+)[uU]/
INT.1: /0x[0-9a-fA-F]+/ | /\d+/
STRING: /@QUOTED@/
RAW_STRING.4: /[rR](?:@RAW@)/
BYTES.4: /[bB](?:@QUOTED@)/
RAW_BYTES.5: /(?:[bB][rR]|[rR][bB])(?:@RAW@)/
COMMENT: /\/\/[^\n]*/
%ignore COMMENT
%ignore /[ \t\f\n\r]+/
""".replace("@QUOTED@", _QUOTED).replace("@RAW@", _RAW)


class _TreeBuilder(lark.Transformer[lark.Token, Node]):
    """Creates nodes while the parser reduces rules, so that no second tree is built."""

    def start(self, parts: list[Any]) -> Node:
        node: Node = parts[0]
        return node

    parenthesis = start

    def conditional(self, parts: list[Any]) -> Node:
        condition, mark, yes, no = parts
        return _call("_?_:_", mark, condition, yes, no)

    def disjunction(self, parts: list[Any]) -> Node:
        return _balanced("_||_", parts)

    def conjunction(self, parts: list[Any]) -> Node:
        return _balanced("_&&_", parts)

    def binary(self, parts: list[Any]) -> Node:
        left, operator, right = parts
        name = "@in" if operator == "in" else f"_{operator}_"
        return _call(name, operator, left, right)

    def negation(self, parts: list[Any]) -> Node:
        # Pairs of signs cancel out before types are checked, as in the reference's parser.
        *marks, operand = parts
        node: Node = _call("!_", marks[0], operand) if len(marks) % 2 else operand
        return node

    def minus(self, parts: list[Any]) -> Node:
        *marks, operand = parts
        node: Node = operand
        if len(marks) % 2 == 0:
            return node
        if isinstance(operand, Literal) and type(operand.value) in {int, float}:
            # The sign belongs to the number: the smallest integer has no positive counterpart.
            return Literal(*_place(marks[0]), -operand.value)  # type: ignore[operator]  # a number
        return _call("-_", marks[0], operand)

    def select(self, parts: list[Any]) -> Node:
        operand, dot, name = parts
        return Select(*_place(dot), operand, _field(name))

    def optional_select(self, parts: list[Any]) -> Node:
        operand, dot, name = parts
        return Select(*_place(dot), operand, _field(name), optional=True)

    def method(self, parts: list[Any]) -> Node:
        target, _, name, mark, arguments = parts
        return self._called(str(name), mark, target, arguments)

    def function(self, parts: list[Any]) -> Node:
        name, mark, arguments = parts
        self._check_reserved(name)
        return self._called(str(name), mark, None, arguments)

    def rooted_function(self, parts: list[Any]) -> Node:
        return self.function(parts[1:])

    def index(self, parts: list[Any]) -> Node:
        operand, mark, key = parts
        return _call("_[_]", mark, operand, key)

    def optional_index(self, parts: list[Any]) -> Node:
        operand, mark, key = parts
        return _call("_[?_]", mark, operand, key)

    def identifier(self, parts: list[Any]) -> Node:
        self._check_reserved(parts[-1])
        return Ident(*_place(parts[0]), str(parts[-1]))

    rooted_identifier = identifier

    def arguments(self, parts: list[Any]) -> list[Node]:
        return parts

    elements = arguments
    entries = arguments

    def element(self, parts: list[Any]) -> tuple[Node, bool]:
        return parts[-1], len(parts) > 1

    def list_literal(self, parts: list[Any]) -> Node:
        mark, elements = parts
        optional = frozenset(i for i, (_, absent) in enumerate(elements) if absent)
        return ListLiteral(*_place(mark), [element for element, _ in elements], optional)

    def entry(self, parts: list[Any]) -> Entry:
        return Entry(parts[-2], parts[-1], optional=len(parts) > 2)

    def map_literal(self, parts: list[Any]) -> Node:
        mark, entries = parts
        return MapLiteral(*_place(mark), entries)

    def object(self, parts: list[Any]) -> Node:
        name, mark, entries = parts
        full = qualified_name(name)
        if full is None:
            _refuse(mark, "Syntax error: mismatched input '{' expecting <EOF>")
        for entry in entries:
            # The grammar allows any expression before the colon; a field needs a plain name.
            if not isinstance(entry.key, Ident):
                _refuse(mark, "Syntax error: a field has a plain name")
            entry.key = Literal(entry.key.line, entry.key.column, entry.key.name)
        return ObjectLiteral(*_place(mark), full, entries)

    def literal(self, parts: list[Any]) -> Node:
        (token,) = parts
        try:
            return Literal(*_place(token), _value(token))
        except ValueError as error:
            _refuse(token, str(error))

    def _called(self, name: str, mark: lark.Token, target: Node | None, args: list[Node]) -> Node:
        call = Call(*_place(mark), name, target, args)
        return expand_macro(call) or call

    def _check_reserved(self, name: lark.Token) -> None:
        if name in RESERVED_WORDS:
            _refuse(name, f"reserved identifier: {name}")


def parse(source: str) -> Node:
    """Return the tree of an expression, with its macros expanded.

    Raises CompilationError for text that is not an expression, longer than 100,000 characters or
    nested deeper than 250 levels.
    """
    if len(source) > LONGEST_EXPRESSION:
        message = (
            f"expression code point size exceeds limit: size: {len(source)}, "
            f"limit {LONGEST_EXPRESSION}"
        )
        raise CompilationError("", [Issue(1, 1, message)])
    try:
        root: Node = _parser().parse(source)  # type: ignore[assignment]  # the builder's result
    except ExpressionSyntaxError as problem:
        issue = Issue(problem.line, problem.column, str(problem))
        raise CompilationError(source, [issue]) from None
    except lark.exceptions.UnexpectedInput as error:
        raise CompilationError(source, [_unexpected(source, error)]) from None
    _check_limits(source, root)
    return root


def qualified_name(node: Node) -> str | None:
    """Return `a.b.c` for a chain of plain selections, or None for anything else."""
    names: list[str] = []
    while isinstance(node, Select) and not node.test and not node.optional:
        names.append(node.name)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    names.append(node.name)
    return ".".join(reversed(names))


def children(node: Node) -> Iterator[Node]:
    """Yield the child nodes."""
    match node:
        case Select():
            yield node.operand
        case Call():
            if node.target is not None:
                yield node.target
            yield from node.arguments
        case ListLiteral():
            yield from node.elements
        case MapLiteral() | ObjectLiteral():
            for entry in node.entries:
                yield entry.key
                yield entry.value
        case Comprehension():
            yield from (node.range, node.initial, node.condition, node.step, node.result)


@cache
def _parser() -> lark.Lark:
    return lark.Lark(_GRAMMAR, parser="lalr", transformer=_TreeBuilder(), maybe_placeholders=False)


def _place(token: lark.Token) -> tuple[int, int]:
    return token.line or 1, token.column or 1


def _field(name: lark.Token) -> str:
    if name in {"in", "true", "false", "null"}:
        _refuse(name, f"Syntax error: no viable alternative at input '.{name}'")
    return str(name)


def _refuse(token: lark.Token, message: str) -> NoReturn:
    raise ExpressionSyntaxError(*_place(token), message)


def _call(function: str, mark: lark.Token, *arguments: Node) -> Node:
    return Call(*_place(mark), function, None, list(arguments))


def _balanced(function: str, terms: list[Any]) -> Node:
    """Join many terms in a shallow tree: generated rules have hundreds of them."""
    operands, marks = terms[0::2], terms[1::2]

    def joined(first: int, last: int) -> Node:
        if first == last:
            node: Node = operands[first]
            return node
        middle = (first + last + 1) // 2
        left, right = joined(first, middle - 1), joined(middle, last)
        return _call(function, marks[middle - 1], left, right)

    return joined(0, len(operands) - 1)


def _unexpected(source: str, error: lark.exceptions.UnexpectedInput) -> Issue:
    if isinstance(error, lark.exceptions.UnexpectedToken):
        token = error.token
        if token.type != "$END":
            return Issue(*_place(token), f"Syntax error: extraneous or misplaced {str(token)!r}")
        lines = source.split("\n")
        return Issue(len(lines), len(lines[-1]) + 1, "Syntax error: unexpected end of the text")
    line, column = max(error.line, 1), max(error.column, 1)
    text = source.split("\n")[line - 1][column - 1 : column]
    if text == "`":
        return Issue(line, column, "unsupported syntax: '`'")
    return Issue(line, column, f"Syntax error: token recognition error at: {text!r}")


def _check_limits(source: str, root: Node) -> None:
    stack = [(root, 1)]
    issues = []
    while stack:
        node, depth = stack.pop()
        if depth > DEEPEST_EXPRESSION:
            message = f"expression recursion limit exceeded: {DEEPEST_EXPRESSION}"
            issues = [Issue(node.line, node.column, message)]
            break
        if isinstance(node, Literal) and type(node.value) is int and not in_int64(node.value):
            issues.append(Issue(node.line, node.column, "invalid int literal"))
        stack.extend((child, depth + 1) for child in children(node))
    if issues:
        raise CompilationError(source, issues)


def _value(token: lark.Token) -> bool | float | str | bytes | None:
    text = str(token)
    match token.type:
        case "TRUE" | "FALSE":
            return token.type == "TRUE"
        case "NULL":
            return None
        case "INT":
            return int(text, 16 if text.startswith("0x") else 10)
        case "UINT":
            number = int(text[:-1], 16 if text.startswith("0x") else 10)
            if number >= 1 << 64:
                raise ValueError("invalid uint literal")
            return UInt(number)
        case "FLOAT":
            value = float(text)
            if value in {float("inf"), float("-inf")}:
                raise ValueError("invalid double literal")
            return value
        case "RAW_STRING":
            return _content(text[1:])
        case "RAW_BYTES":
            return _content(text[2:]).encode()
        case "BYTES":
            return _unescaped_bytes(_content(text[1:]))
    return _unescaped(_content(text))


def _content(quoted: str) -> str:
    width = 3 if len(quoted) >= 6 and quoted[:3] in {"'''", '"""'} else 1
    return quoted[width:-width].replace("\r\n", "\n")


_ESCAPE = re.compile(
    r"""\\(?:x[0-9a-fA-F]{2}|X[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|[\s\S])"""
)
_SIMPLE = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}  # fmt: skip


def _code(escape: str) -> int | None:
    if escape[1] in "xXuU" and len(escape) > 2:
        return int.from_bytes(bytes.fromhex(escape[2:]))
    if len(escape) == 4:
        return int(escape[1:], 8)
    return None


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        escape = match[0]
        code = _code(escape)
        if code is None:
            if escape[1] not in _SIMPLE:
                raise ValueError(f"Syntax error: token recognition error at: {escape!r}")
            return _SIMPLE[escape[1]]
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise ValueError("Syntax error: unicode escape value is no character")
        return chr(code)

    return _ESCAPE.sub(one, text)


def _unescaped_bytes(text: str) -> bytes:
    result = bytearray()
    position = 0
    for match in _ESCAPE.finditer(text):
        result += text[position : match.start()].encode()
        position = match.end()
        escape = match[0]
        code = _code(escape)
        if escape[1] in "uU":
            raise ValueError("Syntax error: bytes have no unicode escapes")
        if code is None:
            if escape[1] not in _SIMPLE:
                raise ValueError(f"Syntax error: token recognition error at: {escape!r}")
            result += _SIMPLE[escape[1]].encode()
        else:
            result.append(code)
    return bytes(result + text[position:].encode())
