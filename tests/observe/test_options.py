from pathlib import Path
from typing import Any

import pytest

from listwatch.observe.options import (
    CommandNotExecutableError,
    CommandNotFoundError,
    DeleteLimit,
    ObserveOptions,
    UsageError,
    find_command,
    parse_delete_limit,
    parse_duration,
    shown_command,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("5", 5),
        ("1.5", 1.5),
        ("90s", 90),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("2h", 7200),
        ("1h2m3.5s", 3723.5),
        ("250us", 0.00025),
    ],
)
def test_durations_are_read_as_go_writes_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "x", "5x", "-1s", "-1", "1s x", "s", "inf", "nan", "1d"])
def test_what_is_no_duration_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a (valid )?duration"):
        parse_duration(text)


def test_delete_limits_are_numbers_shares_or_none() -> None:
    assert parse_delete_limit("10") == DeleteLimit(count=10)
    assert parse_delete_limit("25%") == DeleteLimit(share=25)
    assert parse_delete_limit("-1") == DeleteLimit()
    for text in ("", "x", "101%", "-5", "5.5"):
        with pytest.raises(UsageError, match="is not a limit"):
            parse_delete_limit(text)


@pytest.mark.parametrize(
    ("limit", "deletes", "known", "allowed"),
    [
        (DeleteLimit(count=2), 2, 100, True),
        (DeleteLimit(count=2), 3, 100, False),
        (DeleteLimit(share=50), 5, 10, True),
        (DeleteLimit(share=50), 6, 10, False),
        (DeleteLimit(share=50), 9, 9, True),
        (DeleteLimit(share=50), 10, 10, False),
        (DeleteLimit(), 1000, 1000, True),
    ],
)
def test_a_share_always_allows_one(
    limit: DeleteLimit, deletes: int, known: int, *, allowed: bool
) -> None:
    assert limit.allows(deletes, known) is allowed


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["echo", "a", "b"], "echo a b"),
        (["", "default", "kubernetes"], '"" default kubernetes'),
        (["a b", 'q"q', "back\\slash", "é"], '"a b" "q\\"q" "back\\\\slash" é'),
        (["two\nlines", "\x1b[0m", "tab\t"], '"two\\nlines" "\\x1b[0m" "tab\\t"'),
        (["\udcff"], '"\\udcff"'),
    ],
)
def test_a_command_line_is_shown_in_one_line(words: list[str], text: str) -> None:
    assert shown_command(words) == text


def test_a_command_is_looked_for_before_anything_is_observed(tmp_path: Path) -> None:
    assert find_command("sh").endswith("/sh")
    with pytest.raises(CommandNotFoundError, match="no-such-command: no such command; give a path"):
        find_command("no-such-command")
    script = tmp_path / "script"
    script.write_text("")
    with pytest.raises(CommandNotExecutableError, match=r"not an executable file; try chmod \+x"):
        find_command(str(script))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"resources": ()}, UsageError, "you must specify at least one argument"),
        ({"names_command": ("true",)}, UsageError, "--delete and --names must both be specified"),
        ({"namespace": "a", "all_namespaces": True}, UsageError, "not both"),
        ({"names_dry_run": True}, UsageError, "--names-dry-run needs --names"),
        ({"selector": "a=b=c"}, UsageError, "--selector=a=b=c: found '='"),
        ({"field_selector": "a"}, UsageError, "--field-selector=a: "),
        ({"resources": ("\udcff",)}, UsageError, r"^RESOURCE: '\\udcff' is not UTF-8$"),
        ({"names": ("a", "\udcff")}, UsageError, r"^NAME: '\\udcff' is not UTF-8$"),
        ({"namespace": "\udcff"}, UsageError, r"^--namespace: '\\udcff' is not UTF-8$"),
        ({"field_selector": "a=\udcff"}, UsageError, r"^--field-selector: .* is not UTF-8$"),
        ({"listen_address": "\udcff:0"}, UsageError, r"^--listen-addr: .* is not UTF-8$"),
        ({"type_env_var": "A=b"}, UsageError, "--type-env-var: 'A=b' is not a valid variable name"),
        ({"object_env_var": "A=b"}, UsageError, "--object-env-var: 'A=b' is not a valid variable"),
        ({"command": ("no-such-command",)}, CommandNotFoundError, "no-such-command"),
        ({"delete_command": ("no-such-command",)}, CommandNotFoundError, "no-such-command"),
    ],
)
def test_wrong_options_are_refused_by_name(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ObserveOptions(**{"resources": ("pods",), **options}).check()
