"""What all commands have in common: how they read switches, and how they fail."""

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

#: What Go's strconv.ParseBool reads.
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})

_EXIT_CODES: Final[tuple[tuple[int, tuple[type[BaseException], ...]], ...]] = (
    (3, (ConfigError,)),
    (4, (DisconnectedError, TimeoutError)),
    (5, (UnauthorizedError,)),
    (6, (ForbiddenError,)),
    (7, (NotFoundError, UnknownResourceError)),
)
#: What every command returns; those of `listwatch observe` are in its own help.
EXIT_CODES_HELP: Final = """\b
Exit codes:
  0    ended as asked
  1    a failure without a code of its own; the server's refusals are among them
  2    wrong arguments
  3    the kubeconfig is broken or there is none
  4    the server can't be reached
  5    the server refuses the credentials
  6    the server forbids the request
  7    the server has no such object or resource
  130  interrupted (Ctrl-C) before the command had started"""


def from_go_spelling(command: click.Command, arguments: Sequence[str]) -> list[str]:
    """Return arguments as click reads them; Go's flags also take `--once=true`, `-A=false`, `-n=a`.

    Args:
        command: whose options they are.
        arguments: after its name; what follows `--` is left alone.
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
            valued.update(option.opts)  # the next word is its value, whatever it looks like
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
    """Return the exit code that stands for an error with a server or the way to it; else 1."""
    return next((code for code, types in _EXIT_CODES if isinstance(error, types)), 1)


class Failure(click.ClickException):
    """Ends the program with one line on standard error.

    Args:
        error: what the line says.
        code: what the process returns.
    """

    def __init__(self, error: BaseException, code: int) -> None:
        super().__init__(printable(" ".join(str(error).split())) or type(error).__name__)
        self._code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # click has a class variable
        """What the process returns."""
        return self._code

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it."""
        click.echo(f"error: {self.message}", file=file, err=True)
