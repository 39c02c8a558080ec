"""The syntax of Go's text/template: parses text into a tree.

After the package documentation of text/template. Unknown functions are refused by name.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

from listwatch.observe.templates.template import TemplateSyntaxError

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
  | (?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|0[oO]?[0-7_]+\b
                      |\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+))
  | (?P<string>"(?:\\.|[^"\\\n])*")
  | (?P<raw>`[^`]*`)
  | (?P<character>'(?:\\.|[^'\\\n])+')
  | (?P<variable>\$\w*)
  | (?P<field>\.[^\W\d]\w*)
  | (?P<dot>\.)
  | (?P<sign>:=|=|\||\(|\)|,)
  | (?P<word>[^\W\d]\w*)
    """,
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)")


class Literal(NamedTuple):
    """A constant."""

    value: Any


class Field(NamedTuple):
    """Field names, each looked up in the previous value, starting at the dot; none is the dot."""

    path: tuple[str, ...]


class Variable(NamedTuple):
    """A variable, and field names looked up in it. `$` is the whole object."""

    name: str
    path: tuple[str, ...]


class Function(NamedTuple):
    """A function's name."""

    name: str


class Group(NamedTuple):
    """A pipeline in parentheses, and field names looked up in its value."""

    pipeline: "Pipeline"
    path: tuple[str, ...]


Term: TypeAlias = Literal | Field | Variable | Function | Group


class Pipeline(NamedTuple):
    """Commands, each of which gets the previous one's value as its last argument.

    Attributes:
        commands: each a function or value, and its arguments.
        variables: the variables that get the value.
        declares: the variables are new.
    """

    commands: Sequence[Sequence[Term]]
    variables: tuple[str, ...] = ()
    declares: bool = False


class Text(NamedTuple):
    """Text that stays as it is."""

    text: str


class Output(NamedTuple):
    """A pipeline whose value is printed."""

    pipeline: Pipeline


class Branch(NamedTuple):
    """An `if`, `with` or `range`."""

    word: str
    pipeline: Pipeline
    body: "Sequence[Node]"
    otherwise: "Sequence[Node]"


class Jump(NamedTuple):
    """A `break` or `continue`."""

    word: str


class Include(NamedTuple):
    """A `template`, or the place of a `block`: another template, rendered with its own dot."""

    name: str
    pipeline: Pipeline | None


Node: TypeAlias = Text | Output | Branch | Jump | Include


class Tree(NamedTuple):
    """A template, and the templates that it defines."""

    nodes: "Sequence[Node]"
    defined: "Mapping[str, Sequence[Node]]"


class _Token(NamedTuple):
    kind: str
    text: str


class _Action(NamedTuple):
    tokens: list[_Token]
    line: int


def parse(text: str, functions: Collection[str]) -> Tree:
    """Return the tree of a template.

    Args:
        text: the template.
        functions: names of the existing functions.

    Raises:
        TemplateSyntaxError: it is not a template, or uses something unsupported.
    """
    return _Parser(text, functions).parse()


def _error(text: str, line: int, what: str) -> TemplateSyntaxError:
    return TemplateSyntaxError(f"error parsing template {text}: line {line}: {what}")


def _cut(text: str) -> Iterator[str | _Action]:
    """Yield text and actions, trimmed as the actions' dashes ask."""
    at, trim_next = 0, False
    while True:
        start = text.find("{{", at)
        piece = text[at:] if start < 0 else text[at:start]
        if trim_next:
            piece = piece.lstrip()
        if start < 0:
            if piece:
                yield piece
            return
        line = text.count("\n", 0, start) + 1
        at = start + 2
        if text[at : at + 1] == "-" and text[at + 1 : at + 2].isspace():
            piece = piece.rstrip()
            at += 1
        if piece:
            yield piece
        comment = re.compile(r"\s*/\*.*?\*/", re.DOTALL).match(text, at)
        if comment is not None:
            at = comment.end()
            tokens = None
        else:
            tokens, at = _tokens(text, at, line)
        end = re.compile(r"\s+-\}\}|\s*\}\}").match(text, at)
        if end is None:
            raise _error(
                text, line, "unclosed action" if tokens is not None else "unclosed comment"
            )
        trim_next = end[0].lstrip().startswith("-")
        at = end.end()
        if tokens is not None:
            yield _Action(tokens, line)


