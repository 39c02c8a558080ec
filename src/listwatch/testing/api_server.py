"""An API server for tests: in this process or a separate one, with or without asyncio."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from listwatch.apiserver.access.asked_rights import TEST_CLIENT, AskedRight
from listwatch.apiserver.http.faults import Fault
from listwatch.apiserver.http.request_log import RecordedRequest
from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.apiserver.webhooks.client import Misbehaviour
from listwatch.apiserver.workloads.failures import PodFailure
from listwatch.apiserver.workloads.options import Workloads
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.clock import Clock
from listwatch.errors import ConfigError
from listwatch.testing.server_homes import (
    Home,
    InLoop,
    InSubprocess,
    InThread,
    ServerOptions,
    config_of,
)

if TYPE_CHECKING:
    from listwatch.testing.program_rights import ProgramRoles, Roles

__all__ = ["APIServer", "Fault"]


class APIServer:
    """An API server that starts in milliseconds and lives as long as a `with` statement.

    `async with APIServer() as server` runs it in the event loop of the test; `with APIServer() as
    server` in its own thread; `APIServer(subprocess=True)` in a separate process, with either
    statement. The methods are the same in all three forms and callable from any thread (with `async
    with` and no subprocess: only from the event loop's thread). For a subprocess each call is a
    short request over loopback. A process forked by the test may leave the statement without ending
    the server.

    Args:
        subprocess: run it in a separate process.
        data: a file that keeps the objects; None keeps them in memory.
        tokens: users, as lines `token,user,uid,"group1,group2"` of kube-apiserver's token file; ""
            lets everybody do everything.
        controllers: run the garbage collector and the deletion of namespaces.
        workloads: create and run the pods of Deployments and other workloads; a `Workloads` sets
            the details.
        clock: dates objects and times everything; a `FakeClock` for tests with `async with`.
        seed: makes uids, generated names and random faults the same in each run.
        tls: use HTTPS, with a CA made for this run; needs the extra `tls`.
        services: the host and port of services that webhooks run behind, by `NAMESPACE/NAME`; see
            `add_service`.
        rbac: the roles of a program under test: a YAML file, the program's Python file (for the
            roles that `listwatch rbac` prints), or manifests. Then `config` is that of the
            program's service account, `client()` is an administrator's, and `missing_rights` says
            what the program may not do.

    Raises:
        ConfigError: at the start, the data is unusable, or the process did not start; or `rbac`
            can't be used.
    """

    def __init__(
        self,
        *,
        subprocess: bool = False,
        data: str | os.PathLike[str] | None = None,
        tokens: str = "",
        controllers: bool = True,
        workloads: bool | Workloads = False,
        seed: int | None = None,
        tls: bool = False,
        clock: Clock | None = None,
        services: Mapping[str, tuple[str, int]] | None = None,
        rbac: "Roles | None" = None,
    ) -> None:
        if clock is not None and subprocess:
            raise ConfigError("a server in a separate process uses that process's clock")
        self._roles = None if rbac is None else _roles(rbac, tokens)
        tokens = tokens if self._roles is None else self._roles.tokens
        file = None if data is None else Path(data)
        self._options = ServerOptions(file, tokens, controllers, workloads, seed, tls, clock)
        self._subprocess = subprocess
        self._services = dict(services or {})
        self._home: Home | None = None
        self._owner = 0
        self._config: Config | None = None

    # -- lifecycle -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._begin(InSubprocess(self._options) if self._subprocess else InThread(self._options))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    async def __aenter__(self) -> Self:
        if self._subprocess:
            await asyncio.to_thread(self._begin, InSubprocess(self._options))
            return self
        server = self._options.server()
        try:
            await server.start()
            self._begin(InLoop(server))
        except BaseException:
            await server.stop()
            server.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        home = self._home
        if isinstance(home, InLoop):
            await home.server.stop()
            self._end()
        else:
            await asyncio.to_thread(self._end)

    def _begin(self, home: Home) -> None:
        if self._home is not None:
            raise RuntimeError("this APIServer is already running")
        self._owner = os.getpid()
        home.start()
        self._home = home
        try:
            self._config = config_of(home.kubeconfig())
            for name, (host, port) in self._services.items():
                self.add_service(name, host, port)
            if self._roles is not None:
                self.control("create", self._roles.manifests)
                self.record_rights()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        home, self._home = self._home, None
        # A fork of the test leaves the `with` statement too, and must not end the test's server.
        if home is not None and os.getpid() == self._owner:
            home.stop()

    # -- connecting ------------------------------------------------------------------------------

    @property
    def _running(self) -> Home:
        if self._home is None:
            raise RuntimeError("this APIServer is not running: use it in a `with` statement")
        return self._home

    @property
    def config(self) -> Config:
        """The configuration for a `Client`, with the first token if there are any.

        With `rbac`, it is that of the program's service account.
        """
        found = self._first_config
        if self._roles is None:
            return found
        account = {"token": self._roles.token, "namespace": self._roles.namespace}
        return msgspec.structs.replace(found, **account)

    @property
    def _first_config(self) -> Config:
        if self._config is None:
            raise RuntimeError("this APIServer never ran: use it in a `with` statement")
        return self._config

    @property
    def url(self) -> str:
        """The URL, such as http://127.0.0.1:34567."""
        return self.config.server

    def kubeconfig(self) -> str:
        """Return a kubeconfig for the server, as YAML, for other programs."""
        return self._running.kubeconfig()

    def client(self, *, token: str = "") -> Client:
        """Return a client of the server for the test itself: an asynchronous context manager.

        Args:
            token: the user's token; "" for the first in `tokens`, or with `rbac` an administrator.
        """
        config = msgspec.structs.replace(self._first_config, user_agent=TEST_CLIENT)
        return Client(msgspec.structs.replace(config, token=token) if token else config)

    @property
    def embedded(self) -> EmbeddedAPIServer:
        """The server itself, if it runs in this process; for its event loop.

        Raises:
            RuntimeError: it runs elsewhere.
        """
        home = self._running
        if isinstance(home, InSubprocess):
            raise RuntimeError("the server runs in a separate process")  # noqa: TRY004 - about the value, not the type
        assert isinstance(home, InLoop | InThread)  # noqa: S101 - there are no others
        return home.server

    # -- causing trouble -------------------------------------------------------------------------

    def control(self, name: str, value: object = None) -> Any:
        """Do what `POST /-/NAME` does, with a JSON value; return a JSON value.

        Raises:
            LookupError: there is no such control.
            ValueError: the value is invalid, or the action is impossible.
        """
        body = b"" if value is None else msgspec.json.encode(value)
        return self._running.perform(name, body)

    def add_faults(self, *faults: Fault) -> None:
        """Append faults to those added before."""
        self.control("add-faults", faults)

    def clear_faults(self) -> None:
        """Remove all faults."""
        self.control("faults", [])

    @property
    def fault_hits(self) -> int:
        """Number of requests hit by a fault."""
        return int(self.control("faults")["hits"])

    def compact(self, revision: int | None = None) -> None:
        """Discard the history up to a revision, or all of it: older watches get 410."""
        self.control("compact", {"revision": revision})

    def restart(self, *, downtime: float = 0.0) -> None:
        """Start a restart, on the same port and with the same objects.

        Args:
            downtime: seconds during which connections are refused.
        """
        self.control("restart", {"downtime": downtime})

    def cut_watches(self) -> int:
        """Break the connection of every watch; return how many there were."""
        return int(self.control("cut-watches")["cut"])

    def take_snapshot(self) -> int:
        """Keep the current objects for `rewind`; return their revision."""
        return int(self.control("snapshot")["revision"])

    def rewind(self, revision: int | None = None) -> None:
        """Go back in time, like a restore from a backup: resource versions repeat.

        Args:
            revision: a revision still in the history; None for the last snapshot.

        Raises:
            ValueError: there is no such state, or a data file is in use.
        """
        self.control("rewind", {"revision": revision})

    def withhold_bookmarks(self) -> None:
        """Stop sending bookmarks, except those that end initial events."""
        self.control("bookmarks", {"withhold": True})

    def send_bookmarks(self) -> None:
        """Send a bookmark now to every watch that requested them; stop withholding them."""
        self.control("bookmarks", {"withhold": False})

    def fall_behind(self, revision: int | None = None) -> None:
        """Freeze the second replica now, or at an earlier revision.

        A `Fault` with `stale` sends requests there.
        """
        self.control("replica", {"revision": revision})

    def catch_up(self) -> None:
        """Let the second replica follow again."""
        self.control("replica", {"stale": False})

    def add_service(self, name: str, host: str, port: int) -> None:
        """Map a service, behind which webhooks run, to the address of a server.

        The certificate must be for `NAME.NAMESPACE.svc`.

        Args:
            name: the service, as `NAMESPACE/NAME`.
            host: the host that serves it.
            port: the port there, whatever port the service has.

        Raises:
            ValueError: the name has another form.
        """
        self.control("service", {"name": name, "host": host, "port": port})

    def fail_webhooks(self, how: Misbehaviour) -> None:
        """Let calls of all webhooks fail from now on, until `heal_webhooks`.

        Args:
            how: "slow" webhooks do not answer before the time limit, "refusing" ones accept no
                connection, "garbage" is what they answer, and "expired" is their certificate.

        Raises:
            ValueError: it is none of these.
        """
        self.control("fail-webhooks", {"how": how})

    def heal_webhooks(self) -> None:
        """Call webhooks again; slow calls continue."""
        self.control("fail-webhooks")

    def limit_in_flight(self, limit: int | None) -> None:
        """Answer requests beyond a limit with 429, like a real server's flow control.

        Args:
            limit: maximum concurrent requests except watches; None for no limit.
        """
        self.control("in-flight", {"limit": limit})

    def expire_certificate(self) -> None:
        """Use an expired server certificate for new connections.

        Raises:
            ValueError: the server was created without `tls`.
        """
        self.control("certificate", {"expired": True})

    def renew_certificate(self) -> None:
        """Use a valid server certificate, from the same CA, for new connections.

        Raises:
            ValueError: the server was created without `tls`.
        """
        self.control("certificate", {"expired": False})

    def expire_client_certificate(self) -> None:
        """Refuse client certificates with 401, as if they had expired, on open connections too.

        Raises:
            ValueError: the server was created without `tls`.
        """
        self.control("client-certificates", {"expired": True})

    def renew_client_certificate(self) -> None:
        """Accept client certificates again.

        Raises:
            ValueError: the server was created without `tls`.
        """
        self.control("client-certificates", {"expired": False})

    # -- recording requests ----------------------------------------------------------------------

    def record_requests(self, limit: int = 10_000) -> None:
        """Record requests from now on, and discard earlier records.

        Args:
            limit: number of last requests to keep; 0 to record none.
        """
        self.control("record-requests", {"limit": limit})

    @property
    def requests(self) -> list[RecordedRequest]:
        """The requests since `record_requests`, in order of arrival."""
        return msgspec.convert(self.control("requests"), list[RecordedRequest])

    def record_rights(self) -> None:
        """Record from now on who asks for which rights, and discard earlier records."""
        self.control("record-rights")

    @property
    def asked_rights(self) -> list[AskedRight]:
        """The rights asked for since `record_rights`, each once."""
        return msgspec.convert(self.control("asked-rights"), list[AskedRight])

    @property
    def missing_rights(self) -> str:
        """What the program may not do although it tried, and the rules to add; "" for nothing.

        Empty without `rbac`. `record_rights` forgets what was refused before.
        """
        return "" if self._roles is None else self._roles.missing(self.asked_rights)

    # -- pods that run -----------------------------------------------------------------------

    def fail_pods(
        self,
        reason: str,
        *,
        selector: str = "",
        namespace: str = "*",
        name: str = "*",
        times: int = 0,
        exit_code: int = 1,
    ) -> None:
        """Make pods fail from now on, running and future ones; see `PodFailure`.

        Raises:
            ValueError: an unknown reason, an invalid selector, or a server created without
                `workloads`.
        """
        failure = PodFailure(reason, namespace, name, selector, times, exit_code)
        self.control("fail-pods", failure)

    def heal_pods(self) -> None:
        """End all failures of pods, and recover all lost nodes."""
        self.control("heal-pods")

    def lose_node(self, name: str) -> None:
        """Make a node unreachable; its pods are deleted when their tolerations expire.

        Raises:
            ValueError: there is no such node, or the server was created without `workloads`.
        """
        self.control("lose-node", {"name": name})

    def recover_node(self, name: str) -> None:
        """Recover a lost node.

        Raises:
            ValueError: as `lose_node`.
        """
        self.control("recover-node", {"name": name})


def _roles(rbac: "Roles", tokens: str) -> "ProgramRoles":
    from listwatch.testing.program_rights import ProgramRoles  # noqa: PLC0415 - loads the runtime

    if tokens:
        raise ConfigError("give an APIServer either rbac= or tokens=, not both")
    return ProgramRoles.of(rbac)
