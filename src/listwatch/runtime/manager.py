"""Starts the parts of a controller program in order, and stops them in reverse order."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

import msgspec

from listwatch.cache.factory import InformerFactory
from listwatch.cache.failures import OnError
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.client.kubeconfig import load_config
from listwatch.clock import Clock
from listwatch.errors import (
    ConfigError,
    ListWatchError,
)
from listwatch.inline import runs_inline
from listwatch.objects.resource_types import name_of_resource
from listwatch.runtime.api_time import api_time
from listwatch.runtime.body_scope import BodyScope, ManagerError
from listwatch.runtime.cache_options import DefaultCacheOptions
from listwatch.runtime.caches import Cache, Caches
from listwatch.runtime.candidate import LeaseTimings
from listwatch.runtime.coordinated import Coordination
from listwatch.runtime.election import Election, lease_client
from listwatch.runtime.event_correlation import EventLimits
from listwatch.runtime.events import ClientEvents, EventClient, EventRecorder, component_of
from listwatch.runtime.fencing import fenced
from listwatch.runtime.health import Check, HealthServer
from listwatch.runtime.held import Loading, current_loading
from listwatch.runtime.history import HISTORY_BYTES
from listwatch.runtime.leader_election import LeaderElector
from listwatch.runtime.leading import LeadershipGuard, WhileLeading
from listwatch.runtime.own_writes import OWN_WRITES_SECONDS
from listwatch.runtime.parts import (
    Part,
    Parts,
    Task,
    cancelled_at_once,
    kill_process,
    stopped_by_signals,
)
from listwatch.runtime.predicates import Predicate
from listwatch.runtime.reconciler import NotStartedError, Reconciler
from listwatch.runtime.reconciler_options import CommonOptions, ReconcilerOptions
from listwatch.runtime.reconciling import prepare, reconciling
from listwatch.runtime.recorded_writes import recorded
from listwatch.runtime.serving_webhooks import WebhookServing
from listwatch.runtime.sharing import ShareMember
from listwatch.runtime.showing import Showing
from listwatch.runtime.tracing import Tracing
from listwatch.webhooks.declaring import DeclaresWebhooks
from listwatch.webhooks.options import WebhookOptions
from listwatch.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from prometheus_client import Metric

_logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Task)
U = TypeVar("U")
P = TypeVar("P")


class _Task(msgspec.Struct, frozen=True):
    name: str
    run: Task
    leader_only: bool


class Manager(DeclaresWebhooks):
    """A controller program: reconcilers, their caches, a client, and the rest.

    Starts, in this order: the health and metrics endpoints, the event recorder, the webhooks, the
    caches, and tasks that every replica runs. Then, once this process leads if there is an
    election, the leader's tasks and the reconcilers, each when its caches have synced. It stops in
    reverse order; running reconciles get `grace` seconds to end. A part that fails stops everything
    and raises a `ManagerError`.

    Run it in one of three ways: `app.run()` for a script, which also handles SIGTERM and SIGINT;
    `async with app:` around your own code, also in a notebook; `await app.serve()`. It runs once.

    Args:
        name: for events and the user-agent of errors; such as "widget-controller".
        config: of the client; by default kubectl's.
        client: used instead of `config`; not closed.
        leader_election: the lease's name, or your own elector; None or "" for none.
        sharing: the group's name, or your own member. All replicas run, and share the keys of the
            reconcilers that only the leader would run; each replica runs all tasks. Replaces
            `leader_election`.
        lease_timings: seconds that all replicas share; by default client-go's.
        lease_labels: of the lease.
        coordination: let the server choose the leader where it can; see `LeaderElector`.
        namespace: of the lease; by default the client's.
        health_host: the address of health and metrics.
        health_port: 0 for a free port, None to serve neither.
        ui: serve the page /ui also to other machines, if `health_host` is reachable from there;
            it shows names and fields of objects, without the values of Secrets.
        event_api: see `EventRecorder`.
        event_limits: how floods of events are cut.
        event_sinks: events are also written there.
        grace: seconds for running reconciles at the end.
        start_timeout: seconds within which the server must respond and have all resources.
        reads_own_writes: reconcile a key again only when the caches contain what its last reconcile
            wrote with `client`.
        own_writes_timeout: time limit for that in seconds; then the key continues, which is logged.
        history_bytes: memory for what each reconciler did to each key, for `listwatch why`; 0 to
            record nothing.
        tracing: makes each reconcile an OpenTelemetry span, and each request of the manager's own
            client; for a given `client`, give it `tracing_hook` yourself.
        event_filter: predicates of every source of every reconciler.
        on_error: called with every failure of the caches; by default they are logged.
        webhooks: how `validate` and `mutate` are served.
        clock: the time.
    """

    def __init__(
        self,
        name: str = "listwatch",
        *,
        config: Config | None = None,
        client: Client | None = None,
        leader_election: str | LeaderElector | None = None,
        sharing: str | ShareMember | None = None,
        lease_timings: LeaseTimings | None = None,
        lease_labels: Mapping[str, str] | None = None,
        coordination: Coordination | None = None,
        namespace: str = "",
        health_host: str = "127.0.0.1",
        health_port: int | None = 0,
        ui: bool = False,
        event_api: Literal["events.k8s.io/v1", "v1"] = "events.k8s.io/v1",
        event_limits: EventLimits | None = None,
        event_sinks: Sequence[EventClient] = (),
        grace: float = 30.0,
        start_timeout: float = 120.0,
        reads_own_writes: bool = True,
        own_writes_timeout: float = OWN_WRITES_SECONDS,
        history_bytes: int = HISTORY_BYTES,
        tracing: Tracing | None = None,
        event_filter: Sequence[Predicate] = (),
        on_error: OnError | None = None,
        webhooks: WebhookOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        if config is not None and client is not None:
            raise ValueError("give a Manager either config= or client=, not both")
        self.name = name
        self._config = config
        self._given_client = client
        self._election = Election(
            leader_election,
            sharing,
            timings=lease_timings,
            labels=lease_labels,
            coordination=coordination,
        )
        self._namespace = namespace
        self.event_api: Literal["events.k8s.io/v1", "v1"] = event_api
        self._event_limits = event_limits
        self._event_sinks = event_sinks
        self._start_timeout = start_timeout
        self._own_writes_timeout = own_writes_timeout if reads_own_writes else None
        self._history_bytes = history_bytes
        self._tracing = tracing
        self._event_filter = event_filter
        self._clock = clock or Clock()
        self._parts = Parts(self._clock, grace)
        self._caches = Caches(self._clock, on_error)
        self.webhooks = Webhooks(name, webhooks)
        self._webhook_serving = WebhookServing(
            self.webhooks,
            self._parts,
            self._clock,
            start_timeout=start_timeout,
            timings=lease_timings,
        )
        #: Called with every failure of the caches; None to log them.
        self.on_error = on_error
        self._reconcilers: list[Reconciler[Any]] = []
        self._tasks: list[_Task] = []
        self._showing = Showing(
            name,
            host=health_host,
            port=health_port,
            ui=ui,
            parts=self._parts,
            caches=self._caches,
            reconcilers=self._reconcilers,
            webhooks=self.webhooks,
            webhook_serving=self._webhook_serving,
            leads=lambda: self._leads,
            clock=self._clock,
        )
        self._synced = asyncio.Event()
        self._has_run = False
        self._leads = False
        self._plain: Client | None = None
        self._fenced: Client | None = None
        self._recorder: EventRecorder | None = None
        self._server: HealthServer | None = None
        self._elector: LeaderElector | None = None
        #: Whether this process may act for all replicas; call `guard.check()` right before an
        #: effect outside the API server. None before it leads; without an election it always
        #: agrees.
        self.guard: LeadershipGuard | None = None
        self._body: BodyScope | None = None
        self._made_by = current_loading.get()
        if self._made_by is not None:
            self._caches.defaults.limit(self._made_by.namespaces)

    # --- Configuration ---

    @overload
    def reconciler(self, name: str, **options: Unpack[ReconcilerOptions]) -> Reconciler: ...
    @overload
    def reconciler(self, name: type[U], **options: Unpack[ReconcilerOptions]) -> Reconciler[U]: ...
    def reconciler(
        self, name: str | type[Any], **options: Unpack[ReconcilerOptions]
    ) -> Reconciler[Any]:
        """Return a new reconciler, to be given its sources and its function; see `Reconciler`.

        Args:
            name: for logs and metrics; or a type decorated by `listwatch.resources.resource`, whose
                objects it is for, and whose plural is then its name. For more options of that
                source, give a name and use `for_`.
            options: those of `Reconciler`.
        """
        self._check_not_started()
        called = name if isinstance(name, str) else name_of_resource(name).partition(".")[0]
        made: Reconciler[Any] = Reconciler(
            called,
            self._caches,
            **options,
            **self.common_options(),
            clock=self._clock,
        )
        if isinstance(name, type):
            made.for_(name)
        self.add_reconciler(made)
        return made

    def common_options(self) -> CommonOptions:
        """Return the options that all reconcilers have from the manager."""
        return {
            "sync_timeout": self._start_timeout,
            "own_writes_timeout": self._own_writes_timeout,
            "history_bytes": self._history_bytes,
            "event_filter": self._event_filter,
        }

    def add_reconciler(self, made: Reconciler[Any]) -> None:
        """Run a reconciler made elsewhere, such as one over several clusters.

        Raises:
            ValueError: there is one of this name.
        """
        self._check_not_started()
        if any(other.name == made.name for other in self._reconcilers):
            raise ValueError(f"a reconciler {made.name} already exists: choose another name")
        if self._tracing is not None:
            made.trace(self._tracing)
        self._reconcilers.append(made)

    def add_caches(self, caches: Callable[[], Iterable[Cache]]) -> None:
        """Show more caches in the metrics; called at each scrape."""
        self._showing.more_caches.append(caches)

    @property
    def clock(self) -> Clock:
        """The time."""
        return self._clock

    def cache_defaults(
        self,
        resource: str | type[Any] | None = None,
        *,
        in_namespace: str = "",
        **options: Unpack[DefaultCacheOptions],
    ) -> None:
        """Set options that the caches of reconcilers have unless a source has others.

        Defaults for a resource count before those for a namespace, and those before the manager's;
        the most specific are for a resource in a namespace. Index functions add up. Call it before
        the reconcilers name their sources.

        Args:
            resource: as the sources name it; None for all.
            in_namespace: only for the caches of this namespace; empty for all.
            options: see `DefaultCacheOptions`.

        Raises:
            RuntimeError: a source that they concern already exists.
            ValueError: `namespaces` together with `in_namespace`.
        """
        word = "" if resource is None else name_of_resource(resource)
        self._caches.defaults.set(word, in_namespace, options)

    def task(self, run: T, *, name: str = "", leader_only: bool = True) -> T:
        """Run a coroutine function alongside the reconcilers; also a decorator.

        It may return at any time; an exception stops the manager.

        Args:
            run: called without arguments, cancelled at the end.
            name: for messages; by default the function's name.
            leader_only: run it only while this process leads, if there is an election.
        """
        self._check_not_started()
        name = name or getattr(run, "__name__", "task")
        self._tasks.append(_Task(name, run, leader_only))
        return run

    def ready_check(self, check: Callable[[], Check]) -> None:
        """Add a check to /readyz."""
        self._showing.ready_checks.append(check)

    def health_check(self, check: Callable[[], Check]) -> None:
        """Add a check to /healthz: a platform restarts a process whose check fails."""
        self._showing.live_checks.append(check)

    def configure(
        self,
        *,
        config: Config | None = None,
        leader_election: str | None = None,
        namespace: str | None = None,
        health_host: str | None = None,
        health_port: int | None = None,
        ui: bool | None = None,
        webhooks: WebhookOptions | None = None,
    ) -> None:
        """Change options from outside, as a command line does; None leaves an option as it is.

        Args:
            config: of the client.
            leader_election: the lease's name; "" for no election.
            namespace: of the lease.
            health_host: the address of health and metrics.
            health_port: 0 for a free port.
            ui: serve the page `/ui` to other machines, too.
            webhooks: how webhooks are served; in tests `WebhookOptions()`.

        Raises:
            ConfigError: an option conflicts with the manager's arguments and can't take effect.
            RuntimeError: it has started.
        """
        self._check_not_started()
        if config is not None:
            if self.has_client:
                raise ConfigError(
                    f"{self.name}: the program has its own client, so no other server, "
                    "context or kubeconfig can take effect"
                )
            self._config = config
        if leader_election is not None:
            self._election.choose(leader_election)
        if namespace is not None:
            if self._election.is_given:
                raise ConfigError(
                    f"{self.name}: the program has its own elector, so no other namespace "
                    "of the lease can take effect"
                )
            self._namespace = namespace
        if webhooks is not None:
            self.webhooks.options = webhooks
        if health_port is not None:
            self._showing.port = health_port
        if (health_host is not None or ui) and self._showing.port is None:
            raise ConfigError(
                f"{self.name}: the program serves no health and metrics; give the port too"
            )
        if health_host is not None:
            self._showing.host = health_host
        if ui is not None:
            self._showing.ui = ui

    def metrics(self, collect: "Callable[[], Iterable[Metric]]") -> None:
        """Serve these metric families of prometheus-client too; called at each scrape."""
        self._showing.metrics.append(collect)

    # --- While it runs ---

    @property
    def client(self) -> Client:
        """The client; with an election it refuses writes while this process does not lead."""
        return _there(self._fenced, "client")

    @property
    def unfenced_client(self) -> Client:
        """The client that also writes without leadership, for the tasks of every replica."""
        return _there(self._plain, "client")

    @property
    def recorder(self) -> EventRecorder:
        """Reports Events."""
        return _there(self._recorder, "event recorder")

    @property
    def health_url(self) -> str:
        """The URL of health and metrics."""
        return _there(self._server, "health endpoint").url

    @property
    def informers(self) -> InformerFactory:
        """Creates and runs informers in addition to those of the reconcilers."""
        self._caches.lent_factory = True
        return self._caches.factory

    @property
    def caches(self) -> Sequence[Cache]:
        """All caches."""
        return list(self._caches)

    @property
    def is_leader(self) -> bool:
        """Whether the reconcilers run here; without an election, whether the manager does."""
        return self._leads and (self.guard is None or self.guard.is_leader)

    def checks(self) -> Iterable[Check]:
        """Return the state of each cache and of each part with its own check."""
        return self._showing.checks()

    def now(self) -> str:
        """Return the current time in the API's format, for conditions."""
        return api_time(self._clock.time())

    @property
    def reconcilers(self) -> Sequence[Reconciler[Any]]:
        """All reconcilers."""
        return list(self._reconcilers)

    @property
    def lease(self) -> str:
        """The lease of the election, or the group that shares the keys; empty for neither."""
        return self._election.lease

    @property
    def is_coordinated(self) -> bool:
        """Whether the server chooses the leader where it can."""
        return self._election.is_coordinated

    @property
    def members(self) -> tuple[str, ...]:
        """The replicas that share the keys, including this one; empty without sharing."""
        return self._elector.claim.view if isinstance(self._elector, ShareMember) else ()

    @property
    def grace(self) -> float:
        """Seconds for running reconciles at the end."""
        return self._parts.grace

    @property
    def has_client(self) -> bool:
        """Whether it was given a client, and so a server."""
        return self._given_client is not None

    @property
    def has_work(self) -> bool:
        """Whether it has a reconciler, a task or a webhook."""
        return bool(self._reconcilers or self._tasks or self.webhooks)

    @property
    def has_server(self) -> bool:
        """Whether it was given a server; otherwise it uses kubectl's."""
        return self.has_client or self._config is not None

    @property
    def shares_keys(self) -> bool:
        """Whether replicas share the keys."""
        return self._election.shares

    def stop(self) -> None:
        """Stop in order; returns at once. Call it from the manager's own event loop."""
        self._parts.stopping.set()

    def run(self) -> None:
        """Run until SIGTERM, SIGINT or a failure: the last line of a script.

        The first signal stops in order, a second one at once. With an election, a program that
        can't stop its work before the lease ends is killed. While `listwatch run` or another
        command loads the file, this logs one line and returns.

        Raises:
            ManagerError: a part failed.
            RuntimeError: an event loop is already running, as in a notebook.
        """
        if self._is_held("app.run()"):
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError(
                "an event loop is already running: use `async with app:` or `await app.serve()`"
            )
        self._parts.owns_process = True
        with asyncio.Runner() as runner:
            runner.run(self._serve_until_signal())

    async def _serve_until_signal(self) -> None:
        with stopped_by_signals(self._parts.stopping):
            await self.serve()

    async def serve(self) -> None:
        """Run until `stop`, a cancellation or a failure.

        Cancelling stops in order too, but gives running reconciles no grace.

        Raises:
            ManagerError: a part failed.
        """
        if self._is_held("app.serve()"):
            return
        self._check_not_started()
        if not self.has_work:
            raise ValueError("the Manager has no reconciler, task or webhook: add one")
        self._has_run = True
        try:
            async with AsyncExitStack() as stack:
                await self._start(stack)
                if not self._parts.stopping.is_set():
                    await self._contend()
        except ListWatchError as error:
            self._parts.fail("the manager", error)
        finally:
            self._leads = False
        if self._parts.failure is not None:
            name, cause = self._parts.failure
            raise ManagerError(f"{name} failed: {str(cause) or type(cause).__name__}") from cause

    async def __aenter__(self) -> Self:
        """Start, and return when all caches have synced."""
        if (loading := self._loading) is not None:
            loading.refuse(self, "async with app")
        self._body = BodyScope(self.name, self.serve, self._synced, self._clock)
        await self._body.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Stop in order. A body that ended because of `stop` raises nothing."""
        assert self._body is not None  # noqa: S101 - entered before
        self.stop()
        return await self._body.leave(kind, error, traceback)

    # --- Starting ---

    @property
    def _loading(self) -> Loading | None:
        return current_loading.get() or self._made_by

    def _is_held(self, call: str) -> bool:
        loading = self._loading
        return loading is not None and loading.holds(self, call)

    def _check_not_started(self) -> None:
        if self._has_run:
            raise RuntimeError("a Manager runs once: configure it before, or create a new one")

    async def _start(self, stack: AsyncExitStack) -> None:
        client = self._given_client
        if client is None:
            config = self._named_config()
            hooks = [] if self._tracing is None else [self._tracing.hook(config.server)]
            client = await stack.enter_async_context(Client(config, clock=self._clock, hooks=hooks))
        self._plain = self._fenced = client
        namespace = self._namespace or client.config.namespace or "default"
        self._elector = self._election.make(
            client,
            namespace,
            tell=self._tell_of_leadership,
            on_overrun=kill_process if self._parts.owns_process else None,
        )
        self._showing.client, self._showing.elector = client, self._elector
        if isinstance(self._elector, ShareMember):
            for reconciler in self._reconcilers:
                if reconciler.leader_only:
                    self._elector.share(reconciler)
        if self._elector is not None:
            self._fenced = fenced(client, lambda: self.guard, self._clock)
        if self._own_writes_timeout is not None or self._history_bytes > 0:
            self._fenced = recorded(self._fenced)
        if self._showing.port is not None and not runs_inline.get():
            self._server = await stack.enter_async_context(self._showing.server())
        self._recorder = await stack.enter_async_context(
            EventRecorder(
                ClientEvents(client),
                component_of(self.name),
                api=self.event_api,
                limits=self._event_limits,
                more_sinks=self._event_sinks,
                clock=self._clock,
            )
        )
        self._showing.recorder = self._recorder
        await stack.enter_async_context(
            self._webhook_serving.running(client, namespace, lease_client(client, namespace))
        )
        if self._parts.stopping.is_set():
            return
        found = partial(prepare, self._reconcilers, client, self._clock, self._start_timeout)
        async with self._parts.running("the start", found) as preparing:
            await self._parts.until_stopping(preparing.task)
        if self._parts.stopping.is_set():
            return
        self._caches.open(client)
        await stack.enter_async_context(self._parts.running("the caches", self._caches.run))
        await stack.enter_async_context(self._parts.running("the caches", self._wait_for_caches))
        for task in self._tasks:
            if not task.leader_only:
                await stack.enter_async_context(self._parts.running(task.name, task.run))
        await stack.enter_async_context(
            reconciling(
                self._parts, [r for r in self._reconcilers if not r.leader_only], self._clock
            )
        )

    def _named_config(self) -> Config:
        """Return the client's configuration, with this program's name as its user agent."""
        config = self._config or load_config()
        return msgspec.structs.replace(
            config, user_agent=config.user_agent or component_of(self.name)
        )

    def _tell_of_leadership(self, lease: Mapping[str, object], message: str) -> None:
        if self._recorder is not None:
            self._recorder.event(lease, "Normal", "LeaderElection", message)

    async def _wait_for_caches(self) -> None:
        for cache in self._caches:
            await cache.wait_for_sync(self._start_timeout)
        await self._webhook_serving.wait_until_registered()
        self._synced.set()

    # --- Running and stopping ---

    async def _contend(self) -> None:
        if self._elector is None:
            await self._lead(None)
            return
        elector = self._elector

        async def run() -> None:
            await elector.run(self._lead, guard_steps=False)  # each part has its own guard

        async with self._parts.running("leadership", run) as part:
            leading = part.task
            await self._parts.until_stopping(leading)
            if self._leads:
                await asyncio.wait({leading})  # it notices the stop itself, and releases the lease

    async def _lead(self, guard: LeadershipGuard | None) -> None:
        self.guard = LeadershipGuard.unlimited(self.name) if guard is None else guard
        self._leads = True
        parts: list[Part] = []
        try:
            async with AsyncExitStack() as stack:
                for task in self._tasks:
                    if task.leader_only:
                        run = task.run if guard is None else partial(_led, task.run, guard)
                        part = await stack.enter_async_context(self._parts.running(task.name, run))
                        parts.append(part)
                await stack.enter_async_context(
                    reconciling(
                        self._parts,
                        [r for r in self._reconcilers if r.leader_only],
                        self._clock,
                        guard,
                    )
                )
                with cancelled_at_once(parts):
                    await self._parts.stopping.wait()
        finally:
            self._leads = False


def _led(run: Task, guard: LeadershipGuard) -> WhileLeading[object]:
    return WhileLeading(run(), guard)


def _there(part: P | None, name: str) -> P:
    if part is None:
        raise NotStartedError(f"the {name} is available while the manager runs")
    return part
