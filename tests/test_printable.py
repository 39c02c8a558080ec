import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.errors import ConfigError, ListWatchError, StatusError
from listwatch.printable import MAX_CHARACTERS, printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ('pods "käse" not found: 犬 🐕', 'pods "käse" not found: 犬 🐕'),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[2J\x9b1m\x07\x00\x7f", "\\x1b[2J\\x9b1m\\x07\\x00\\x7f"),
        ("a\u2028b\u2029c\x85", "a\\u2028b\\u2029c\\x85"),
        ("\u202etxt.exe\u2066", "\\u202etxt.exe\\u2066"),
        ("\ud83d!", "\\ud83d!"),
        ("\U000e0041", "\\U000e0041"),
        (r"C:\new", r"C:\new"),
    ],
)
def test_what_drives_a_terminal_is_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_no_character_of_unicode_that_is_a_control_or_a_separator_passes() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    categories = {unicodedata.category(letter) for letter in printable(every, None)}
    assert categories.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp"})


def test_kept_characters_stay() -> None:
    assert printable("a:\n  b: \x1b\n", keep="\n") == "a:\n  b: \\x1b\n"


def test_a_long_text_loses_its_middle() -> None:
    assert printable("x" * 90 + "the remedy", 40) == "x" * 29 + "…" + "the remedy"
    assert printable("x" * 40, 40) == "x" * 40
    assert len(printable("\x1b" * 10**6)) == MAX_CHARACTERS


@given(st.text(st.characters(codec=None)), st.integers(0, 20))
def test_the_result_is_printable_and_within_its_limit(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= max(1, limit)
    if len(text) <= limit and text.isprintable():
        assert shown == text


@pytest.mark.parametrize("kind", [ListWatchError, ConfigError, StatusError])
def test_an_error_is_one_bounded_line_for_a_terminal_and_keeps_its_words(
    kind: type[ListWatchError],
) -> None:
    words = "denied:\n\n  \x1b]0;owned\x07 by\u2028policy"
    error = kind(words)
    assert str(error) == "denied: \\x1b]0;owned\\x07 by policy"
    assert error.args == (words,)
    assert len(str(kind("x" * 10**6))) == MAX_CHARACTERS


def test_a_servers_message_stays_as_it_was_sent() -> None:
    error = StatusError.from_status({"message": "a\nb\x1b"}, code=400)
    assert (error.message, str(error)) == ("a\nb\x1b", "a b\\x1b")
