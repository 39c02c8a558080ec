"""The server as a whole: made, started, restarted, stopped."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import yaml
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod
from aiohttp.web_protocol import RequestHandler

from listwatch.apiserver import refusal
from listwatch.apiserver.auth import BOOTSTRAP, Access
from listwatch.apiserver.call import BODY_LIMIT, User
from listwatch.apiserver.custom_resources import CustomResources
from listwatch.apiserver.defaults import apply_defaults
from listwatch.apiserver.http import Api
from listwatch.apiserver.negotiation import JSON
from listwatch.apiserver.reading import Reader
from listwatch.apiserver.registry import Registry, WriteContext
from listwatch.apiserver.resources import ResourceTable
from listwatch.apiserver.schema import facts
from listwatch.apiserver.storage import Store, StoreStatistics
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
        self.access = Access(self.store, tokens=tokens)
        self._tokens = tokens
        self.api = Api(
            self.table,
            self.registry,
            self._reader,
            self._writer,
            self.access,
            Subresources(self.registry, self._reader, self._writer, self.access),
        )
        self.custom_resources = CustomResources(
            self.table, self.registry, self.store, self._reader
        )
        self._runner: web.ServerRunner | None = None
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
            request_factory=_make_request,  # type: ignore[arg-type] - aiohttp's own type is wider
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

    async def stop(self) -> None:
        """Stop listening and end every watch cleanly; the objects stay."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
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
    message: object,
    payload: object,
    protocol: object,
    writer: object,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    return web.BaseRequest(
        message,  # type: ignore[arg-type] - handed through from aiohttp to aiohttp
        payload,  # type: ignore[arg-type] - as above
        protocol,  # type: ignore[arg-type] - as above
        writer,  # type: ignore[arg-type] - as above
        task,
        asyncio.get_running_loop(),
        client_max_size=BODY_LIMIT,
    )
