"""YAML as Go's tools parse it, which decides for kubeconfig files.

PyYAML implements YAML 1.1 strictly. Go's parser (`sigs.k8s.io/yaml`, from `go-yaml` v2) has neither
dates nor sexagesimal numbers, treats `y` and `n` as booleans, accepts tabs between tokens, and
reads the first of several documents.
"""

import base64
import codecs
import math
import re
from typing import Any, Final

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

_TAG: Final = "tag:yaml.org,2002:"
_STR: Final = f"{_TAG}str"
_TRUE: Final = ("y", "yes", "true", "on")
_FALSE: Final = ("n", "no", "false", "off")
_WORDS: Final[dict[str, tuple[str, object]]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), ("null", None)),
    **{
        form: ("bool", value)
        for value, words in (
            (True, ("y", "yes", "true", "on")),
            (False, ("n", "no", "false", "off")),
        )
        for word in words
        for form in (word, word.capitalize(), word.upper())
    },
    **dict.fromkeys((".nan", ".NaN", ".NAN"), ("float", float("nan"))),
    **{
        f"{sign}.{form}": ("float", float(f"{sign}inf"))
        for sign in ("", "+", "-")
        for form in ("inf", "Inf", "INF")
    },
}
_INT: Final = re.compile(
    r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|([1-9][0-9]*|0))"
)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_BETWEEN_DIGITS: Final = re.compile("(?<=[0-9])_(?=[0-9])")
_BOMS: Final = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_HALF: Final = re.compile("[\ud800-\udfff]").search
#: The quoted part of a parser's message may be a secret: `password: *x` is an alias.
_QUOTED: Final = re.compile(r"(['\"]).{2,}\1")
#: What PyYAML raises besides its own errors.
_FOREIGN: Final = (RecursionError, ValueError, TypeError, AttributeError, LookupError)


class YAMLError(Exception):
    """Invalid YAML; the message shows none of the text.

    Attributes:
        line: the line, from 1; None if unknown.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(message)


def decode_text(content: bytes) -> tuple[str, str]:
    """Return a file's text, including its byte order mark, and its encoding.

    Raises:
        UnicodeDecodeError: no supported encoding fits.
    """
    for bom, encoding in _BOMS:
        if content.startswith(bom) and content != bom:
            return content.decode(encoding), encoding
    return content.decode(), "utf-8"


def load(text: str) -> object:
    """Return the value of the first document; None if there is none.

    Raises:
        YAMLError: Go's parser would refuse it.
    """
    node = compose(text)
    return None if node is None else _Values().of(node)


def compose(text: str) -> Node | None:
    """Return the first document as nodes, whose marks are positions in the text.

    Raises:
        YAMLError: as `load`.
    """
    try:
        loader = _Loader(text)
        return loader.get_node() if loader.check_node() else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        words = _QUOTED.sub("'…'", error.problem or error.context or "")
        raise YAMLError(words, mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, *_FOREIGN):
        raise YAMLError("invalid YAML") from None


def scalar_value(text: str) -> tuple[str, object]:
    """Return type and value of a plain scalar: "str", "null", "bool", "int" or "float"."""
    if (found := _WORDS.get(text)) is not None:
        return found
    if text[0] == ".":
        plain = _BETWEEN_DIGITS.sub("", text)
    else:
        plain = text.replace("_", "") if text[0] in "+-0123456789" else text
    if (match := _INT.fullmatch(plain)) and -(2**63) <= (number := _integer(match)) < 2**64:
        return "int", number
    if _FLOAT.fullmatch(plain) and math.isfinite(value := float(plain)):
        return "float", int(value) if value.is_integer() else value  # as Go writes it in JSON
    return "str", text


def _integer(match: re.Match[str]) -> int:
    sign, digits = match[1], match.groups()[1:]
    base, text = next((b, d) for b, d in zip((16, 2, 8, 10), digits, strict=True) if d)
    return int(f"{sign}{text}", base)


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML up to the nodes, with Go's rules for scanner and resolver."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)

    def scan_to_next_token(self) -> None:
        super().scan_to_next_token()
        # As in libyaml, of which Go's parser is a translation.
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key):
            self.forward()
            super().scan_to_next_token()

    def scan_plain_spaces(self, indent: int, start_mark: yaml.Mark) -> list[str]:
        line = self.line
        spaces = super().scan_plain_spaces(indent, start_mark) or []
        if self.peek() != "\t" or self.line != line:
            return spaces
        while self.peek() in {" ", "\t"}:
            spaces.append(self.peek())
            self.forward()
        return super().scan_plain_spaces(indent, start_mark) or spaces

    def compose_scalar_node(self, anchor: Any) -> ScalarNode:
        event = self.peek_event()  # type: ignore[no-untyped-call] # missing in the stubs
        if event.tag == "!":  # it marks a value that is not to be resolved
            event.tag = _STR
        return super().compose_scalar_node(anchor)

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> str:
        if kind is ScalarNode:
            return f"{_TAG}{scalar_value(value)[0]}" if implicit[0] else _STR
        return f"{_TAG}{'seq' if kind is SequenceNode else 'map'}"


class _Values:
    """Creates values from nodes; a node with several aliases is converted once."""

    def __init__(self) -> None:
        self._made: dict[int, object] = {}
        self._open: set[int] = set()

    def of(self, node: Node) -> object:
        made = self._made
        if id(node) in made:
            return made[id(node)]
        if isinstance(node, ScalarNode):
            return _scalar(node)
        if id(node) in self._open:
            raise YAMLError("an anchor contains itself", node.start_mark.line + 1)
        self._open.add(id(node))
        try:
            made[id(node)] = (
                self._mapping(node)
                if isinstance(node, MappingNode)
                else [self.of(item) for item in node.value]
            )
        except RecursionError:
            raise YAMLError("nested too deeply", node.start_mark.line + 1) from None
        self._open.discard(id(node))
        return made[id(node)]

    def _mapping(self, node: MappingNode) -> dict[str, object]:
        value: dict[str, object] = {}
        for key, item in node.value:
            if isinstance(key, ScalarNode) and key.value == "<<" and key.style is None:
                self._merge(item, value)
            else:
                value[_key(key)] = self.of(item)  # the last of two equal keys counts
        return value

    def _merge(self, node: Node, into: dict[str, object]) -> None:
        merged = self.of(node)
        for part in reversed(merged) if isinstance(merged, list) else (merged,):
            if not isinstance(part, dict):
                raise YAMLError("a merge key (<<) needs a mapping", node.start_mark.line + 1)
            into.update(part)


def _scalar(node: ScalarNode) -> object:
    tag = node.tag.removeprefix(_TAG)
    line = node.start_mark.line + 1
    if tag in {"null", "bool", "int", "float"}:
        kind, value = scalar_value(node.value)
        if kind != tag and (kind, tag) != ("int", "float"):
            raise YAMLError(f"the tag !!{tag} does not fit the value", line)
        if isinstance(value, float) and not math.isfinite(value):
            raise YAMLError("the number cannot be written as JSON", line)
        return value
    if tag == "binary":
        try:
            return base64.b64decode(node.value).decode()
        except ValueError:
            raise YAMLError("the tag !!binary needs base64", line) from None
    if _HALF(node.value):  # an escape; it could neither be sent nor shown
        raise YAMLError("half a character", line)
    return node.value


def _key(node: Node) -> str:
    if isinstance(node, ScalarNode):
        value = _scalar(node)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str | int | float):
            return str(value)
    raise YAMLError("a key must be a string", node.start_mark.line + 1)
