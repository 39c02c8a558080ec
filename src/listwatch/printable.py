"""Escapes foreign text for a terminal, a log or line-based output."""

import json
from typing import Final

#: Maximum characters of foreign text in one message.
MAX_CHARACTERS: Final = 2000

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, limit: int | None = MAX_CHARACTERS, *, keep: str = "") -> str:
    r"""Return a text that can neither drive a terminal nor forge a line.

    Control characters, line separators, marks that turn the direction of writing, half characters
    and whatever else `str.isprintable` refuses become escapes as in a Python literal: `\n`,
    `\x1b`, `\u202e`. A backslash stays as it is, so the result is for eyes and can't be read back.

    Args:
        text: from a server, a file or another program.
        limit: maximum characters of the result. "…" replaces the middle of a longer one, because
            the end often says what to do. None for no limit.
        keep: characters that stay although they are not printable, such as "\n" in YAML.
    """
    if limit is not None and len(text) > limit:
        text = _without_middle(text, limit)  # escaping makes it no shorter
    if not text.isprintable():
        text = "".join(
            letter if letter.isprintable() or letter in keep else _escaped(letter)
            for letter in text
        )
    return text if limit is None or len(text) <= limit else _without_middle(text, limit)


def printable_json(text: str) -> str:
    """Return JSON with the same meaning that is on one line and can't drive a terminal."""
    if text.isprintable():
        return text
    return "".join(map(_json_letter, text))


def _json_letter(letter: str) -> str:
    if letter.isprintable():
        return letter
    if letter in "\n\r\t":  # between the values: JSON strings have no such characters
        return " "
    return json.dumps(letter)[1:-1]


def _without_middle(text: str, limit: int) -> str:
    tail = limit // 4
    return f"{text[: max(0, limit - tail - 1)]}…{text[len(text) - tail :]}"


def _escaped(letter: str) -> str:
    code = ord(letter)
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return _SHORT.get(letter) or (f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}")
