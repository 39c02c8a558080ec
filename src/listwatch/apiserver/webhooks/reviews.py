"""Decodes reviews from webhooks, with Go's error messages."""

import re
from typing import Any, TypeVar

import msgspec

from listwatch.schema.parsing import parse_yaml

_T = TypeVar("_T", bound=msgspec.Struct)

_HEAD = (
    'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string '
    '"json:\\"kind,omitempty\\"" }'
)
_WORDS = {list: "array", str: "string", bool: "bool", int: "number", float: "number"}
_FAULT = re.compile(r"Expected `([^`]+)`, got `([^`]+)`(?: - at `(?:key in )?\$\.([^`]*)`)?")
_GIVEN = {
    "str": "string",
    "int": "number",
    "float": "number",
    "bool": "bool",
    "array": "array",
    "object": "object",
    "null": "null",
}
_WANTED = {
    "str": "string",
    "int": "int32",
    "bool": "bool",
    "array": "[]string",
    "object": "map[string]string",
}


class ReviewError(Exception):
    """The response is not a review of the kind that was sent; the message is Go's."""


class Head(msgspec.Struct, rename="camel"):
    """The kind and version of a response."""

    api_version: str = ""
    kind: str = ""

    def __str__(self) -> str:
        """Return the kind as Go shows it."""
        group, _, version = self.api_version.rpartition("/")
        return f"{group}/{version}, Kind={self.kind}"


def decode_review(data: bytes, api_version: str, form: type[_T]) -> tuple[Head, _T]:
    """Decode a response.

    Args:
        data: the body; may be YAML.
        api_version: of the review that was sent.
        form: the kind of review; the name of the type, without underscores, is that of the kind.

    Raises:
        ReviewError: it is not such a review.
    """
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise ReviewError(
            "couldn't get version/kind; json parse error: json: exceeded max depth"
        ) from None
    except ValueError:
        value = _from_yaml(data)
        data = msgspec.json.encode(value)
    if not isinstance(value, dict):
        word = _WORDS.get(type(value), "null")
        raise ReviewError(
            f"couldn't get version/kind; json parse error: json: cannot unmarshal {word} into Go "
            f"value of type {_HEAD}"
        )
    head = _head(value)
    kind = form.__name__.strip("_")
    if head.kind or head.api_version:
        _check_kind(head, kind, api_version)
    try:
        return head, msgspec.json.decode(data, type=form)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ReviewError(_go_words(str(error), kind)) from None


def _from_yaml(data: bytes) -> Any:
    try:
        return parse_yaml(data)
    except ValueError as error:
        raise ReviewError(f"couldn't get version/kind; json parse error: {error}") from None


def _head(value: dict[str, Any]) -> Head:
    try:
        return msgspec.convert(value, Head)
    except msgspec.ValidationError as error:
        found = _FAULT.search(str(error))
        word, field = (_GIVEN[found[2]], found[3]) if found else ("object", "kind")
        raise ReviewError(
            f"couldn't get version/kind; json parse error: json: cannot unmarshal {word} into Go "
            f"struct field .{field} of type string"
        ) from None


def _check_kind(head: Head, kind: str, api_version: str) -> None:
    group, _, version = api_version.partition("/")
    given, _, short = head.api_version.rpartition("/")
    known = head.kind == kind and given == group and short in {"v1", "v1beta1"}
    if head.api_version and head.kind and not known:
        raise ReviewError(
            f'no kind "{head.kind}" is registered for version "{head.api_version}" in scheme '
            '"pkg/runtime/scheme.go:110"'
        )
    if known and short != version:
        raise ReviewError(f"converting ({short}.{kind}) to ({version}.{kind}): unknown conversion")


def _go_words(words: str, kind: str) -> str:
    found = _FAULT.search(words)
    if found is None:
        return words
    path = re.sub(r"\[[^]]*\]", "", found[3] or "")
    struct = kind if "." not in path else kind.replace("Review", "Response")
    wanted = _WANTED.get(found[1].partition(" | ")[0], found[1])
    return (
        f"json: cannot unmarshal {_GIVEN.get(found[2], found[2])} into Go struct field "
        f"{struct}.{path} of type {wanted}"
    )
