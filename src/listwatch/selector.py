"""Label and field selectors: parse, print, match.

The grammar, the order of the terms and the error messages are those of Kubernetes'
`apimachinery/pkg/labels`, `pkg/fields` and `pkg/util/validation`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Self, TypeAlias

import msgspec

from listwatch.errors import ListWatchError


class SelectorError(ListWatchError):
    """A selector that can't be parsed; the message is an API server's."""


class Operator(Enum):
    """The operator of a term of a label selector."""

    IN = "in"
    NOT_IN = "notin"
    EQUALS = "="
    DOUBLE_EQUALS = "=="
    NOT_EQUALS = "!="
    EXISTS = "exists"
    DOES_NOT_EXIST = "!"
    GREATER_THAN = ">"
    LESS_THAN = "<"


#: Takes bytes, and the start and end of the labels in them.
JSONMatcher: TypeAlias = Callable[[bytes, int, int], bool]

_encode = msgspec.json.Encoder().encode


class LabelRequirement(msgspec.Struct, frozen=True):
    """One term of a label selector; `values` are sorted and unique."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with these labels meets the term."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN | Operator.EQUALS | Operator.DOUBLE_EQUALS:
                return value is not None and value in self.values
            case Operator.NOT_IN | Operator.NOT_EQUALS:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
        number = None if value is None else _int64(value)
        bound = _int64(self.values[0])
        if number is None or bound is None:
            return False
        return number > bound if self.operator is Operator.GREATER_THAN else number < bound

    def __str__(self) -> str:
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return "!" + self.key
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator.value} ({','.join(self.values)})"
        return f"{self.key}{self.operator.value}{self.values[0]}"


class LabelSelector(msgspec.Struct, frozen=True):
    """Terms that must all hold; no terms match everything. Hashable, usable as a dict key.

    `str()` is the canonical form, which `parse_label_selector` parses to an equal selector.
    """

    requirements: tuple[LabelRequirement, ...] = ()
    #: True for the selector that matches no object (`from_dict(None)`).
    nothing: bool = False

    @classmethod
    def from_dict(cls, selector: Mapping[str, Any] | None) -> Self:
        """Return a selector from `matchLabels` and `matchExpressions`; None matches nothing.

        An empty mapping matches everything.

        Raises:
            SelectorError: an unknown operator, or values that don't fit it.
        """
        if selector is None:
            return cls(nothing=True)
        requirements = [
            _requirement(key, Operator.EQUALS, [value])
            for key, value in (selector.get("matchLabels") or {}).items()
        ]
        for expression in selector.get("matchExpressions") or ():
            name = expression.get("operator")
            operator = _EXPRESSION_OPERATORS.get(name)
            if operator is None:
                raise SelectorError(f'"{name}" is not a valid label selector operator')
            requirements.append(
                _requirement(expression.get("key", ""), operator, expression.get("values") or ())
            )
        return cls(tuple(sorted(requirements, key=lambda requirement: requirement.key)))

    @property
    def is_everything(self) -> bool:
        """Whether it matches every object, having no terms."""
        return not self.requirements and not self.nothing

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with these labels meets every term."""
        if self.nothing:
            return False
        for requirement in self.requirements:  # noqa: SIM110 - a loop is faster than all()
            if not requirement.matches(labels):
                return False
        return True

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


def json_matcher(selector: LabelSelector) -> JSONMatcher | None:
    """Return a matcher for labels that are JSON within larger bytes.

    The JSON must be compact: ASCII without spaces, escapes and nulls. None for a selector whose
    terms can't be decided this way: those that compare numbers.
    """
    terms: list[tuple[tuple[bytes, ...], bool]] = []
    for requirement in selector.requirements:
        if requirement.operator in {Operator.GREATER_THAN, Operator.LESS_THAN}:
            return None
        negated = {Operator.NOT_IN, Operator.NOT_EQUALS, Operator.DOES_NOT_EXIST}
        key = _encode(requirement.key) + b":"
        # An unescaped quote starts or ends a string, and only a key is followed by a colon.
        needles = tuple(key + _encode(value) for value in requirement.values) or (key,)
        terms.append((needles, requirement.operator not in negated))
    if selector.nothing:
        return lambda _data, _begin, _end: False

    def matches(data: bytes, begin: int, end: int) -> bool:
        for needles, wanted in terms:
            for needle in needles:
                if data.find(needle, begin, end) >= 0:
                    if not wanted:
                        return False
                    break
            else:
                if wanted:
                    return False
        return True

    return matches


class FieldRequirement(msgspec.Struct, frozen=True):
    """One term of a field selector: the field equals the value, or differs from it."""

    field: str
    value: str
    negated: bool = False

    def __str__(self) -> str:
        value = re.sub(r"[\\,=]", r"\\\g<0>", self.value)
        return f"{self.field}{'!=' if self.negated else '='}{value}"


class FieldSelector(msgspec.Struct, frozen=True):
    """Terms that must all hold; no terms match everything. `str()` is the canonical form."""

    requirements: tuple[FieldRequirement, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Whether it matches every object, having no terms."""
        return not self.requirements

    def matches(self, value_of: Callable[[str], str | None]) -> bool:
        """Return whether an object meets every term.

        Args:
            value_of: returns the value of the field of this name; None counts as "".
        """
        for requirement in self.requirements:
            equal = (value_of(requirement.field) or "") == requirement.value
            if equal is requirement.negated:
                return False
        return True

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


