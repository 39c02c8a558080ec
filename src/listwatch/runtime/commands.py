"""The commands `listwatch run` and `listwatch new`."""

import json
import logging
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from traceback import print_exception
from typing import Any, TypeVar

import click

from listwatch.client.command_line import CommandError
from listwatch.client.connection_options import Command, ConnectionOptions, connection_options
from listwatch.errors import ConfigError, ListWatchError
from listwatch.printable import printable
from listwatch.runtime.loading import load_program
from listwatch.runtime.reconcile_context import ReconcileFilter
from listwatch.runtime.scaffold import Names, write_project

T = TypeVar("T")

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class TextFormatter(logging.Formatter):
    """One escaped line per record, for people: its reconcile last, then an indented traceback."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the record without its traceback, as one line."""
        record.message = printable(record.message)
        line = super().formatMessage(record)
        if (reconcile_id := getattr(record, "reconcile_id", None)) is None:
            return line
        key, attempt = printable(getattr(record, "key", "")), getattr(record, "attempt", 1)
        return f"{line} [{reconcile_id} {key}{f' attempt {attempt}' if attempt > 1 else ''}]"

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the traceback, indented so that no line looks like a record."""
        return textwrap.indent(printable(super().formatException(ei), None, keep="\n"), "    ")


class JsonFormatter(logging.Formatter):
    """One JSON object per line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        for field in ("reconciler", "key", "attempt", "reconcile_id"):
            if (value := getattr(record, field, None)) is not None:
                line[field] = printable(value) if isinstance(value, str) else value
        if record.exc_info:
            line["error"] = printable(self.formatException(record.exc_info), None, keep="\n")
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(connection: ConnectionOptions, level: str, form: str) -> None:
    """Log to standard error as text or JSON. -v can lower the level further."""
    level = min(level.upper(), connection.log_level, key=logging.getLevelNamesMapping().__getitem__)
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(ReconcileFilter())
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def logging_options(command: Command) -> Command:
    """Add `log_level` and `log_format`, the arguments of `set_up_logging`."""
    command = click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Log format: text for people, JSON for log collectors.",
    )(command)
    return click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="Minimum level logged to standard error.",
    )(command)


@click.command("run")
@click.argument("file", type=_FILE)
@connection_options
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Namespace to watch; may be repeated. Default: all, or those in FILE.",
)
@click.option(
    "--lease-namespace",
    metavar="NAME",
    help="Namespace of the lease; default: that of the pod or the context.",
)
@click.option("--leader-election", metavar="LEASE", help="Elect a leader with this lease.")
@click.option("--no-leader-election", is_flag=True, help="Run without leader election.")
@click.option(
    "--health-host", metavar="ADDRESS", help="Address that serves health checks and metrics."
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    help="Port for health checks and metrics; 0 picks a free one.",
)
@click.option(
    "--ui",
    is_flag=True,
    help="Serve the page /ui, which shows what each key went through, to other machines too.",
)
@logging_options
def run_command(
    *,
    file: Path,
    connection: ConnectionOptions,
    namespaces: tuple[str, ...],
    lease_namespace: str | None,
    leader_election: str | None,
    no_leader_election: bool,
    health_host: str | None,
    health_port: int | None,
    ui: bool,
    log_level: str,
    log_format: str,
) -> None:
    """Run the controllers of a Python FILE until SIGTERM or SIGINT.

    FILE creates one Manager, or defines a function make_app(**options) that returns one. Options
    given here override those in FILE; an option that cannot take effect is an error.
    """
    election = election_options(leader_election, no_leader_election)
    set_up_logging(connection, log_level, log_format)
    options: dict[str, Any] = {
        **election,
        "namespace": lease_namespace,
        "health_host": health_host,
        "health_port": health_port,
        "ui": ui or None,
    }
    defaults: dict[str, Any] = {}
    missing: ConfigError | None = None
    try:
        config = connection.config()
    except ConfigError as error:
        if connection.is_given:
            raise
        missing = error  # the program may configure its own server
    else:
        (options if connection.is_given else defaults)["config"] = config
    given = {name: value for name, value in options.items() if value is not None}
    app = load_or_exit(file, lambda: load_program(file, given, defaults, namespaces=namespaces))
    if not app.has_work:
        raise ConfigError(f"{file}: the Manager has no reconciler, task or webhook: add one")
    if not app.has_server:
        if missing is not None:
            raise missing
        app.configure(**defaults)
    app.run()


def election_options(lease: str | None, without: bool) -> dict[str, str]:  # noqa: FBT001 - a flag
    """Return the option of `Manager.configure` for two flags.

    Raises:
        UsageError: both are given.
    """
    if without and lease:
        raise click.UsageError("use either --leader-election or --no-leader-election, not both")
    chosen = "" if without else lease
    return {} if chosen is None else {"leader_election": chosen}


def load_or_exit(file: Path, load: Callable[[], T]) -> T:
    """Load a file. If its code fails, print its traceback and exit."""
    try:
        return load()
    except ListWatchError:
        raise
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        traceback = error.__traceback__
        while traceback and traceback.tb_frame.f_code.co_filename != str(file):
            traceback = traceback.tb_next
        print_exception(error.with_traceback(traceback))
        raise click.exceptions.Exit(1) from None


@click.command("new")
@click.argument("name")
@click.option(
    "--group", default="example.com", show_default=True, help="API group of the resource."
)
@click.option("--kind", metavar="KIND", help="Kind in CamelCase; default: from NAME.")
@click.option("--plural", metavar="NAME", help="Plural resource name; default: NAME plus s.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to write to; default: a new directory NAME.",
)
def new_command(
    *, name: str, group: str, kind: str | None, plural: str | None, directory: Path | None
) -> None:
    """Create a controller project for a custom resource NAME, such as "website".

    It contains the resource's types in two versions, the controller, tests that need no cluster,
    and a Dockerfile. `listwatch manifests` makes the rest.
    """
    where = directory or Path(name)
    try:
        written = write_project(where, Names.of(name, group=group, kind=kind, plural=plural))
    except ConfigError as error:
        raise CommandError(error, 2) from None
    except OSError as error:
        raise CommandError(error, 1) from None
    for path in written:
        click.echo(path)
    packages = "'listwatch[webhooks]' hypothesis pytest pytest-asyncio"
    click.echo(f"\nNext: cd {where} && pip install {packages} && python -m pytest")
