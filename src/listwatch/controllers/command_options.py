"""Options that all commands have which run controllers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., None])

_CONNECTION: Final = (
    click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Use FILE in place of KUBECONFIG and ~/.kube/config.",
    ),
    click.option("--context", metavar="NAME", help="Use this context."),
)
_MANAGER: Final = (
    click.option(
        "--leader-elect/--no-leader-elect", default=True, show_default=True, help="Elect a leader."
    ),
    click.option(
        "--lease-namespace", metavar="NAME", default="", help="The namespace of its lease."
    ),
    click.option(
        "--health-host",
        default="127.0.0.1",
        show_default=True,
        help="Address of health and metrics.",
    ),
    click.option(
        "--health-port",
        default=0,
        show_default=True,
        help="Port of health and metrics; 0: a free one.",
    ),
)


def connection_options(command: Command) -> Command:
    """Add `kubeconfig` and `context`: which server is meant."""
    return _with(_CONNECTION, command)


def manager_options(command: Command) -> Command:
    """Add the election, and where health and metrics are served."""
    return _with(_MANAGER, command)


def _with(options: tuple[Callable[[Any], Any], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
