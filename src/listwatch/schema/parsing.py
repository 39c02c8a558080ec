"""JSON and YAML parsed like Go, with the error messages of Go's decoders."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from listwatch.schema.typed import Pairs

_SEPARATOR = re.compile(rb"(?m)^---(?:[ \t].*)?$")


def parse_json(data: bytes) -> Any:
    """Decode JSON; objects with repeated keys become `Pairs`.

    Raises:
        ValueError: in the words of Go's decoder.
    """
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_slowly(data)
    if not may_repeat(data, value):
        return value
    return _parse_slowly(data)


def may_repeat(data: bytes, value: Any) -> bool:
    """Return whether an object in the body may have a key twice.

    Each key and string has two quotes: if the re-encoded value has as many, nothing was lost.
    Escaped quotes make the counts differ either way, and are checked slowly.
    """
    return data.count(b'"') != msgspec.json.encode(value).count(b'"') or b"\\u0022" in data


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else Pairs(pairs)


def _parse_slowly(data: bytes) -> Any:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="replace")
    if "\\ud" in text or "\\uD" in text:
        text = _ESCAPE.sub(_whole_escape, text)
    try:
        return json.loads(text, object_pairs_hook=_pairs, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(_go_words(error)) from None
    except RecursionError:
        raise ValueError("exceeded max depth") from None


_ESCAPE = re.compile(
    r"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def _whole_escape(found: re.Match[str]) -> str:
    # half of a surrogate pair; Go's decoder uses the replacement character
    return r"\ufffd" if found["half"] else found[0]


def _no_constant(word: str) -> Any:
    raise ValueError(f"invalid character '{word[0]}' looking for beginning of value")


def _go_words(error: json.JSONDecodeError) -> str:
    text, at = error.doc, error.pos
    if error.msg.startswith("Unterminated") or at >= len(text.rstrip()):
        return "unexpected end of JSON input"
    shown = repr(text[at]) if text[at] != '"' else "'\"'"
    message = error.msg
    if message.startswith("Expecting property name"):
        where = "looking for beginning of object key string"
    elif message.startswith("Extra data"):
        where = "after top-level value"
    elif message.startswith("Expecting ':'"):
        where = "after object key"
    elif message.startswith("Expecting ','"):
        where = f"after {_container(text[:at])}"
    elif message.startswith("Invalid control"):
        where = "in string literal"
    elif message.startswith("Invalid"):
        where = "in string escape code"
    else:
        where = "looking for beginning of value"
        literal = next((each for each in ("null", "true", "false") if each[0] == text[at]), "")
        if literal:
            pairs = zip(literal, text[at:], strict=False)
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            if at + same >= len(text):
                return "unexpected end of JSON input"
            shown = repr(text[at + same])
            where = f"in literal {literal} (expecting {literal[same]!r})"
    return f"invalid character {shown} {where}"


def _container(text: str) -> str:
    depth: list[str] = []
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', text):
        mark = found[0]
        if mark in "[{":
            depth.append(mark)
        elif mark in "]}" and depth:
            depth.pop()
    return "array element" if depth and depth[-1] == "[" else "object key:value pair"


def parse_yaml_documents(data: bytes) -> Iterator[Any]:
    """Decode the documents of a YAML file one by one, without empty ones.

    Raises:
        ValueError: as `parse_yaml`.
    """
    for part in _SEPARATOR.split(data):
        if part.strip() and (value := parse_yaml(part)) is not None:
            yield value


def parse_yaml(data: bytes) -> Any:
    """Decode YAML.

    Raises:
        ValueError: in the words of the server.
    """
    # slow to load, and most servers get JSON only
    from listwatch.schema.yaml_parsing import parse  # noqa: PLC0415

    return parse(data)
