"""The command `listwatch why`: why a key of a running controller is not done."""

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlencode

import aiohttp
import click
import msgspec

from listwatch.client.command_line import CommandError, exit_code
from listwatch.clock import Clock
from listwatch.errors import ConfigError, DisconnectedError, ListWatchError, NotFoundError
from listwatch.printable import printable, printable_json
from listwatch.runtime.why_page import PATH, KeyAnswer, WhyDocument
from listwatch.runtime.why_text import headline, reconcile_lines, story_lines

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:([0-9]{1,5}) ")
#: Seconds for an answer, and for a port-forward to begin.
_PATIENCE = 30.0
_MAX_ANSWER = 64 * 2**20


async def ask(port: int, key: str, reconciler: str, *, clock: Clock) -> WhyDocument:
    """Return what the manager at a port of this machine answers.

    Raises:
        DisconnectedError: nothing answers there.
        ConfigError: what answers is no manager.
        TimeoutError: no answer within 30 s.
    """
    parameters = {
        name: value for name, value in (("key", key), ("reconciler", reconciler)) if value
    }
    url = f"http://127.0.0.1:{port}{PATH}?{urlencode(parameters)}"
    where = f"the manager at port {port}"
    try:
        async with (
            clock.timeout(_PATIENCE),
            aiohttp.ClientSession(trust_env=False) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            status, body = response.status, bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > _MAX_ANSWER:
                    raise ConfigError(f"{where} sent more than {_MAX_ANSWER} bytes")
    except aiohttp.ClientError as error:
        raise DisconnectedError(
            f"{where}: {printable(str(error))}; "
            "give its health port with --port, or --pod for one in a cluster"
        ) from None
    if status == 200:
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(body, type=WhyDocument)
    raise ConfigError(
        f"{where} does not answer {PATH} (HTTP status {status}); is it the health port of a "
        "Manager of this version?"
    )


@contextlib.asynccontextmanager
async def forwarded(
    pod: str, port: int, options: tuple[str, ...], *, clock: Clock
) -> AsyncIterator[int]:
    """Run `kubectl port-forward` to a pod's port during the body; yield the local port.

    Args:
        pod: its name.
        port: its health port.
        options: of kubectl, such as --namespace=x.
        clock: measures the time limit.

    Raises:
        ConfigError: kubectl is not installed, or can't forward.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise ConfigError("--pod needs kubectl: install it, or forward the port and give --port")
    process = await asyncio.create_subprocess_exec(
        kubectl, *options, "port-forward", "--address=127.0.0.1", f"pod/{pod}", f":{port}",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None  # noqa: S101 - for the type checker: a pipe
    draining: asyncio.Task[bytes] | None = None
    try:
        said: list[str] = []
        async with clock.timeout(_PATIENCE):
            while line := (await process.stdout.readline()).decode(errors="replace").strip():
                said.append(line)
                if found := _FORWARDING.match(f"{line} "):
                    break
            else:
                words = printable("; ".join(said[-3:])) or "it ended without a word"
                raise ConfigError(f"kubectl port-forward pod/{pod} :{port}: {words}")
        # A full pipe would stop it.
        draining = asyncio.create_task(process.stdout.read())
        yield int(found[1])
    except TimeoutError:
        raise ConfigError(
            f"kubectl port-forward pod/{pod} :{port} did not begin within {_PATIENCE:g} s"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        if draining is not None:
            await draining


class Teller:
    """Prints answers, and later only what is new in them.

    Args:
        key: the key asked for; empty for all in trouble.
        form: text or json.
        write: prints a line.
    """

    def __init__(self, key: str, form: str, write: Callable[[str], object]) -> None:
        self._key = key
        self._form = form
        self._write = write
        self._told: dict[tuple[str, str], tuple[str, str]] = {}
        self._is_first = True

    def tell(self, document: WhyDocument) -> None:
        """Print an answer.

        Raises:
            NotFoundError: nothing knows the key.
        """
        if self._key and not document.keys and self._is_first:
            similar = ", ".join(map(printable, document.similar))
            raise NotFoundError(
                f"no reconciler of {printable(document.manager)} knows {printable(self._key)}"
                + (f"; it knows {similar}" if similar else "; keys are namespace/name, or name")
            )
        new = [found for found in document.keys if self._is_new(found)]
        if self._form == "json":
            if new or self._is_first:
                self._write(printable_json(msgspec.json.encode(document).decode()))
        elif self._key:
            for found in new:
                self._tell_key(found)
        else:
            for found in new:
                self._write(headline(found))
            if self._is_first and not new:
                self._write("no key is in trouble")
        self._told = {
            (found.state.reconciler, found.state.key): _mark(found) for found in document.keys
        }
        gone = self._told.keys() - {
            (each.state.reconciler, each.state.key) for each in document.keys
        }
        for each in gone:
            del self._told[each]
        self._is_first = False

    def _is_new(self, found: KeyAnswer) -> bool:
        return self._told.get((found.state.reconciler, found.state.key)) != _mark(found)

    def _tell_key(self, found: KeyAnswer) -> None:
        state = found.state
        told = self._told.get((state.reconciler, state.key))
        if told is None:
            self._write(headline(found))
            for line in story_lines(state):
                self._write(line)
            return
        ids = [story.id for story in state.stories if story.seconds is not None]
        start = ids.index(told[1]) + 1 if told[1] in ids else 0
        for story in state.stories[start : len(ids)]:
            for line in reconcile_lines(story):
                self._write(line)
        self._write(headline(found))


def _mark(found: KeyAnswer) -> tuple[str, str]:
    """Return what changes when there is something new to tell."""
    ended = [story.id for story in found.state.stories if story.seconds is not None]
    return found.answer.verdict.value, ended[-1] if ended else ""


@click.command("why")
@click.argument("key", required=False, default="")
@click.option("--reconciler", metavar="NAME", default="", help="Only this reconciler.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8080,
    show_default=True,
    help="Health port of the manager, on this machine or in the pod.",
)
@click.option("--pod", metavar="NAME", help="Pod to reach with `kubectl port-forward`.")
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of the pod.")
@click.option("--context", metavar="NAME", help="Context of kubectl.")
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of kubectl.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing what is new, until Ctrl-C.")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output for people or programs.",
)
def why_command(
    *,
    key: str,
    reconciler: str,
    port: int,
    pod: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    follow: bool,
    form: str,
) -> None:
    """Say why KEY of a running controller is not done, and what happened to it.

    KEY is namespace/name, or name. Without KEY, print the keys in trouble, worst first.
    """
    options = tuple(
        f"--{name}={value}"
        for name, value in (
            ("namespace", namespace),
            ("context", context),
            ("kubeconfig", kubeconfig),
        )
        if value
    )
    if options and not pod:
        raise click.UsageError("--namespace, --context and --kubeconfig need --pod")

    async def run() -> None:
        clock = Clock()
        teller = Teller(key, form, click.echo)
        async with contextlib.AsyncExitStack() as stack:
            where = port
            if pod:
                where = await stack.enter_async_context(forwarded(pod, port, options, clock=clock))
            teller.tell(await ask(where, key, reconciler, clock=clock))
            while follow:
                await clock.sleep(1.0)
                teller.tell(await ask(where, key, reconciler, clock=clock))

    try:
        asyncio.run(run())
    except (ListWatchError, TimeoutError) as error:
        raise CommandError(error, exit_code(error)) from None
