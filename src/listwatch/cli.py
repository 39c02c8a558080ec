"""`listwatch`: the command line, whose subcommands are loaded when they are used."""

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from listwatch import __version__
from listwatch.client.command_line import exit_code
from listwatch.errors import ListWatchError

#: Each subcommand: where it is, and what it is for.
_COMMANDS = {
    "apiserver": (
        "listwatch.apiserver.command:apiserver_command",
        "Run an API server on this machine, for tests and trials.",
    ),
    "build-controllers": (
        "listwatch.controllers.builds.command:build_controllers_command",
        "End builds that lost their pods, and pods that lost their builds.",
    ),
    "config": (
        "listwatch.client.command:config_command",
        "Print the configuration in force, and check the connection.",
    ),
    "new": (
        "listwatch.runtime.commands:new_command",
        "Write a new controller project.",
    ),
    "observe": (
        "listwatch.observe.command:observe_command",
        "Run a command for every change of a resource.",
    ),
    "rbac": (
        "listwatch.runtime.commands:rbac_command",
        "Print the least rights that a program's controllers need.",
    ),
    "run": (
        "listwatch.runtime.commands:run_command",
        "Run the controllers of a Python file.",
    ),
    "service-controller": (
        "listwatch.controllers.services.command:service_controller_command",
        "Give services of type LoadBalancer their load balancers.",
    ),
}


class _LazyGroup(click.Group):
    """A group of commands, each imported when it is asked for."""

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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in sorted(_COMMANDS.items())])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="listwatch")
def cli() -> None:
    """React to every change of a Kubernetes resource."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; mistakes of the user are one line on standard error."""
    sys.exit(_run(None if arguments is None else list(arguments)))


def _run(arguments: list[str] | None) -> int:
    try:
        code = cli.main(arguments, prog_name="listwatch", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ListWatchError as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        return exit_code(error)
    except (click.Abort, KeyboardInterrupt):
        return 130
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