#: The label selector that every object matches.
EVERYTHING = LabelSelector()
#: The field selector that every object matches.
EVERY_FIELD = FieldSelector()

_EXPRESSION_OPERATORS = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.DOES_NOT_EXIST,
}

_SPACE = " \t\r\n"
_TOKEN = re.compile(r"[ \t\r\n]*(==|!=|[=!(),<>]|[^ \t\r\n=!(),<>]+)")
_SYMBOLS = frozenset(("=", "==", "!=", "!", "(", ")", ",", "<", ">"))
_BINARY_OPERATORS = {
    operator.value: operator
    for operator in (
        Operator.IN,
        Operator.NOT_IN,
        Operator.EQUALS,
        Operator.DOUBLE_EQUALS,
        Operator.NOT_EQUALS,
        Operator.GREATER_THAN,
        Operator.LESS_THAN,
    )
}

_NAME_WORDS = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_WORDS = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_SUBDOMAIN_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def subdomain_problems(text: str) -> list[str]:
    """Return why a text is not an RFC 1123 subdomain, in a server's words."""
    problems = []
    if len(text) > 253:
        problems.append("must be no more than 253 characters")
    if not _SUBDOMAIN.fullmatch(text):
        problems.append(_SUBDOMAIN_WORDS)
    return problems


_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def dns_label_problems(text: str) -> list[str]:
    """Return why a text is not an RFC 1035 label, such as the name of a Service, in words."""
    problems = []
    if len(text) > 63:
        problems.append("must be no more than 63 characters")
    if not _DNS_LABEL.fullmatch(text):
        problems.append(
            "must consist of lower case letters, digits and '-', begin with a letter, and not end "
            "with '-'"
        )
    return problems


#: The length of the longest label or annotation key.
_LONGEST_KEY = 253 + len("/") + 63


def qualified_name_problems(text: str) -> list[str]:
    """Return why a text is not a label or annotation key, in a server's words."""
    if len(text) > _LONGEST_KEY:  # such texts must not fill the cache
        return list(_key_problems.__wrapped__(text))
    return list(_key_problems(text))


@lru_cache(maxsize=4096)
def _key_problems(text: str) -> Sequence[str]:
    prefix, slash, name = text.partition("/")
    if not slash:
        prefix, name = "", text
    elif "/" in name:
        return [
            (
                f"a qualified name {_NAME_WORDS} with an optional DNS subdomain prefix and '/' "
                "(e.g. 'example.com/MyName')"
            )
        ]
    problems = []
    if slash:
        if not prefix:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {problem}" for problem in subdomain_problems(prefix)]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 characters")
    if not _NAME.fullmatch(name):
        problems.append(f"name part {_NAME_WORDS}")
    return problems


def label_value_problems(text: str) -> list[str]:
    """Return why a text is not a label value, in a server's words."""
    problems = []
    if len(text) > 63:
        problems.append("must be no more than 63 characters")
    if text and not _NAME.fullmatch(text):
        problems.append(_LABEL_VALUE_WORDS)
    return problems


def parse_label_selector(text: str) -> LabelSelector:
    """Parse a label selector such as `app in (web,db),tier!=back,!old,rev>3`.

    Raises:
        SelectorError: the syntax is wrong, or a key or value is invalid.
    """
    return _LabelParser(text).parse() if text else EVERYTHING


def parse_field_selector(text: str) -> FieldSelector:
    r"""Read a field selector such as `metadata.name=a,status.phase!=Running`.

    In values, a backslash stands before a comma, an equals sign or a backslash.

    Raises:
        SelectorError: a term without operator, or a wrong escape.
    """
    requirements = []
    for term in re.findall(r"(?:\\.|[^,\\]|\\$)+", text, re.DOTALL):
        found = re.search(r"!=|==|=", term)
        if found is None:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")
        value = _unescape(term[found.end() :])
        requirements.append(FieldRequirement(term[: found.start()], value, found[0] == "!="))
    return FieldSelector(tuple(requirements)) if requirements else EVERY_FIELD


def _unescape(value: str) -> str:
    if "\\" not in value and "=" not in value:
        return value
    result = []
    characters = iter(value)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            if escaped not in ("\\", ",", "="):
                raise SelectorError(f"invalid field selector: invalid escape sequence: \\{escaped}")
            result.append(escaped)
        elif character == "=":
            # the server prints the character's code here
            raise SelectorError("invalid field selector: unescaped character in value: 61")
        else:
            result.append(character)
    return "".join(result)


