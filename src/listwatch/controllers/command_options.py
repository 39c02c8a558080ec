"""Options shared by all commands that run controllers."""

import functools
import math
from collections.abc import Callable
from typing import Any, Final

import click

from listwatch.client.connection_options import ConnectionOptions
from listwatch.runtime.commands import logging_options, set_up_logging
from listwatch.runtime.manager import Manager

_OPTIONS: Final = (
    click.option(
        "--leader-elect/--no-leader-elect",
        default=True,
        show_default=True,
        help="Run only while elected leader.",
    ),
    click.option(
        "--lease-namespace",
        metavar="NAME",
        default="",
        help="Namespace of the leader election lease.",
    ),
    click.option(
        "--health-host",
        default="127.0.0.1",
        show_default=True,
        help="Address that serves health checks and metrics.",
    ),
    click.option(
        "--health-port",
        type=click.IntRange(0, 65535),
        default=0,
        show_default=True,
        help="Port for health checks and metrics; 0 picks a free one.",
    ),
)


class Seconds(click.FloatRange):
    """A finite number of seconds.

    Args:
        least: the minimum.
    """

    name = "seconds"

    def __init__(self, least: float = 0.0) -> None:
        super().__init__(min=least)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a finite number of seconds", param, ctx)
        return seconds


def manager_options(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options for leader election, health, metrics and logging.

    Pass the command a `Manager`, configured by these and the `connection_options`, as `app`.

    Args:
        name: name of the manager and of its lease.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(
            *,
            connection: ConnectionOptions,
            leader_elect: bool,
            lease_namespace: str,
            health_host: str,
            health_port: int,
            log_level: str,
            log_format: str,
            **own: Any,
        ) -> None:
            set_up_logging(connection, log_level, log_format)
            app = Manager(
                name,
                config=connection.config(),
                leader_election=name if leader_elect else None,
                namespace=lease_namespace,
                health_host=health_host,
                health_port=health_port,
            )
            command(app=app, **own)

        run = logging_options(run)
        for option in reversed(_OPTIONS):
            run = option(run)
        return run

    return decorate
