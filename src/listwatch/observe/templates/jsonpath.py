r"""Templates in kubectl's dialect of JSONPath.

Text with expressions in braces: `{.metadata.name}`, `{.spec.ports[*].port}`, `['a.b']`, `\.`,
`..name`, `[0]`, `[-1]`, `[0:2]`, `[0,2]`, `[?(@.x=="y")]`, `{range …}…{end}`, `{"\n"}`. The rules
are those of the Kubernetes documentation ("JSONPath Support"); they differ from RFC 9535. Three
things that kubectl gets wrong work here: `$` in a filter is the whole object, a quoted key may
hold dots and commas without a backslash, and values of different types compare as unequal.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

from listwatch.objects import Object
from listwatch.observe.templates.template import (
    COMPARISONS,
    Effort,
    TemplateError,
    TemplateLimitError,
    TemplateSyntaxError,
    json_text,
    scalar_text,
)

_NAME_ENDS = frozenset(".,[](){}$@ \t\r\n=!<>")
_SLICE = re.compile(r"(-?\d{0,18})(?:(:)(-?\d{0,18}))?(?:(:)(-?\d{0,18}))?")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
_OPERATOR = re.compile(r"==|!=|<=|>=|<|>")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}

Values: TypeAlias = list[Any]
#: One step of a path: from the values reached so far to the next ones.
Step: TypeAlias = Callable[[Values, "_Evaluation"], Values]


class _Evaluation(NamedTuple):
    root: Any
    allow_missing: bool
    effort: Effort


class _Text(NamedTuple):
    text: str


class _Expression(NamedTuple):
    steps: Sequence[Step]

    def values(self, start: Values, evaluation: _Evaluation) -> Values:
        for step in self.steps:
            start = step(start, evaluation)
            evaluation.effort.spend(1 + len(start))
        return start


class _Range(NamedTuple):
    over: _Expression
    body: "Sequence[_Node]"


_Node: TypeAlias = _Text | _Expression | _Range


class JSONPathTemplate:
    """A JSONPath template.

    Args:
        text: the template.
        allow_missing_keys: a missing key yields no value instead of an error. An index out of
            bounds is always an error.
        as_json: render each expression's values as a JSON array (`-o jsonpath-as-json`).

    Raises:
        TemplateSyntaxError: the text is not a template.
    """

    def __init__(
        self, text: str, *, allow_missing_keys: bool = True, as_json: bool = False
    ) -> None:
        try:
            self._nodes = _Parser(text).template()
        except RecursionError:
            raise TemplateSyntaxError("error parsing jsonpath: nested too deeply") from None
        self._allow_missing = allow_missing_keys
        self._as_json = as_json

    def render(self, obj: Object) -> str:
        """Return the text for this object.

        Raises:
            TemplateError: a key is missing and that is not allowed, an index is out of bounds,
                or a value has the wrong type.
        """
        return self.render_value(obj.to_dict())

    def render_value(self, value: Any) -> str:
        """Return the text for a decoded JSON value; raises as `render`."""
        evaluation = _Evaluation(value, self._allow_missing, Effort())
        pieces: list[str] = []
        try:
            for piece in self._render(self._nodes, value, evaluation):
                evaluation.effort.spend(letters=len(piece))
                pieces.append(piece)
        except RecursionError:
            raise TemplateLimitError("nested too deeply") from None
        return "".join(pieces)

    def _render(self, nodes: Sequence[_Node], value: Any, evaluation: _Evaluation) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, _Text):
                yield json_text([node.text], indent=4) + "\n" if self._as_json else node.text
            elif isinstance(node, _Range):
                for item in node.over.values([value], evaluation):
                    evaluation.effort.spend()
                    yield from self._render(node.body, item, evaluation)
            else:
                values = node.values([value], evaluation)
                if self._as_json:
                    yield json_text(values, indent=4) + "\n"
                else:
                    yield " ".join(map(_value_text, values))


def _value_text(value: Any) -> str:
    return json_text(value) if isinstance(value, dict | list) else scalar_text(value, null="null")


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    # --- The template: text and actions ---

    def template(self) -> list[_Node]:
        return self._nodes(depth=0)

    def _nodes(self, depth: int) -> list[_Node]:
        nodes: list[_Node] = []
        while self._at < len(self._text):
            start = self._text.find("{", self._at)
            end = len(self._text) if start < 0 else start
            if end > self._at:
                nodes.append(_Text(self._text[self._at : end]))
            self._at = end + 1
            if start < 0:
                break
            word = self._word_of_action()
            if word == "end":
                if not depth:
                    raise self._error("{end} without {range}", start)
                self._close(start)
                return nodes
            expression = self._action(start)
            if word == "range":
                nodes.append(_Range(expression, self._nodes(depth + 1)))
            else:
                nodes.append(expression)
        return nodes  # as in kubectl, a range without an end ends with the template

    def _word_of_action(self) -> str:
        match = re.compile(r"\s*(range|end)(?=[\s}.\[$@])").match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[1]

    def _close(self, start: int) -> None:
        self._spaces()
        if not self._take("}"):
            raise self._error("unclosed action", start)

    def _action(self, start: int) -> _Expression:
        steps = self._steps("}", start)
        self._close(start)
        return _Expression(steps)

    # --- Expressions ---

    def _steps(self, ends: str, start: int) -> list[Step]:
        """Parse steps up to one of the end characters, an operator or a closing bracket."""
        steps: list[Step] = []
        while True:
            self._spaces()
            at, character = self._at, self._peek()
            if not character:
                raise self._error("unclosed action", start)
            if character in ends or (")" in ends and _OPERATOR.match(self._text, at)):
                return steps
            self._at += 1
            if character == "@":
                continue
            if character == "$":
                steps.append(_root)
            elif character == ".":
                if self._take("."):
                    steps.append(_descendants)
                    if self._peek() not in {"[", "}", ""}:
                        steps.append(self._field())
                else:
                    steps.append(self._field())
            elif character == "[":
                steps.append(self._brackets(at))
            elif character in {'"', "'"}:
                steps.append(_constant(self._quoted(character, at)))
            else:
                self._at = at
                steps.append(_constant(self._literal()))

    def _field(self) -> Step:
        name = self._name()
        if name == "*":
            return _children
        return _field(name) if name else _self

    def _name(self) -> str:
        letters: list[str] = []
        while (character := self._peek()) and character not in _NAME_ENDS:
            self._at += 1
            if character == "\\":
                character = self._peek()
                self._at += 1
            letters.append(character)
        return "".join(letters)

    def _literal(self) -> Any:
        if number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            value = float(number[0])
            if not isfinite(value):
                raise self._error("number out of range", number.start())
            return value if number[1] or number[2] else int(number[0])
        start, word = self._at, self._name()
        if word in {"true", "false"}:
            return word == "true"
        if not word:
            raise self._error(f"unrecognized character in action: {self._text[start]!r}", start)
        raise self._error(f"unrecognized identifier {word}", start)

    def _quoted(self, quote: str, start: int) -> str:
        letters: list[str] = []
        while character := self._peek():
            self._at += 1
            if character == quote:
                return "".join(letters)
            if character == "\\":
                escape = self._peek()
                self._at += 1
                if escape == "u":
                    code = self._text[self._at : self._at + 4]
                    if not re.fullmatch("[0-9a-fA-F]{4}", code):
                        raise self._error(f"invalid escape \\u{code}", start)
                    self._at += 4
                    character = chr(int(code, 16))
                    if "\ud800" <= character <= "\udfff":
                        raise self._error(f"invalid escape \\u{code}", start)
                else:
                    character = _ESCAPES.get(escape, escape)
            letters.append(character)
        raise self._error("unterminated quoted string", start)

    # --- Brackets: indices, slices, keys, unions, filters ---

    def _brackets(self, start: int) -> Step:
        if self._take("?("):
            return self._filter(start)
        choices: list[Step] = []
        while True:
            self._spaces()
            quote = self._peek()
            if quote and quote in "'\"":
                self._at += 1
                choices.append(_field(self._quoted(quote, start)))
            elif self._take("*"):
                choices.append(_slice(None, None, None))
            else:
                choices.append(self._slice(start))
            self._spaces()
            if self._take("]"):
                return choices[0] if len(choices) == 1 else _union(choices)
            if not self._take(","):
                if not self._text[self._at :].strip() or self._peek() == "}":
                    raise self._error("unterminated array", start)
                raise self._error(f"invalid array index {self._text[self._at]!r}", start)

    def _slice(self, start: int) -> Step:
        match = _SLICE.match(self._text, self._at)
        assert match is not None  # noqa: S101 - the pattern matches the empty text
        if not match[0] or match[0] == "-":
            closed = "]" in self._text[self._at :]
            raise self._error("invalid array index" if closed else "unterminated array", start)
        self._at = match.end()
        first, colon, last, _, step = match.groups()
        if not colon:
            return _index(int(first))
        return _slice(_integer(first), _integer(last), _integer(step))

    def _filter(self, start: int) -> Step:
        left = _Expression(self._steps(")", start))
        operator = _OPERATOR.match(self._text, self._at)
        right = None
        if operator is not None:
            self._at = operator.end()
            right = _Expression(self._steps(")", start))
        self._spaces()
        if not self._take(")"):
            raise self._error("unclosed filter", start)
        self._spaces()
        if not self._take("]"):
            raise self._error("unclosed array expect ]", start)
        if not left.steps:
            left = _Expression([_self])
        return _filter(left, operator[0] if operator else "exists", right)

    # --- Characters ---

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _spaces(self) -> None:
        while self._peek().isspace():
            self._at += 1

    def _error(self, what: str, at: int) -> TemplateSyntaxError:
        return TemplateSyntaxError(
            f"error parsing jsonpath {self._text}: {what} (at character {at + 1})"
        )


def _integer(text: str | None) -> int | None:
    return int(text) if text and text != "-" else None


# --- Steps ---------------------------------------------------------------------------------------


def _self(values: Values, _: _Evaluation) -> Values:
    return values


def _root(_: Values, evaluation: _Evaluation) -> Values:
    return [evaluation.root]


def _constant(value: Any) -> Step:
    return lambda _values, _evaluation: [value]


def _field(name: str) -> Step:
    def step(values: Values, evaluation: _Evaluation) -> Values:
        found = [value[name] for value in values if isinstance(value, Mapping) and name in value]
        if values and not found and not evaluation.allow_missing:
            raise TemplateError(f"{name} is not found")
        return found

    return step


def _children(values: Values, _: _Evaluation) -> Values:
    return [child for value in values for child in _children_of(value)]


def _children_of(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _descendants(values: Values, evaluation: _Evaluation) -> Values:
    found: Values = []
    for value in values:
        if isinstance(value, dict | list) and value:
            evaluation.effort.spend()
            found.append(value)
            found += _descendants(list(_children_of(value)), evaluation)
    return found


def _union(choices: Sequence[Step]) -> Step:
    def step(values: Values, evaluation: _Evaluation) -> Values:
        return [found for choice in choices for found in choice(values, evaluation)]

    return step


def _arrays(values: Values) -> Iterator[list[Any]]:
    for value in values:
        if value is None:
            continue
        if not isinstance(value, list):
            raise TemplateError(f"{json_text(value)[:60]} is not an array")
        yield value


def _index(index: int) -> Step:
    def step(values: Values, _: _Evaluation) -> Values:
        found: Values = []
        for array in _arrays(values):
            if not -len(array) <= index < len(array):
                raise _out_of_bounds(index if index >= 0 else index + len(array), array)
            found.append(array[index])
        return found

    return step


def _slice(first: int | None, last: int | None, by: int | None) -> Step:
    def step(values: Values, _: _Evaluation) -> Values:
        found: Values = []
        for array in _arrays(values):
            start, stop = _bound(first, 0, array), _bound(last, len(array), array)
            if start == stop:
                continue
            if not 0 <= start < len(array):
                raise _out_of_bounds(start, array)
            if not 0 <= stop <= len(array):
                raise _out_of_bounds(stop - 1, array)
            if start > stop:
                raise TemplateError(f"starting index {start} is greater than ending index {stop}")
            if by is not None and by <= 0:
                raise TemplateError("step must be > 0")
            found += array[start:stop:by]
        return found

    return step


def _out_of_bounds(index: int, array: list[Any]) -> TemplateError:
    return TemplateError(f"array index out of bounds: index {index}, length {len(array)}")


def _bound(index: int | None, default: int, array: list[Any]) -> int:
    if index is None:
        return default
    return index + len(array) if index < 0 else index


def _filter(left: _Expression, operator: str, right: _Expression | None) -> Step:
    def keeps(item: Any, evaluation: _Evaluation) -> bool:
        if right is None:
            return bool(left.values([item], evaluation._replace(allow_missing=True)))
        sides = [side.values([item], evaluation) for side in (left, right)]
        if not all(sides):
            return False
        if any(len(side) > 1 for side in sides):
            raise TemplateError("a filter can only compare one element at a time")
        return COMPARISONS[operator](sides[0][0], sides[1][0])

    def step(values: Values, evaluation: _Evaluation) -> Values:
        return [item for array in _arrays(values) for item in array if keeps(item, evaluation)]

    return step