def _int64(text: str) -> int | None:
    # int() alone would accept spaces, underscores and digits of other scripts
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        return None
    number = int(text) if len(text) < 21 else 1 << 63
    return number if -(1 << 63) <= number < 1 << 63 else None


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _requirement(
    key: str, operator: Operator, values: Sequence[str], path: str = "key"
) -> LabelRequirement:
    problems = _key_problem(key, path)
    match operator:
        case Operator.IN | Operator.NOT_IN:
            if not values:
                problems.append(
                    "values: Invalid value: []: for 'in', 'notin' operators, values set can't "
                    "be empty"
                )
        case Operator.EXISTS | Operator.DOES_NOT_EXIST:
            if values:
                problems.append(
                    f"values: Invalid value: [{','.join(map(_quoted, values))}]: values set must "
                    "be empty for exists and does not exist"
                )
        case Operator.GREATER_THAN | Operator.LESS_THAN if _int64(values[0]) is None:
            problems.append(
                f"values[0]: Invalid value: {_quoted(values[0])}: for 'Gt', 'Lt' operators, the "
                "value must be an integer"
            )
    for position, value in enumerate(values):
        wrong = label_value_problems(value)
        if wrong:
            problems.append(
                f"values[{position}][{key}]: Invalid value: {_quoted(value)}: {'; '.join(wrong)}"
            )
    if problems:
        raise SelectorError(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")
    return LabelRequirement(key, operator, tuple(sorted(set(values))))


def _key_problem(key: str, path: str) -> list[str]:
    problems = qualified_name_problems(key)
    return [f"{path}: Invalid value: {_quoted(key)}: {'; '.join(problems)}"] if problems else []


class _LabelParser:
    """Recursive descent over the tokens; "" is the end."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text.rstrip(_SPACE))
        self._at = 0

    def _look(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._look()
        self._at += 1
        return token

    def parse(self) -> LabelSelector:
        requirements: list[LabelRequirement] = []
        while token := self._look():
            if token in _SYMBOLS and token != "!":  # noqa: S105 - a token of a grammar
                raise SelectorError(f"found '{token}', expected: !, identifier, or 'end of string'")
            try:
                requirements.append(self._requirement())
            except SelectorError as error:
                raise SelectorError(f"unable to parse requirement: {error}") from None
            token = self._take()
            if not token:
                break
            if token != ",":  # noqa: S105 - as above
                raise SelectorError(f"found '{token}', expected: ',' or 'end of string'")
            token = self._look()
            if not token or (token in _SYMBOLS and token != "!"):  # noqa: S105 - as above
                raise SelectorError(f"found '{token}', expected: identifier after ','")
        return LabelSelector(tuple(sorted(requirements, key=lambda term: term.key)))

    def _requirement(self) -> LabelRequirement:
        token = self._take()
        negated = token == "!"  # noqa: S105 - a token of a grammar
        key = self._take() if negated else token
        if not key or key in _SYMBOLS:
            raise SelectorError(f"found '{key}', expected: identifier")
        # Go prints <nil> for the path of a key that is checked during parsing
        problems = _key_problem(key, "<nil>")
        if problems:
            raise SelectorError(problems[0])
        if negated:
            return _requirement(key, Operator.DOES_NOT_EXIST, ())
        if self._look() in ("", ","):
            return _requirement(key, Operator.EXISTS, ())
        token = self._take()
        operator = _BINARY_OPERATORS.get(token)
        if operator is None:
            raise SelectorError(f"found '{token}', expected: in, notin, =, ==, !=, gt, lt")
        if operator in (Operator.IN, Operator.NOT_IN):
            return _requirement(key, operator, self._values())
        if self._look() in ("", ","):
            return _requirement(key, operator, ("",))
        value = self._take()
        if value in _SYMBOLS:
            raise SelectorError(f"found '{value}', expected: identifier")
        return _requirement(key, operator, (value,))

    def _values(self) -> list[str]:
        token = self._take()
        if token != "(":  # noqa: S105 - a token of a grammar
            raise SelectorError(f"found '{token}' expected: '('")
        if not self._look() or (self._look() in _SYMBOLS and self._look() not in (",", ")")):
            raise SelectorError(f"found '{self._look()}', expected: ',', ')' or identifier")
        # nothing between parentheses and commas is the empty value
        values: set[str] = set()
        value = ""
        while True:
            token = self._take()
            if token in (",", ")"):
                values.add(value)
                value = ""
                if token == ")":  # noqa: S105 - a token of a grammar
                    return sorted(values)
            elif not token or token in _SYMBOLS:
                words = "',' or ')'" if value else "',', or identifier"
                raise SelectorError(f"found '{token}', expected: {words}")
            elif value:
                raise SelectorError(f"found '{token}', expected: ',' or ')'")
            else:
                value = token
