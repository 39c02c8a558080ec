"""The command `listwatch apiserver`."""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

import click

from listwatch.errors import ListWatchError


def write_private(path: Path, text: str) -> None:
    """Write a file in one step, readable for its owner alone.

    Raises:
        OSError: it can't be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


async def _serve(
    *,
    host: str,
    port: int,
    kubeconfig: Path | None,
    token_file: Path | None,
) -> None:
    from listwatch.apiserver.auth import read_tokens  # noqa: PLC0415 - loaded when it runs
    from listwatch.apiserver.server import APIServer  # noqa: PLC0415 - as above

    tokens = None
    if token_file is not None:
        tokens = read_tokens(token_file.read_text(), str(token_file))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with APIServer(host, port, tokens=tokens) as server:
        if kubeconfig is not None:
            write_private(kubeconfig, server.kubeconfig())
        click.echo(f"listening on {server.url}")
        await stop.wait()


@click.command("apiserver")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, show_default=True, help="Port; 0 takes a free one.")
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a kubeconfig for this server to FILE.",
    metavar="FILE",
)
@click.option(
    "--token-auth-file",
    "token_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='Check tokens: a file of lines token,user,uid[,"group1,group2"].',
    metavar="FILE",
)
def apiserver_command(
    host: str, port: int, kubeconfig: Path | None, token_file: Path | None
) -> None:
    """Run an API server for tests and demos, until SIGINT or SIGTERM."""
    try:
        asyncio.run(_serve(host=host, port=port, kubeconfig=kubeconfig, token_file=token_file))
    except (ListWatchError, OSError) as error:
        click.echo(f"listwatch apiserver: {error}", err=True)
        sys.exit(1)
