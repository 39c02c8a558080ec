"""`listwatch`: the command line. Subcommands are loaded on first use."""

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Final, TextIO

import click
from click.shell_completion import get_completion_class

from listwatch.client.command_line import EXIT_CODES_HELP, exit_code, from_go_spelling
from listwatch.errors import ListWatchError
from listwatch.version import __version__

#: Location and one-line help of each subcommand.
_COMMANDS = {
    "apiserver": (
        "listwatch.apiserver.command:apiserver_command",
        "Run a local API server for tests and demos.",
    ),
    "build-controllers": (
        "listwatch.controllers.builds.command:build_controllers_command",
        "Fail builds whose pod is gone; delete pods whose build is gone.",
    ),
    "check": (
        "listwatch.resources.command:check_command",
        "Check manifests against CustomResourceDefinitions, without a server.",
    ),
    "completion": (
        "listwatch.cli:completion_command",
        "Print the shell completion script.",
    ),
    "config": (
        "listwatch.client.command:config_command",
        "Print the effective configuration and check the connection.",
    ),
    "crd": (
        "listwatch.runtime.packaging.commands:crd_command",
        "Print the CustomResourceDefinitions of a controller program.",
    ),
    "manifests": (
        "listwatch.runtime.packaging.commands:manifests_command",
        "Write everything that a controller program needs in a cluster.",
    ),
    "migrate": (
        "listwatch.resources.migrate_command:migrate_command",
        "Rewrite the objects of a custom resource that are stored in old versions.",
    ),
    "new": (
        "listwatch.runtime.commands:new_command",
        "Create a controller project.",
    ),
    "observe": (
        "listwatch.observe.command:observe_command",
        "Run a command for every change of a resource.",
    ),
    "rbac": (
        "listwatch.runtime.packaging.commands:rbac_command",
        "Print the minimal RBAC manifests of a controller program.",
    ),
    "run": (
        "listwatch.runtime.commands:run_command",
        "Run the controllers of a Python file.",
    ),
    "service-controller": (
        "listwatch.controllers.services.command:service_controller_command",
        "Provide load balancers for services of type LoadBalancer.",
    ),
    "simulate": (
        "listwatch.simulation.command:simulate_command",
        "Search for faults that break a controller, in simulated worlds.",
    ),
    "webhooks": (
        "listwatch.webhooks.command:webhooks_command",
        "Check the webhooks of a cluster, or remove those of a program.",
    ),
    "why": (
        "listwatch.runtime.why_command:why_command",
        "Say why a key of a running controller is not done.",
    ),
}


#: Optional packages, used if installed, and their purpose.
_OPTIONAL: Final = {
    "aiofastnet": "connections whose TLS keeps the interpreter lock (listwatch[fast])",
    "httptools": "the package's own transport for reads (listwatch[fast])",
    "uvloop": "another event loop, if a program runs in it (listwatch[fast])",
    "zstandard": "packed caches (listwatch[zstandard])",
}

_COMPLETE: Final = "_LISTWATCH_COMPLETE"


class _LazyGroup(click.Group):
    """A group of commands, each imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if not word.startswith("-") and word not in _COMMANDS:
            close = get_close_matches(word, _COMMANDS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else f" Try {', '.join(_COMMANDS)}."
            ctx.fail(f"No such command {word!r}.{hint}")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, rest if command is None else from_go_spelling(command, rest)

    def invoke(self, ctx: click.Context) -> object:
        try:
            result: object = super().invoke(ctx)
            output: TextIO | None = sys.stdout  # None if the shell has closed it
            if output is not None:
                output.flush()
        except BrokenPipeError:
            # Otherwise Python reports the error again while it closes standard output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            ctx.exit(141)
        except KeyboardInterrupt:  # before click, which would print an empty line
            click.echo("interrupted", err=True)
            ctx.exit(130)
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in sorted(_COMMANDS.items())])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES_HELP,
)
@click.option(
    "-v", "--verbose", is_flag=True, is_eager=True, help="With --version: also what it uses."
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, _, asked: _show_version(ctx) if asked else None,
    help="Show the version and exit.",
)
def cli(*, verbose: bool) -> None:
    """React to every change of a Kubernetes resource."""
    del verbose


def _show_version(ctx: click.Context) -> None:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow, rarely used

    click.echo(f"listwatch, version {__version__}")
    if ctx.params["verbose"]:
        click.echo(f"{sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))}")
        for package, words in _OPTIONAL.items():
            try:
                found = version(package)
            except PackageNotFoundError:
                found = "not installed"
            click.echo(f"{package} {found}: {words}")
    ctx.exit()


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(*, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
      bash: source <(listwatch completion bash)
      zsh:  source <(listwatch completion zsh)
      fish: listwatch completion fish | source
    """  # noqa: D301 - click's marker: do not rewrap
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - for the type checker: click knows all three
    click.echo(kind(cli, {}, "listwatch", _COMPLETE).source())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Print a user's mistake as one line on standard error."""
    sys.exit(run(None if arguments is None else list(arguments)))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code. None means `sys.argv`."""
    try:
        code = cli.main(
            arguments, prog_name="listwatch", complete_var=_COMPLETE, standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ListWatchError as error:
        click.echo(f"error: {error}", err=True)
        return exit_code(error)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
