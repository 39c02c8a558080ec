"""Where a test's API server runs: in its event loop, in a thread, or in a separate process."""

import asyncio
import contextlib
import http.client
import os
import selectors
import signal
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

import msgspec

from listwatch.apiserver.control import Control
from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.apiserver.workloads.options import Workloads
from listwatch.client.config import Config
from listwatch.client.kubeconfig import load_config
from listwatch.clock import Clock
from listwatch.errors import ConfigError, ListWatchError

#: Seconds that a server in a separate process may take to start, on a busy machine.
_START_LIMIT = 30.0
#: Seconds that it may then take to respond, or to end before it is killed.
_STOP_LIMIT = 30.0


class Home(Protocol):
    """Where the server runs."""

    def start(self) -> None:
        """Start it, and return when it serves."""

    def stop(self) -> None:
        """End it."""

    def perform(self, name: str, body: bytes) -> object:
        """Do what `POST /-/NAME` does with a JSON body; return a JSON value."""

    def kubeconfig(self) -> str:
        """Return a kubeconfig for it, as YAML."""


class ServerOptions(msgspec.Struct, frozen=True):
    """The options of `APIServer` that the server itself has."""

    data: Path | None
    tokens: str
    controllers: bool
    workloads: bool | Workloads
    seed: int | None
    tls: bool
    clock: Clock | None

    def server(self) -> EmbeddedAPIServer:
        """Return a server for this process."""
        from listwatch.apiserver.access.auth import read_tokens  # noqa: PLC0415 - seldom needed
        from listwatch.apiserver.http.tls import generated_tls  # noqa: PLC0415 - as above

        return EmbeddedAPIServer(
            data=self.data,
            tokens=read_tokens(self.tokens, "tokens") if self.tokens else None,
            controllers=self.controllers,
            workloads=self.workloads,
            clock=self.clock,
            seed=self.seed,
            test_api=True,
            tls=generated_tls("127.0.0.1") if self.tls else None,
        )


class InLoop:
    """In the event loop of its user, who has started it and will stop it."""

    def __init__(self, server: EmbeddedAPIServer) -> None:
        self.server = server
        self._control = Control(server)

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """End it."""
        self.server.close()

    def perform(self, name: str, body: bytes) -> object:
        """Do what `POST /-/NAME` does with a JSON body; return a JSON value."""
        return self._control.perform(name, body)

    def kubeconfig(self) -> str:
        """Return a kubeconfig for it, as YAML."""
        return self.server.kubeconfig()


class InThread:
    """In an event loop in its own thread."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._thread = threading.Thread(target=self._run, name="listwatch-apiserver", daemon=True)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._server: EmbeddedAPIServer | None = None

    @property
    def server(self) -> EmbeddedAPIServer:
        """The server, for its own event loop."""
        assert self._server is not None  # noqa: S101 - available only after the start
        return self._server

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        async with self._options.server() as self._server:
            self._ready.set()
            await self._end.wait()

    def start(self) -> None:
        """Start it, and return when it serves."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def stop(self) -> None:
        """End it."""
        if self._loop is not None and self._end is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed, after a failure
                self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _in_loop(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return function()

        if self._loop is None:
            raise RuntimeError("this APIServer is not running")
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def perform(self, name: str, body: bytes) -> object:
        """Do what `POST /-/NAME` does with a JSON body; return a JSON value."""
        return self._in_loop(lambda: Control(self.server).perform(name, body))

    def kubeconfig(self) -> str:
        """Return a kubeconfig for it, as YAML."""
        return self.server.kubeconfig()


class InSubprocess:
    """In a separate process."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._process: Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None
        self._kubeconfig = ""
        self._config: Config | None = None

    def start(self) -> None:
        """Start it, and return when it serves."""
        options = self._options
        with tempfile.TemporaryDirectory(prefix="listwatch-") as name:
            kubeconfig, tokens = Path(name, "kubeconfig"), Path(name, "tokens")
            command = [sys.executable, "-m", "listwatch", "apiserver", "--test-api"]
            command += ["--kubeconfig", str(kubeconfig), "--until-end-of-input"]
            if options.data is not None:
                command += ["--data", str(options.data)]
            if options.tokens:
                tokens.touch(mode=0o600)
                tokens.write_text(options.tokens)
                command += ["--token-auth-file", str(tokens)]
            if not options.controllers:
                command.append("--no-controllers")
            command += _workload_options(options.workloads)
            if options.tls:
                command.append("--tls")
            if options.seed is not None:
                command += ["--seed", str(options.seed)]
            # a file, because an unread pipe would block the server once it is full
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
            self._process = Popen(  # noqa: S603 - our own command
                command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=self._complaints,
                # the server connects only to webhooks, with their own CAs: don't load the system's
                env={**os.environ, "SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull},
            )
            try:
                self._wait(self._process)
                self._kubeconfig = kubeconfig.read_text()
            except BaseException:
                self.stop()
                raise
        self._config = config_of(self._kubeconfig)

    def _wait(self, process: Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - a pipe was requested
        deadline = time.monotonic() + _START_LIMIT
        said = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in said:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ConfigError(f"the API server did not start within {_START_LIMIT:g} s")
                part = os.read(process.stdout.fileno(), 4096)
                if not part:
                    words = self._complained().strip().removeprefix("listwatch apiserver: ")
                    raise ConfigError(f"the API server did not start: {words}")
                said += part

    def _complained(self) -> str:
        if self._complaints is None:
            return ""
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace")

    def stop(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=_STOP_LIMIT)
        except TimeoutExpired:
            process.kill()
            process.communicate()
            raise ListWatchError("the API server did not stop and was killed") from None
        finally:
            if self._kubeconfig:
                sys.stderr.write(self._complained())
            if self._complaints is not None:
                self._complaints.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._config is None:
            raise RuntimeError("this APIServer is not running")
        url = urlsplit(self._config.server)
        if url.scheme == "http":
            return http.client.HTTPConnection(url.netloc, timeout=_STOP_LIMIT)
        trust = ssl.create_default_context(
            cadata=self._config.certificate_authority_data.decode("ascii")
        )
        return http.client.HTTPSConnection(url.netloc, timeout=_STOP_LIMIT, context=trust)

    def perform(self, name: str, body: bytes) -> object:
        """Do what `POST /-/NAME` does with a JSON body; return a JSON value."""
        connection = self._connection()
        try:
            connection.request("POST", f"/-/{name}", body)
            answer = connection.getresponse()
            value = msgspec.json.decode(answer.read())
        finally:
            connection.close()
        if answer.status == 404:
            raise LookupError(value["error"])
        if answer.status != 200:
            raise ValueError(value["error"])
        return value

    def kubeconfig(self) -> str:
        """Return a kubeconfig for it, as YAML."""
        return self._kubeconfig


def _workload_options(workloads: bool | Workloads) -> list[str]:  # noqa: FBT001 - as it is given
    if not workloads:
        return []
    given = Workloads() if isinstance(workloads, bool) else workloads
    return [
        "--workloads",
        *(
            f"--{name.replace('_', '-')}={value}"
            for name, value in msgspec.structs.asdict(given).items()
        ),
    ]


def config_of(kubeconfig: str) -> Config:
    """Return the configuration in a kubeconfig, given as YAML."""
    with tempfile.TemporaryDirectory(prefix="listwatch-") as name:
        path = Path(name, "kubeconfig")
        path.touch(mode=0o600)
        path.write_text(kubeconfig)
        # A token from a file is never sent over http; one from a program is, on loopback.
        return msgspec.structs.replace(load_config(path, environ={}), tls_only=False)
