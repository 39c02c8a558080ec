"""The command `listwatch apiserver`."""

import asyncio
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from listwatch.apiserver.beside import run_beside
from listwatch.errors import ConfigError, ListWatchError
from listwatch.private_file import tighten
from listwatch.signal_handlers import handling

if TYPE_CHECKING:
    from listwatch.apiserver.http.tls import TLS
    from listwatch.apiserver.server import EmbeddedAPIServer


def write_private(path: Path, text: str) -> str:
    """Replace a file atomically, with mode 0600 from the first byte.

    Returns:
        A one-line warning if others could read the old file; else "".

    Raises:
        PrivateFileError: others can read the old file, and its mode cannot be changed.
        OSError: writing failed.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            if hasattr(os, "fchmod"):
                os.fchmod(handle, 0o600)  # a umask can remove the owner's own permissions
            file.write(text)
        warning = tighten(path) if path.exists() else ""
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return warning


async def _serve(
    server: "EmbeddedAPIServer",
    kubeconfig: Path | None,
    command: Sequence[str],
    *,
    until_end_of_input: bool,
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look_at_input() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()

    if until_end_of_input:
        loop.add_reader(0, look_at_input)
    async with server, AsyncExitStack() as stack:
        stack.enter_context(handling((signal.SIGINT, signal.SIGTERM), lambda _: stop.set()))
        if command and kubeconfig is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="listwatch-"))
            kubeconfig = Path(directory, "kubeconfig")
        if kubeconfig is not None:
            try:
                warning = write_private(kubeconfig, server.kubeconfig())
            except OSError as error:
                raise ConfigError(f"cannot write {kubeconfig}: {error.strerror}") from error
            if command:
                stack.callback(kubeconfig.unlink, missing_ok=True)
            if warning:
                click.echo(f"listwatch apiserver: {warning}", err=True)
        gc.freeze()  # loaded modules live as long as the process
        gc.enable()
        code = 0
        if command and kubeconfig is not None:
            code, why = await run_beside(command, kubeconfig, stack)
            if why:
                click.echo(f"listwatch apiserver: {why}", err=True)
        else:
            click.echo(f"listening on {server.url}")
            await stop.wait()
    gc.freeze()  # the process ends: don't collect garbage
    return code


def _tls(
    host: str,
    certificate: Path | None,
    key: Path | None,
    client_authority: Path | None,
    *,
    generated: bool,
) -> "TLS | None":
    if not generated and certificate is None and key is None and client_authority is None:
        return None
    from listwatch.apiserver.http.tls import generated_tls, tls_from_files  # noqa: PLC0415 - as above

    if generated:
        return generated_tls(host)
    if certificate is None or key is None:
        raise ConfigError("--tls-cert-file and --tls-private-key-file must be given together")
    return tls_from_files(certificate, key, client_authority)


_SECONDS = click.FloatRange(min=0)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("apiserver", options_metavar="[OPTIONS] [--")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARG]...]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a kubeconfig for this server to FILE.",
    metavar="FILE",
)
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Persist objects in FILE; created if missing.",
    metavar="FILE",
)
@click.option(
    "--token-auth-file",
    "token_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='Require a token from FILE, which has lines token,user,uid[,"group1,group2"].',
    metavar="FILE",
)
@click.option("--tls", is_flag=True, help="Serve HTTPS with a CA generated for this run.")
@click.option(
    "--tls-cert-file", "certificate", type=_FILE, help="Serve HTTPS with this certificate."
)
@click.option("--tls-private-key-file", "key", type=_FILE, help="Private key of the certificate.")
@click.option(
    "--client-ca-file",
    "client_authority",
    type=_FILE,
    help="CA of client certificates, which name user and groups.",
)
@click.option(
    "--no-controllers",
    is_flag=True,
    help="Do not collect garbage or delete the contents of namespaces.",
)
@click.option(
    "--workloads",
    is_flag=True,
    help="Run workloads: controllers make pods, a scheduler places them, kubelets let them run.",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="With --workloads: nodes to make, unless there are some.",
)
@click.option(
    "--start-seconds", type=_SECONDS, default=0.0, help="With --workloads: until a pod is ready."
)
@click.option(
    "--run-seconds",
    type=_SECONDS,
    default=0.0,
    help="With --workloads: until a pod of a Job is done.",
)
@click.option(
    "--stop-seconds",
    type=_SECONDS,
    default=0.0,
    help="With --workloads: until a deleted pod is gone.",
)
@click.option(
    "--back-off-seconds",
    type=_SECONDS,
    default=10.0,
    show_default=True,
    help="With --workloads: first wait before a failed container restarts.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Open connections; more wait until others end.",
)
@click.option("--test-api", is_flag=True, help="Serve the control API for tests below /-/.")
@click.option("--seed", type=int, help="Seed for repeatable uids, names and faults.")
@click.option(
    "--until-end-of-input",
    is_flag=True,
    help="Exit at the end of standard input, such as when the parent process exits.",
)
def apiserver_command(
    *,
    command: tuple[str, ...],
    host: str,
    port: int,
    kubeconfig: Path | None,
    data: Path | None,
    token_file: Path | None,
    tls: bool,
    certificate: Path | None,
    key: Path | None,
    client_authority: Path | None,
    no_controllers: bool,
    workloads: bool,
    nodes: int,
    start_seconds: float,
    run_seconds: float,
    stop_seconds: float,
    back_off_seconds: float,
    max_connections: int,
    test_api: bool,
    seed: int | None,
    until_end_of_input: bool,
) -> None:
    """Run an API server for tests and demos, until SIGINT or SIGTERM.

    With COMMAND, run it with KUBECONFIG set, stop when it exits, remove the kubeconfig and return
    its exit code.

    \b
      listwatch apiserver -- python controller.py
    """  # noqa: D301 - click's marker: do not rewrap
    gc.disable()  # start-up creates no garbage
    from listwatch.apiserver.access.auth import read_tokens  # noqa: PLC0415 - loaded on first use
    from listwatch.apiserver.server import EmbeddedAPIServer  # noqa: PLC0415 - as above
    from listwatch.apiserver.workloads.options import Workloads  # noqa: PLC0415 - as above

    running = Workloads(
        nodes=nodes,
        start_seconds=start_seconds,
        run_seconds=run_seconds,
        stop_seconds=stop_seconds,
        back_off_seconds=back_off_seconds,
    )
    try:
        tokens = None
        if token_file is not None:
            tokens = read_tokens(token_file.read_text(), str(token_file))
        server = EmbeddedAPIServer(
            host,
            port,
            data=data,
            tokens=tokens,
            controllers=not no_controllers,
            workloads=running if workloads else False,
            connection_limit=max_connections,
            test_api=test_api,
            seed=seed,
            tls=_tls(host, certificate, key, client_authority, generated=tls),
        )
        try:
            code = asyncio.run(
                _serve(server, kubeconfig, command, until_end_of_input=until_end_of_input)
            )
        finally:
            server.close()
    except (ListWatchError, OSError) as error:
        click.echo(f"listwatch apiserver: {error}", err=True)
        sys.exit(1)
    if code:
        sys.exit(code)
