"""The command `listwatch migrate`."""

import asyncio

import click

from listwatch.client.client import Client
from listwatch.client.command_line import CommandError, exit_code
from listwatch.client.connection_options import ConnectionOptions, connection_options
from listwatch.errors import ListWatchError
from listwatch.objects import Object
from listwatch.printable import printable
from listwatch.resources.migration import Migration, Outcome, Progress


@click.command("migrate")
@connection_options
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=50.0,
    show_default=True,
    metavar="N",
    help="Maximum objects per second.",
)
@click.option("--dry-run", is_flag=True, help="Let the server check every rewrite; change nothing.")
@click.argument("resource")
def migrate_command(
    *, connection: ConnectionOptions, rate: float, dry_run: bool, resource: str
) -> None:
    """Rewrite the objects of a custom RESOURCE that are stored in old versions.

    When all objects are stored in the storage version, the old versions are removed from the
    definition's status.storedVersions. Then they can be removed from the definition itself.

    Progress is kept in an annotation of the definition. After an interruption, run the command
    again to continue. Objects that can't be rewritten are listed; then the exit code is 1, and
    nothing is removed.
    """
    try:
        outcome = asyncio.run(_migrate(connection, resource, rate, dry_run=dry_run))
    except (ListWatchError, TimeoutError) as error:
        raise CommandError(error, exit_code(error)) from None
    click.echo(_words(outcome, dry_run=dry_run))
    if outcome.failed:
        raise click.exceptions.Exit(1)


async def _migrate(
    connection: ConnectionOptions, resource: str, rate: float, *, dry_run: bool
) -> Outcome:
    def on_failure(obj: Object, error: Exception) -> None:
        click.echo(printable(f"{obj.kind} {obj.key}: {error}"), err=True)

    def on_progress(progress: Progress) -> None:
        left = "" if progress.remaining is None else f", about {progress.remaining} left"
        failed = f", {progress.failed} failed" if progress.failed else ""
        click.echo(f"{resource}: {progress.rewritten} rewritten{failed}{left}", err=True)

    async with Client.from_config(connection.config(None)) as client:
        migration = Migration(
            client,
            resource,
            rate=rate,
            dry_run=dry_run,
            on_failure=on_failure,
            on_progress=on_progress,
        )
        return await migration.run()


def _words(outcome: Outcome, *, dry_run: bool) -> str:
    if outcome.failed:
        return (
            f"{outcome.rewritten} objects rewritten in {outcome.version}, {outcome.failed} failed; "
            "no version was pruned"
        )
    if not outcome.pruned:
        return f"nothing to do: all objects are stored in {outcome.version}"
    old = ", ".join(outcome.pruned)
    if dry_run:
        return (
            f"dry run: {outcome.rewritten} objects would be rewritten in {outcome.version}, and "
            f"{old} pruned"
        )
    return f"{outcome.rewritten} objects rewritten in {outcome.version}; {old} pruned"