def _tokens(text: str, at: int, line: int) -> tuple[list[_Token], int]:
    tokens: list[_Token] = []
    while not re.compile(r"\s*\}\}|\s+-\}\}").match(text, at):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            if at >= len(text):
                raise _error(text, line, "unclosed action")
            raise _error(text, line, f"unexpected {text[at]!r} in action")
        tokens.append(_Token(match.lastgroup, match[0]))
        at = match.end()
    return tokens, at


class _Parser:
    def __init__(self, text: str, functions: Collection[str]) -> None:
        self._text = text
        self._functions = functions
        self._pieces = list(_cut(text))
        self._at = 0
        self._line = 1
        self._tokens: list[_Token] = []
        self._token_at = 0
        self._variables = ["$"]
        self._loops = 0
        self._depth = 0
        self._defined: dict[str, Sequence[Node]] = {}

    def parse(self) -> Tree:
        nodes, end = self._nodes()
        if end:
            raise self._error(f"unexpected {{{{{end}}}}}")
        return Tree(nodes, self._defined)

    def _error(self, what: str) -> TemplateSyntaxError:
        return _error(self._text, self._line, what)

    # --- Text and actions ---

    def _nodes(self) -> tuple[list[Node], str]:
        """Return nodes, and the word that ended them: end, else, or "" at the text's end."""
        nodes: list[Node] = []
        while self._at < len(self._pieces):
            piece = self._pieces[self._at]
            self._at += 1
            if isinstance(piece, str):
                nodes.append(Text(piece))
                continue
            self._line = piece.line
            self._tokens, self._token_at = piece.tokens, 0
            self._skip()
            word = self._peek().text if self._peek().kind == "word" else ""
            if word in {"end", "else"}:
                self._token_at += 1
                return nodes, word
            if word == "define":
                self._define()
            else:
                nodes.append(self._action(word))
        return nodes, ""

    def _define(self) -> None:
        if self._depth:
            raise self._error("unexpected {{define}}")
        self._token_at += 1
        name = self._name("define clause")
        self._done("define clause")
        self._body(name)

    def _body(self, name: str) -> None:
        """Read the body of a template up to its end; it sees no variables from outside."""
        outside, self._variables = self._variables, ["$"]
        loops, self._loops = self._loops, 0
        self._depth += 1
        body, end = self._nodes()
        self._depth -= 1
        self._variables, self._loops = outside, loops
        if end != "end":
            raise self._error("unexpected {{else}}" if end else "unexpected EOF")
        self._defined[name] = body

    def _name(self, context: str) -> str:
        token = self._next()
        if token.kind == "raw":
            return token.text[1:-1]
        if token.kind != "string":
            raise self._error(f"unexpected {token.text!r} in {context}")
        return str(self._constant(_unescape, token.text[1:-1]))

    def _include(self, word: str) -> Include:
        self._token_at += 1
        name = self._name(f"{word} clause")
        self._skip()
        pipeline = None
        if self._peek().kind != "end" or word == "block":
            pipeline = self._pipeline(word)
        self._done(word)
        if word == "block":
            self._body(name)
        return Include(name, pipeline)

    def _action(self, word: str) -> Node:
        if word in {"template", "block"}:
            return self._include(word)
        if word in {"if", "with", "range"}:
            self._token_at += 1
            return self._branch(word)
        if word in {"break", "continue"}:
            self._token_at += 1
            if not self._loops:
                raise self._error(f"{{{{{word}}}}} outside {{{{range}}}}")
            self._done(word)
            return Jump(word)
        pipeline = self._pipeline("command")
        self._done("command")
        return Output(pipeline)

    def _branch(self, word: str) -> Branch:
        scope = len(self._variables)
        pipeline = self._pipeline(word)
        self._done(word)
        self._loops += word == "range"
        self._depth += 1
        body, end = self._nodes()
        self._loops -= word == "range"
        otherwise: Sequence[Node] = ()
        if end == "else":
            self._skip()
            again = self._peek().text if self._peek().kind == "word" else ""
            if again in {"if", "with"} and word != "range":
                self._token_at += 1
                otherwise = [self._branch(again)]
                end = "end"
            else:
                self._done("else")
                otherwise, end = self._nodes()
        if end != "end":
            raise self._error("unexpected {{else}}" if end else "unexpected EOF")
        self._depth -= 1
        del self._variables[scope:]
        return Branch(word, pipeline, body, otherwise)

    # --- Pipelines ---

    def _pipeline(self, context: str) -> Pipeline:
        variables, declares = self._assignment(context)
        commands: list[Sequence[Term]] = []
        while True:
            command = self._command()
            if not command:
                raise self._error(f"missing value for {context}")
            if commands and not isinstance(command[0], Function):
                raise self._error(f"non executable command in pipeline stage {len(commands) + 1}")
            commands.append(command)
            if not self._take("|"):
                break
        if declares:
            self._variables += variables
        return Pipeline(commands, variables, declares)

    def _assignment(self, context: str) -> tuple[tuple[str, ...], bool]:
        start = self._token_at
        names: list[str] = []
        while (token := self._next()).kind == "variable" and token.text != "$":
            names.append(token.text)
            self._skip()
            if context == "range" and len(names) == 1 and self._take(","):
                self._skip()
                continue
            for sign in (":=", "="):
                if self._take(sign):
                    for name in names if sign == "=" else ():
                        self._known(name)
                    return tuple(names), sign == ":="
            break
        self._token_at = start
        return (), False

    def _command(self) -> list[Term]:
        terms: list[Term] = []
        while True:
            spaced = self._skip()
            token = self._peek()
            if token.kind == "end" or token.text in {"|", ")"}:
                return terms
            if terms and not spaced:
                raise self._error(f"unexpected {token.text!r} in operand")
            terms.append(self._term())

    def _term(self) -> Term:
        token = self._next()
        match token.kind:
            case "number":
                return Literal(self._constant(_number, token.text))
            case "string":
                return Literal(self._constant(_unescape, token.text[1:-1]))
            case "raw":
                return Literal(token.text[1:-1])
            case "character":
                return Literal(self._constant(_character, token.text[1:-1]))
            case "dot":
                return Field(())
            case "field":
                return Field((token.text[1:], *self._path()))
            case "variable":
                self._known(token.text)
                return Variable(token.text, self._path())
            case "word":
                return self._word(token.text)
        if token.text == "(":
            pipeline = self._pipeline("parenthesized pipeline")
            self._skip()
            if not self._take(")"):
                raise self._error("unclosed left paren")
            return Group(pipeline, self._path())
        raise self._error(f"unexpected {token.text!r} in command")

    def _constant(self, read: Callable[[str], Any], text: str) -> Any:
        try:
            return read(text)
        except (ValueError, OverflowError):
            raise self._error(f"bad constant {text[:60]}") from None

    def _word(self, word: str) -> Term:
        if word in {"true", "false"}:
            return Literal(word == "true")
        if word == "nil":
            return Literal(None)
        if word not in self._functions:
            raise self._error(f'function "{word}" not defined')
        return Function(word)

    def _path(self) -> tuple[str, ...]:
        names: list[str] = []
        while self._peek().kind == "field":
            names.append(self._next().text[1:])
        return tuple(names)

    def _known(self, name: str) -> None:
        if name not in self._variables:
            raise self._error(f'undefined variable "{name}"')

    # --- Tokens ---

    def _peek(self) -> _Token:
        if self._token_at < len(self._tokens):
            return self._tokens[self._token_at]
        return _Token("end", "")

    def _next(self) -> _Token:
        self._skip()
        token = self._peek()
        self._token_at += 1
        return token

    def _skip(self) -> bool:
        if self._peek().kind == "space":
            self._token_at += 1
            return True
        return False

    def _take(self, sign: str) -> bool:
        if self._peek() == ("sign", sign):
            self._token_at += 1
            return True
        return False

    def _done(self, context: str) -> None:
        self._skip()
        if self._peek().kind != "end":
            raise self._error(f"unexpected {self._peek().text!r} in {context}")


def _number(text: str) -> float:
    plain = text.replace("_", "")
    try:
        return int(plain, 0)
    except ValueError:
        digits = plain.lstrip("+-")
        if digits.isdigit() and digits.startswith("0"):
            return int(plain, 8)
        value = float(plain)
        if not isfinite(value):
            raise
        return value


def _character(text: str) -> int:
    letters = _unescape(text)
    if len(letters) != 1:
        raise ValueError(text)
    return ord(letters)


def _unescape(text: str) -> str:
    def letter(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
            if 0xD800 <= number < 0xE000:
                raise ValueError(text)
            return chr(number)
        return chr(int(code, 8)) if len(code) == 3 else _ESCAPES.get(code, code)

    return _ESCAPE.sub(letter, text)
