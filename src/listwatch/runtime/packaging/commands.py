"""The commands `listwatch crd`, `listwatch rbac` and `listwatch manifests`."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import click

from listwatch.client.command_line import CommandError
from listwatch.errors import ConfigError
from listwatch.printable import printable
from listwatch.runtime.commands import election_options, load_or_exit
from listwatch.runtime.loading import load_names
from listwatch.runtime.packaging.definitions import definitions_among
from listwatch.runtime.packaging.files import write_generated
from listwatch.runtime.packaging.helm import helm_chart
from listwatch.runtime.packaging.kustomize import base_texts, kustomize_base
from listwatch.runtime.packaging.objects import Setting
from listwatch.runtime.packaging.program import PackagedProgram
from listwatch.runtime.packaging.rbac import role_manifests, to_yaml

T = TypeVar("T")

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


def _program_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that decide which rights a program needs."""
    for option in reversed(
        (
            click.option(
                "--watch-namespace",
                "watched",
                multiple=True,
                metavar="NAME",
                help="Namespace that the program watches; may be repeated. Default: all.",
            ),
            click.option("--leader-election", metavar="LEASE", help="As for `listwatch run`."),
            click.option("--no-leader-election", is_flag=True, help="As for `listwatch run`."),
            click.option(
                "--recorded",
                type=_FILE,
                metavar="ROLES",
                help="File of `pytest --record-rbac`: also grant the rights in it.",
            ),
        )
    ):
        command = option(command)
    return command


def _quietly(file: Path, load: Callable[[], T]) -> T:
    """Load a file whose own output must not get into the YAML."""
    with contextlib.redirect_stdout(sys.stderr):
        return load_or_exit(file, load)


def _warn(program: PackagedProgram) -> None:
    for warning in program.warnings():
        click.echo(f"warning: {printable(warning)}", err=True)


@click.command("crd")
@click.argument("file", type=_FILE)
def crd_command(*, file: Path) -> None:
    """Print the CustomResourceDefinitions of a Python FILE, as YAML.

    They are made of the types among its global names that @resource decorates, and of those of its
    conversions; several versions of one kind make one definition. FILE is not run.
    """
    definitions = definitions_among(_quietly(file, lambda: load_names(file)))
    if not definitions:
        raise ConfigError(
            f"{file}: none of its types is a resource: decorate one with @resource(group, version)"
        )
    click.echo(to_yaml(definitions), nl=False)


@click.command("rbac")
@click.argument("file", type=_FILE)
@click.option(
    "-n",
    "--namespace",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Namespace of the service account and of the lease.",
)
@_program_options
def rbac_command(
    *,
    file: Path,
    namespace: str,
    watched: tuple[str, ...],
    leader_election: str | None,
    no_leader_election: bool,
    recorded: Path | None,
) -> None:
    """Print the minimal RBAC manifests for the controllers of a Python FILE, as YAML.

    The rules come from the resources that its reconcilers watch and declare that they write, and
    from what they asked for in tests. Warns of writes in FILE and the modules beside it that no
    rule allows.
    """
    options = election_options(leader_election, no_leader_election)
    program = _quietly(file, lambda: PackagedProgram(file, options, recorded))
    rights = program.rights.narrowed(watched, program.scope_of)
    manifests = role_manifests(program.app.name, namespace, rights)
    _warn(program)
    click.echo(to_yaml(manifests), nl=False)


@click.command("manifests")
@click.argument("file", type=_FILE)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Namespace of the program; default: its name. A chart uses that of its release.",
)
@click.option(
    "--image",
    metavar="IMAGE",
    help="Image that contains FILE below /app; default: the program's name.",
)
@click.option(
    "--replicas",
    type=click.IntRange(0),
    metavar="NUMBER",
    help="Number of pods; default: 2, and 1 for a program without leader election.",
)
@_program_options
@click.option("--service-monitor", is_flag=True, help="Add a ServiceMonitor for Prometheus.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory to write to; default: print everything as one YAML file.",
)
@click.option("--helm", is_flag=True, help="Write a Helm chart instead of a kustomize base.")
@click.option(
    "--chart-version",
    default="0.1.0",
    show_default=True,
    metavar="VERSION",
    help="Version of the chart and of the program.",
)
@click.option("--force", is_flag=True, help="Overwrite files of others in DIR.")
def manifests_command(
    *,
    file: Path,
    namespace: str | None,
    image: str | None,
    replicas: int | None,
    watched: tuple[str, ...],
    leader_election: str | None,
    no_leader_election: bool,
    recorded: Path | None,
    service_monitor: bool,
    output: Path | None,
    helm: bool,
    chart_version: str,
    force: bool,
) -> None:
    """Print or write everything that the controllers of a Python FILE need in a cluster.

    That is: the definitions of its types, a service account with minimal rights, Deployment,
    Service, webhook configurations and PodDisruptionBudget. FILE is not run.
    """
    if helm and output is None:
        raise click.UsageError("--helm writes several files: give -o DIR")
    if helm and (watched or service_monitor or namespace):
        raise click.UsageError(
            "--namespace, --watch-namespace and --service-monitor are values of a chart: "
            "set namespace, watchNamespaces and serviceMonitor.enabled there"
        )
    options = election_options(leader_election, no_leader_election)
    program = _quietly(file, lambda: PackagedProgram(file, options, recorded, registers=False))
    app = program.app
    setting = Setting(
        namespace=namespace or app.name,
        image=image or app.name,
        replicas=replicas if replicas is not None else 2 if app.lease else 1,
        arguments=_arguments(options, watched),
    )
    if setting.replicas != 1 and not app.lease:
        raise click.UsageError(
            f"{setting.replicas} pods of a program without leader election would work at the same "
            "time: give --leader-election LEASE"
        )
    if helm:
        texts = helm_chart(program, setting, version=chart_version)
    else:
        base = kustomize_base(program, setting, watched=watched, service_monitor=service_monitor)
        texts = base_texts(base)
    _warn(program)
    if output is None:
        click.echo(to_yaml([obj for objects in base.values() for obj in objects]), nl=False)
        return
    try:
        written = write_generated(output, texts, force=force)
    except OSError as error:
        raise CommandError(error, 1) from None
    for path in written:
        click.echo(path)


def _arguments(options: Mapping[str, str], watched: Iterable[str]) -> list[str]:
    """Return the arguments by which `listwatch run` does what the manifests are for."""
    lease = options.get("leader_election")
    election = [] if lease is None else [f"--leader-election={lease}"]
    return [
        *(["--no-leader-election"] if lease == "" else election),
        *(f"--namespace={each}" for each in watched),
    ]
