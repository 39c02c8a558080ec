"""What all commands share: Go-style switches, exit codes and failures."""

from collections.abc import Sequence
from typing import IO, Any, Final

import click

from listwatch.errors import (
    ConfigError,
    DisconnectedError,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
    UnknownResourceError,
)
from listwatch.printable import printable

#: The values that Go's strconv.ParseBool accepts.
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})

_EXIT_CODES: Final[tuple[tuple[int, tuple[type[BaseException], ...]], ...]] = (
    (3, (ConfigError,)),
    (4, (DisconnectedError, TimeoutError)),
    (5, (UnauthorizedError,)),
    (6, (ForbiddenError,)),
    (7, (NotFoundError, UnknownResourceError)),
)
#: Exit codes of every command. `listwatch observe` has its own list.
EXIT_CODES_HELP: Final = """\b
Exit codes:
  0    success
  1    any other failure, such as a request that the server rejected
  2    invalid arguments
  3    the kubeconfig is missing or invalid
  4    the server is unreachable
  5    the server rejected the credentials
  6    the server forbade the request
  7    the server has no such object or resource
  130  interrupted (Ctrl-C) before the command started"""


def from_go_spelling(command: click.Command, arguments: Sequence[str]) -> list[str]:
    """Rewrite Go's flag forms `--once=true`, `-A=false` and `-n=a` into click's.

    Args:
        command: the command whose options these are.
        arguments: the words after its name. Words after `--` stay as they are.
    """
    switches: dict[str, tuple[str, str]] = {}
    valued: set[str] = set()
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        if option.is_bool_flag:
            off = option.secondary_opts[0] if option.secondary_opts else ""
            switches.update({name: (name, off) for name in option.opts})
        elif not (option.is_flag or option.count or getattr(option, "_flag_needs_value", False)):
            valued.update(option.opts)  # the next word is its value, even one that starts with -
    result: list[str] = []
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if word == "--":
            return [*result, word, *rest]
        if equals and name in switches and value in _TRUE | _FALSE:
            chosen = switches[name][0 if value in _TRUE else 1]
            result += [chosen] if chosen else []
        elif equals and name in valued and not name.startswith("--"):
            result += [name, value]
        else:
            result.append(word)
            if word in valued:
                result += [following] if (following := next(rest, None)) is not None else []
    return result


def exit_code(error: BaseException) -> int:
    """Return the exit code for a connection or server error; 1 for any other error."""
    return next((code for code, types in _EXIT_CODES if isinstance(error, types)), 1)


class CommandError(click.ClickException):
    """Ends the program with one line on standard error.

    Args:
        error: the error to print.
        code: exit code of the process.
    """

    def __init__(self, error: BaseException, code: int) -> None:
        super().__init__(printable(" ".join(str(error).split())) or type(error).__name__)
        self._code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # click has a class variable
        """Exit code of the process."""
        return self._code

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error."""
        click.echo(f"error: {self.message}", file=file, err=True)
