"""The server as a whole: made, started, restarted, stopped."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import yaml
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import BadHttpMethod
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from listwatch.apiserver import refusal
from listwatch.apiserver.auth import BOOTSTRAP, Access
from listwatch.apiserver.call import BODY_LIMIT, User
from listwatch.apiserver.control import Control
from listwatch.apiserver.controllers import Controllers
from listwatch.apiserver.custom_resources import CustomResources
from listwatch.apiserver.defaults import apply_defaults
from listwatch.apiserver.faults import Faults
from listwatch.apiserver.http import Api
from listwatch.apiserver.journal import SQLiteJournal
from listwatch.apiserver.negotiation import JSON
from listwatch.apiserver.reading import Reader
from listwatch.apiserver.registry import Registry, WriteContext
from listwatch.apiserver.resources import Resource, ResourceTable
from listwatch.apiserver.schema import ANY, facts
from listwatch.apiserver.storage import Entry, Snapshot, Store, StoreStatistics
from listwatch.apiserver.subresources import Subresources
from listwatch.apiserver.writing import Writer
from listwatch.clock import Clock
from listwatch.errors import ConfigError

_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_CLUSTER = "listwatch"


class APIServer:
    """An API server for Kubernetes clients, in this process, without nodes.

    An asynchronous context manager: it listens from `async with` to its end. For one event loop;
    one instance may be started and stopped several times and keeps its objects.

    Args:
        host: the address to listen on.
        port: the port; 0 takes a free one, which stays the same through `restart`.
        clock: dates objects and times watches.
        data: a file that keeps the objects; None keeps them in memory.
        tokens: who the bearer of each token is; None lets everybody do everything.
        controllers: whether the garbage collector and the deletion of namespaces run.
        history_limit: how many changes at most are kept for watches and exact lists.
        seed: makes uids, generated names and time-outs the same in each run; None does not.
        backlog_limit: how many changes may wait for the slow client of a watch.
        test_api: whether the paths below /-/ let clients control the server, for tests.

    Raises:
        ConfigError: at the start, the port is taken or the data can't be used.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        clock: Clock | None = None,
        data: Path | None = None,
        tokens: Mapping[str, User] | None = None,
        controllers: bool = True,
        history_limit: int = 100_000,
        seed: int | None = None,
        backlog_limit: int = 20_000,
        test_api: bool = False,
    ) -> None:
        self.host = host
        self.port = port
        self._clock = clock if clock is not None else Clock()
        randomness = random.Random(seed)  # noqa: S311 - names, not secrets
        self.store = Store(self._clock, history_limit=history_limit)
        self.table = ResourceTable(facts())
        self.registry = Registry(self.store, self._clock, randomness=randomness)
        self._reader = Reader(
            self.store,
            self.registry,
            self._clock,
            randomness=randomness,
            backlog_limit=backlog_limit,
        )
        self._writer = Writer(self.registry, self._reader)
        #: what is to go wrong, for tests
        self.faults = Faults(self._clock, randomness)
        self._snapshot: Snapshot | None = None
        self.access = Access(self.store, tokens=tokens)
        self._tokens = tokens
        self.api = Api(
            self.table,
            self.registry,
            self._reader,
            self._writer,
            self.access,
            Subresources(self.registry, self._reader, self._writer, self.access),
            self.faults,
        )
        if test_api:
            self.api.extra_paths["/-/"] = Control(self).handle
        self._journal = None if data is None else SQLiteJournal(data)
        if self._journal is not None:
            self._journal.load(self.store, self._entry)
            self.store.journal = self._journal
        self.custom_resources = CustomResources(self.table, self.registry, self.store, self._reader)
        self._runner: web.ServerRunner | None = None
        self._controllers = (
            Controllers(self.store, self.registry, self.table, self._clock) if controllers else None
        )
        self._bootstrap()

    def _bootstrap(self) -> None:
        context = WriteContext(manager="kube-apiserver")
        namespaces = self.table.get("", "v1", "namespaces")
        if namespaces is None:
            raise ConfigError("the schema facts in the package have no namespaces")
        for name in _NAMESPACES:
            if self.registry.find(namespaces, "", name) is None:
                obj = {"metadata": {"name": name}}
                apply_defaults("namespaces", "", obj)
                self.registry.create(namespaces, "", obj, context)
        for plural, facts_ in BOOTSTRAP:
            resource = self.table.get("rbac.authorization.k8s.io", "v1", plural)
            if resource is None:
                continue
            name = facts_["metadata"]["name"]
            if self.registry.find(resource, "", name) is None:
                copied = msgspec.json.decode(msgspec.json.encode(facts_))
                self.registry.create(resource, "", copied, context)

    def _entry(self, bucket: str, data: bytes) -> Entry:
        obj = msgspec.json.decode(data)
        revision = int(obj["metadata"]["resourceVersion"])
        for resource in self.table:
            if resource.storage == bucket and resource.convert is None:
                return self.registry.entry(resource, obj, revision)
        # of a custom resource, whose definition is read later
        group, _, name = bucket.partition("/")
        plain = Resource(group, "", name, "", schema=ANY)
        return self.registry.entry(plain, obj, revision)

    # -- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            ConfigError: the address can't be listened on.
        """
        if self._runner is not None:
            return
        server = _Server(
            self.api.handle,
            request_factory=_make_request,
            handler_cancellation=True,
            access_log=None,
        )
        runner = web.ServerRunner(server, shutdown_timeout=0.05)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self.host, self.port, backlog=1024, reuse_address=True)
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror or error}; choose "
                "another port, or 0 for a free one"
            ) from None
        self._runner = runner
        _, self.port, *_ = runner.addresses[0]
        self.api.address = f"{self.host}:{self.port}"
        if self._controllers is not None:
            self._controllers.start()

    async def stop(self) -> None:
        """Stop listening and end every watch cleanly; the objects stay."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if self._controllers is not None:
            self._controllers.stop()
        for site in list(runner.sites):
            await site.stop()
        for stream in list(self._reader.streams):
            stream.stop()
        # lets the streams write their ends before their connections are closed
        for _ in range(3):
            await asyncio.sleep(0)
        await runner.cleanup()

    async def restart(self, *, downtime: float = 0.0) -> None:
        """Stop and start again on the same port, with the same objects.

        Args:
            downtime: seconds in between, during which connections are refused.
        """
        await self.stop()
        if downtime > 0:
            await self._clock.sleep(downtime)
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
        self.close()

    def close(self) -> None:
        """Let go of the data file; the server can't be started again. Harmless without one."""
        if self._journal is not None:
            self._journal.close()

    # -- for tests ---------------------------------------------------------------------------

    @property
    def withhold_bookmarks(self) -> bool:
        """Whether watches get no bookmarks but the one that ends the initial events."""
        return self._reader.withhold_bookmarks

    @withhold_bookmarks.setter
    def withhold_bookmarks(self, on: bool) -> None:
        self._reader.withhold_bookmarks = on
        for stream in self._reader.streams:
            stream.withhold_bookmarks = on

    def send_bookmarks(self) -> None:
        """Send a bookmark now to every watch that asked for them."""
        for stream in self._reader.streams:
            stream.send_bookmark()

    def cut_watches(self) -> int:
        """Break the connection of every watch; returns how many there were."""
        streams = list(self._reader.streams)
        for stream in streams:
            stream.cut()
        return len(streams)

    def take_snapshot(self) -> int:
        """Keep the present objects for `rewind`; returns their revision."""
        self._snapshot = self.store.snapshot()
        return self._snapshot.revision

    def rewind(self) -> None:
        """Go back to the snapshot, as a restore from a backup does: resource versions repeat.

        Raises:
            ValueError: no snapshot was taken, or a data file is in use.
        """
        if self._snapshot is None or self._journal is not None:
            raise ValueError("a snapshot has to be taken before, and no data file be in use")
        self.cut_watches()
        revision, entries = self._snapshot
        self.store.restore(revision, revision, entries)

    def stale_replica(self, on: bool = True) -> None:  # noqa: FBT001, FBT002 - one word, one meaning
        """Answer from now on as a replica that has fallen behind, or catch up.

        Lists that need not be new are as of this moment, and watches get no changes; consistent
        reads and writes go on.
        """
        self._reader.stale_at = self.store.revision if on else None
        for stream in self._reader.streams:
            stream.hold(on)

    # -- for its users -----------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The server's address, such as http://127.0.0.1:34567."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def kubeconfig(self) -> str:
        """Return a kubeconfig for this server, as YAML, with the first token if there are any."""
        user: dict[str, str] = {}
        if self._tokens:
            user["token"] = next(iter(self._tokens))
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": _CLUSTER,
            "clusters": [{"name": _CLUSTER, "cluster": {"server": self.url}}],
            "users": [{"name": _CLUSTER, "user": user}],
            "contexts": [
                {
                    "name": _CLUSTER,
                    "context": {"cluster": _CLUSTER, "user": _CLUSTER, "namespace": "default"},
                }
            ],
            "preferences": {},
        }
        text: str = yaml.safe_dump(config, sort_keys=False)
        return text

    def compact(self, revision: int | None = None) -> None:
        """Forget the history up to a revision, or all of it: older watches get 410."""
        self.store.compact(self.store.revision if revision is None else revision)

    def statistics(self) -> StoreStatistics:
        """Return the figures of the store at this moment."""
        return self.store.statistics()


class _Connection(RequestHandler):
    """A connection that refuses unknown methods as the rest of the server would."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that could not be read or handled."""
        if isinstance(exc, BadHttpMethod):
            body = msgspec.json.encode(refusal.method_not_allowed().to_status()) + b"\n"
            response: web.StreamResponse = web.Response(
                body=body, status=405, headers={"Content-Type": JSON}
            )
            response.force_close()
            return response
        return super().handle_error(request, status, exc, message)


class _Server(web.Server):
    """aiohttp's server, with connections of our own."""

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


def _make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    return web.BaseRequest(
        message,
        payload,
        protocol,
        writer,
        task,
        asyncio.get_running_loop(),
        client_max_size=BODY_LIMIT,
    )
