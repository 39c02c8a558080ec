"""The command `listwatch simulate`."""

import shlex
import sys
from pathlib import Path
from typing import Final

import click

from listwatch.client.command_line import CommandError
from listwatch.client.connection_options import Duration
from listwatch.errors import ConfigError
from listwatch.simulation.faults import FAULTS, TokenError
from listwatch.simulation.oracles import ORACLES
from listwatch.simulation.simulating import simulate
from listwatch.simulation.violation_page import page

_FAULTS: Final = "\n".join(
    f"  {fault.name}{'' if fault.default else ' (only if named)'}: {fault.words}"
    for fault in FAULTS.values()
)
_ORACLES: Final = "\n".join(f"  {name}: {words}" for name, words in ORACLES.items())


@click.command("simulate", epilog=f"\b\nFaults:\n{_FAULTS}\n\n\b\nOracles:\n{_ORACLES}\n")
@click.argument("program", metavar="FILE[:FUNCTION]")
@click.argument("scenario", metavar="FILE[:FUNCTION]")
@click.option(
    "--for",
    "seconds",
    type=Duration(),
    default="10s",
    show_default=True,
    help="How long to search.",
)
@click.option("--worlds", type=click.IntRange(0), default=0, help="Run at most this many worlds.")
@click.option("--replicas", type=click.IntRange(1), default=1, help="Number of processes.")
@click.option(
    "--manifest",
    "manifests",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Create the objects of a YAML file first, such as definitions. Repeatable.",
)
@click.option("--workloads", is_flag=True, help="Run the pods of Deployments and other workloads.")
@click.option("--fault", "faults", multiple=True, help="Try only this fault; all for all.")
@click.option("--without-fault", "without_faults", multiple=True, help="Leave this fault out.")
@click.option("--without-oracle", "without_oracles", multiple=True, help="Ignore this oracle.")
@click.option(
    "--mask",
    multiple=True,
    metavar="RESOURCE:PATH",
    help="Leave this out of the comparison of end states, such as widgets.example.com:status.last.",
)
@click.option("--replay", metavar="TOKEN", default="", help="Run only the world of this token.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a violation to this file, as a page with a time line.",
)
def simulate_command(
    *,
    program: str,
    scenario: str,
    seconds: float,
    worlds: int,
    replicas: int,
    manifests: tuple[Path, ...],
    workloads: bool,
    faults: tuple[str, ...],
    without_faults: tuple[str, ...],
    without_oracles: tuple[str, ...],
    mask: tuple[str, ...],
    replay: str,
    html: Path | None,
) -> None:
    """Run a controller in many simulated worlds with faults, and tell the first that goes wrong.

    The first FILE is the program: its Manager, its function make_app, or another FUNCTION. The
    second has the scenario: `async def scenario(world)`.

    Exits with 1 if a world goes wrong.
    """
    unknown = [name for name in without_oracles if name not in ORACLES]
    if unknown:
        raise click.UsageError(f"no oracle is called {unknown[0]!r}; see --help")
    try:
        report = simulate(
            program,
            scenario,
            replicas=replicas,
            setup=manifests,
            workloads=workloads,
            seconds=seconds,
            worlds=worlds,
            faults=faults,
            without_faults=without_faults,
            without_oracles=without_oracles,
            mask=mask,
            replay=replay,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except TokenError as error:
        raise CommandError(error, 2) from None
    except ConfigError as error:
        click.echo(f"error: {error}", err=True)
        raise click.exceptions.Exit(3) from None
    again = _again(program, scenario)
    click.echo(report.text(replay=again))
    if replay and report.ok:
        click.echo(f"digest: {report.digest}")
    if html is not None and report.found is not None:
        _ = html.write_text(page(report.found, report.coverage, again), encoding="utf-8")
        click.echo(f"page: {html}", err=True)
    if not report.ok:
        raise click.exceptions.Exit(1)


def _again(program: str, scenario: str) -> str:
    """Return the command line that replays a world, without its token."""
    kept = []
    words = iter(sys.argv[1:])
    for word in words:
        if word in {"--replay", "--html", "--for", "--worlds"}:
            _ = next(words, None)
        elif not word.startswith(("--replay=", "--html=", "--for=", "--worlds=")):
            kept.append(word)
    if not kept or kept[0] != "simulate":
        kept = ["simulate", program, scenario]
    return shlex.join(["listwatch", *kept, "--replay"])
