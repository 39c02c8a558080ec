"""The commands `listwatch webhooks check` and `listwatch webhooks remove`."""

import asyncio

import click

from listwatch.client.client import Client
from listwatch.client.command_line import CommandError, exit_code
from listwatch.client.config import Config
from listwatch.client.connection_options import ConnectionOptions, connection_options
from listwatch.errors import ListWatchError
from listwatch.printable import printable
from listwatch.webhooks.checking import Finding, check_webhooks
from listwatch.webhooks.registration import remove_configurations


@click.group("webhooks", context_settings={"help_option_names": ["-h", "--help"]})
def webhooks_command() -> None:
    """Check the webhooks of a cluster, or remove those of a program."""


def _address(_: click.Context, option: click.Parameter, text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _colon, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9443", param=option)
    return host.strip("[]"), int(port)


@webhooks_command.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@connection_options
@click.option(
    "--address",
    default="",
    callback=_address,
    metavar="HOST:PORT",
    help="Connect here instead, such as to a port-forward of the service.",
)
def check_webhooks_command(
    *, names: tuple[str, ...], connection: ConnectionOptions, address: tuple[str, int] | None
) -> None:
    """Say in words whether the API server can call its webhooks.

    For each webhook of the configurations NAME, or of all, connects as the API server does: is the
    address reachable, and is the certificate valid, for the right name, and signed by an authority
    in caBundle? Conversions of CustomResourceDefinitions are checked too. No review is sent.

    The exit code is 1 if anything is wrong.
    """
    try:
        found = asyncio.run(_check(connection.config(None), names, address))
    except (ListWatchError, TimeoutError) as error:
        raise CommandError(error, exit_code(error)) from None
    for finding in found:
        click.echo(printable(str(finding), None))
    if not found:
        click.echo("there are no webhooks", err=True)
    if not all(finding.ok for finding in found):
        raise click.exceptions.Exit(1)


async def _check(
    config: Config, names: tuple[str, ...], address: tuple[str, int] | None
) -> list[Finding]:
    async with Client.from_config(config) as client:
        return await check_webhooks(client, names, address=address)


@webhooks_command.command("remove")
@click.argument("name")
@connection_options
def remove_webhooks_command(*, name: str, connection: ConnectionOptions) -> None:
    """Remove the webhook configurations of the program NAME, as its Manager is called.

    Removes only what a running manager made. A manager that still runs makes them again, so stop it
    first. Conversions of CustomResourceDefinitions stay, because their objects depend on them.
    """

    async def remove() -> int:
        async with Client.from_config(connection.config(None)) as client:
            return await remove_configurations(client, name)

    try:
        removed = asyncio.run(remove())
    except (ListWatchError, TimeoutError) as error:
        raise CommandError(error, exit_code(error)) from None
    click.echo(f"{removed} removed" if removed else f"no manager made webhooks named {name}")
