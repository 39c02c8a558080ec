"""Provides load balancers for services, like `k8s.io/cloud-provider/controllers/service`.

It is a reconciler of the runtime: the queue separates the workers and holds the retries;
`machine.py` decides what to do.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec.structs import replace

from listwatch.backoff import LOAD_BALANCER
from listwatch.cache.factory import Selection
from listwatch.cache.list_watch import ListerWatcher
from listwatch.clock import Clock
from listwatch.controllers.failures import single_error
from listwatch.controllers.recorder import Recorder
from listwatch.controllers.services.addresses import StatusAddresses
from listwatch.controllers.services.api import ListWatches, ServicesAPI
from listwatch.controllers.services.machine import (
    EXISTING,
    Action,
    AddFinalizer,
    Check,
    Checked,
    Elsewhere,
    Ensure,
    Ensured,
    Finished,
    Outcome,
    Release,
    Remove,
    Seen,
    ServicePhase,
    State,
    UpdateNodes,
    Waiting,
    WriteStatus,
    Written,
    begun,
    differences,
    done,
    kept,
    step,
)
from listwatch.controllers.services.nodes import NodeSet
from listwatch.controllers.services.provider import (
    AddressTakenError,
    ImplementedElsewhereError,
    KeepsAddresses,
    LoadBalancerProvider,
    MayNeedNoNodes,
    OutlivesController,
    RetryAfterError,
)
from listwatch.controllers.services.service import (
    FINALIZER,
    InvalidServiceError,
    Service,
    is_ours,
)
from listwatch.controllers.services.statistics import (
    CONVERGENCE_BOUNDS,
    NODE_BOUNDS,
    ServiceControllerStatistics,
)
from listwatch.objects import Object
from listwatch.runtime.caches import Caches
from listwatch.runtime.reconciler import Reconciler
from listwatch.runtime.results import Result, requeue_after
from listwatch.workqueue.metrics import Histogram

if TYPE_CHECKING:
    from listwatch.runtime.leading import LeadershipGuard

_logger = logging.getLogger(__name__)

T = TypeVar("T")

_SERVICES, _NODES = Selection("services"), Selection("nodes")


class _Gone(Exception):  # noqa: N818 - not an error
    """The service is deleted, or another one has its name: its deletion event is on its way."""


class ServiceController:
    """Creates, updates and removes the load balancers of a cluster's services.

    For one event loop; runs once. Leader election prevents two of them on one cluster. If two run
    by mistake, each creates load balancers, and the status has the address of the last writer.
    Neither reacts to the other's writes, so the status does not flap.

    Args:
        provider: creates the load balancers.
        api: writes finalizers and status.
        services: all services.
        nodes: all nodes.
        cluster: the cluster's name, for the provider.
        load_balancer_class: the class to serve; None for services without a class.
        recorder: receives the events.
        workers: maximum services processed at once.
        service_sync_period: seconds between two checks that every load balancer exists.
        node_sync_period: seconds after which the nodes of all load balancers are compared even if
            none has changed.
        min_retry_delay: seconds after a service's first failure; doubled with each further one.
        max_retry_delay: maximum seconds between two tries.
        provider_timeout: time limit of one call of the provider, in seconds.
        clock: the time.
    """

    def __init__(
        self,
        provider: LoadBalancerProvider,
        api: ServicesAPI,
        services: ListerWatcher,
        nodes: ListerWatcher,
        *,
        cluster: str = "kubernetes",
        load_balancer_class: str | None = None,
        recorder: Recorder | None = None,
        workers: int = 10,
        service_sync_period: float = 300.0,
        node_sync_period: float = 100.0,
        min_retry_delay: float = LOAD_BALANCER.base,
        max_retry_delay: float = LOAD_BALANCER.cap,
        provider_timeout: float = 120.0,
        clock: Clock | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be 1 or more, not {workers}")
        self._clock = clock or Clock()
        self._provider = provider
        self._api = api
        self._cluster = cluster
        self._class = load_balancer_class
        self._recorder = recorder
        self._provider_timeout = provider_timeout
        self._backoff = replace(LOAD_BALANCER, base=min_retry_delay, cap=max_retry_delay)
        self._states: dict[str, State] = {}
        # Services whose load balancers must be checked although nothing changed.
        self._to_check: set[str] = set()
        # Services that need a taken address, in order of arrival.
        self._lacking: dict[str, None] = {}
        # How often services without an address, and all waiting services, were woken to retry.
        self._freed = self._retried_all = 0
        self._nodes = NodeSet(self._nodes_changed)
        self._addresses = StatusAddresses(self._address_freed)
        self._caches = Caches(self._clock)
        self._source = ListWatches({_SERVICES.resource: services, _NODES.resource: nodes})
        self._reconciler = Reconciler(
            "service-controller", self._caches, concurrency=workers, clock=self._clock
        )
        self._reconciler(self._reconcile)
        self._reconciler.for_(_SERVICES.resource).reads(_NODES.resource)
        self._reconciler.every(service_sync_period, self._all_to_check)
        self._reconciler.every(node_sync_period, self._begin_round)
        self._caches.of(_SERVICES).add_handler(self._addresses, "addresses")
        self._caches.of(_NODES).add_handler(self._nodes, "nodes")
        # The initial services that are not processed yet; None before the start.
        self._first: set[str] | None = None
        # The load balancers that the current round of node updates has not reached, and its start.
        self._round: set[str] = set()
        self._round_began = 0.0
        self._syncs = self._ensured = self._deleted = self._failures = 0
        self._node_syncs = self._node_errors = 0
        # When each unsettled service was first found to differ from its spec.
        self._unsettled: dict[str, float] = {}
        self._node_seconds = Histogram(NODE_BOUNDS)
        self._host_seconds = Histogram(NODE_BOUNDS)
        self._convergence_seconds = Histogram(CONVERGENCE_BOUNDS)

    # --- Lifecycle ---

    @property
    def has_synced(self) -> bool:
        """Whether every initial service has been processed once."""
        return self._first is not None and not self._first

    async def run(self, guard: "LeadershipGuard | None" = None) -> None:
        """Work until cancelled. Load balancers then stay as they are.

        Args:
            guard: refuses every further step once another process may lead.
        """
        self._caches.open(self._source)
        services = self._caches.of(_SERVICES)
        self._addresses.index(services.indexer)
        if isinstance(self._provider, KeepsAddresses):
            self._provider.use_holders(self._addresses.holders)
        with single_error():
            async with asyncio.TaskGroup() as group:
                group.create_task(self._caches.run(), name="caches")
                # The server may be unavailable for any length of time.
                for cache in self._caches:
                    await cache.informer.wait_until_synced()
                self._first = set(services.indexer.list_keys())
                if isinstance(self._provider, OutlivesController):
                    uids = {obj.uid for obj in services.indexer.list() if is_ours(obj, self._class)}
                    await self._provider.forget_others(self._cluster, uids)
                group.create_task(self._reconciler.run(guard), name="service workers")

    def statistics(self) -> ServiceControllerStatistics:
        """Return current statistics."""
        states = self._states.values()
        return ServiceControllerStatistics(
            queue=self._reconciler.queue.statistics(),
            reflector=self._caches.of(_SERVICES).informer.statistics().controller.reflector,
            services=sum(state.phase in EXISTING for state in states),
            nodes=len(self._nodes),
            syncs=self._syncs,
            ensured=self._ensured,
            deleted=self._deleted,
            failures=self._failures,
            retrying=sum(state.waiting is not None for state in states),
            node_syncs=self._node_syncs,
            node_errors=self._node_errors,
            node_sync_seconds=self._node_seconds.statistics(),
            host_update_seconds=self._host_seconds.statistics(),
            convergence_seconds=self._convergence_seconds.statistics(),
        )

    # --- Events that wake a service, apart from its own changes ---

    def _all_to_check(self) -> Iterable[str]:
        self._to_check.update(self._states)
        return list(self._states)

    def _nodes_changed(self) -> None:
        for key in self._begin_round():
            self._reconciler.enqueue(key)

    def _begin_round(self) -> Iterable[str]:
        """Start to compare load balancers with the nodes; return the services to process."""
        if not self._round:
            self._round_began = self._clock.now()
        self._node_syncs += 1
        keys = [key for key, state in self._states.items() if state.phase in EXISTING]
        self._round.update(keys)
        if not keys:
            self._node_seconds.observe(0.0)
        return keys

    def _end_of_round(self, key: str) -> None:
        if key in self._round:
            self._round.discard(key)
            if not self._round:
                self._node_seconds.observe(self._clock.now() - self._round_began)

    def retry_all(self) -> None:
        """Retry all waiting services at once: the cause of their wait may be gone."""
        self._retried_all += 1
        self._lacking.clear()
        self._retry([key for key, state in self._states.items() if state.waiting is not None])

    def _address_freed(self) -> None:
        """Retry at once the services that need an address."""
        self._freed += 1
        waiting, self._lacking = self._lacking, {}
        self._retry(waiting)

    def _retry(self, keys: Iterable[str]) -> None:
        for key in keys:
            state = self._states.get(key)
            if state is not None and state.waiting is not None:
                now = replace(state.waiting, until=self._clock.now())
                self._states[key] = replace(state, waiting=now)
                self._reconciler.enqueue(key)

    # --- Services ---

    async def _reconcile(self, key: str) -> Result | None:
        found = self._reconciler.get(key)
        wait = self._state(key).wait(found, self._clock.now())
        if wait > 0:
            self._end_of_round(key)
            return requeue_after(wait)
        self._syncs += 1
        freed, retried_all = self._freed, self._retried_all
        try:
            await self._bring(key, found)
        except AddressTakenError as error:
            _logger.warning("service %s waits for an address: %s", key, error)
            self._lacking.setdefault(key)
            # An address may have been freed while the provider looked for one.
            is_old = (freed, retried_all) == (self._freed, self._retried_all)
            return self._failed(key, found, None if is_old else 0.0)
        except RetryAfterError as error:
            _logger.info("service %s waits %g s: %s", key, error.seconds, error)
            return self._put_off(key, found, error.seconds)
        except Exception as error:  # noqa: BLE001 - retried after any exception of a provider or server
            result = self._failed(key, found, None if retried_all == self._retried_all else 0.0)
            _logger.warning(
                "service %s failed, next try in %g s: %s", key, result.requeue_after, _words(error)
            )
            return result
        finally:
            self._end_of_round(key)
            if self._first:
                self._first.discard(key)
        self._lacking.pop(key, None)
        if (since := self._unsettled.pop(key, None)) is not None:
            self._convergence_seconds.observe(self._clock.now() - since)
        return None

    def _state(self, key: str) -> State:
        return self._states.get(key, _NOTHING)

    def _failed(self, key: str, found: Object | None, seconds: float | None = None) -> Result:
        self._failures += 1
        waiting = self._state(key).waiting
        failures = 0 if waiting is None else waiting.failures
        delay = self._backoff.delay(failures) if seconds is None else seconds
        return self._put_off(key, found, delay, failures + (seconds is None))

    def _put_off(
        self, key: str, found: Object | None, seconds: float, failures: int | None = None
    ) -> Result:
        state = self._state(key)
        if failures is None:
            failures = 0 if state.waiting is None else state.waiting.failures
        waiting = Waiting(self._clock.now() + seconds, found, failures)
        self._states[key] = replace(state, waiting=waiting)
        return requeue_after(seconds)

    async def _bring(self, key: str, found: Object | None) -> None:
        """Bring a service's load balancer to the state that the service asks for."""
        service = None if found is None else self._read(found)
        seen = Seen.of(
            service,
            self._state(key),
            self._nodes.nodes(),
            self._class,
            check=key in self._to_check,
        )
        self._to_check.discard(key)
        try:
            while (action := step(self._state(key), seen)) is not None:
                self._explain(self._state(key), action)
                if not isinstance(action, Check):
                    self._unsettled.setdefault(key, self._clock.now())
                self._states[key] = begun(self._state(key), action)
                outcome = await self._perform(self._states[key], action, seen)
                self._states[key], seen = done(self._states[key], seen, action, outcome)
        except _Gone:
            pass
        state = kept(self._state(key), seen)
        if state is None:
            self._states.pop(key, None)
        else:
            self._states[key] = state

    def _read(self, obj: Object) -> Service:
        try:
            return Service.of(obj)
        except InvalidServiceError as error:
            self._tell(obj, "Warning", "SyncLoadBalancerFailed", _failed("syncing", error))
            raise

    # --- One action ---

    def _explain(self, state: State, action: Action) -> None:
        """Log why an action is repeated."""
        if isinstance(action, Ensure) and (why := ", ".join(differences(state, action.service))):
            _logger.info("service %s changed: %s", action.service.key, why)

    async def _perform(self, state: State, action: Action, seen: Seen) -> Outcome:
        obj = action.service.object
        try:
            match action:
                case AddFinalizer(service):
                    return await self._write(service, {"metadata": {"finalizers": [FINALIZER]}})
                case Ensure(service):
                    return await self._ensure(service, seen)
                case WriteStatus(service):
                    return await self._write_status(state, service)
                case Check(service):
                    return await self._check(service)
                case UpdateNodes(service):
                    return await self._update_nodes(service, seen)
                case Remove(service):
                    return await self._remove(service)
                case Release(service):
                    return await self._release(service)
        except ImplementedElsewhereError as error:
            _logger.info("service %s belongs to another controller: %s", obj.key, error)
            return Elsewhere()
        except (RetryAfterError, _Gone):
            raise
        except Exception as error:
            self._tell(obj, "Warning", *_complaint(action, error))
            raise

    async def _write(self, service: Service, patch: dict[str, object]) -> Written:
        written = await self._api.patch(service, patch)
        if written is None:
            raise _Gone
        return Written(written.resource_version)

    async def _ensure(self, service: Service, seen: Seen) -> Ensured:
        self._tell(service.object, "Normal", "EnsuringLoadBalancer", "Ensuring load balancer")
        self._warn_of_no_nodes(service, seen)
        status = await self._call(self._provider.ensure(self._cluster, service, seen.nodes))
        if status == seen.status:
            self._tell_ensured(service)
        return Ensured(status)

    async def _write_status(self, state: State, service: Service) -> Written:
        ingress = state.status.to_dict().get("ingress")
        written = await self._write(service, {"status": {"loadBalancer": {"ingress": ingress}}})
        if state.phase is ServicePhase.MADE:
            self._tell_ensured(service)
        return written

    def _tell_ensured(self, service: Service) -> None:
        self._ensured += 1
        self._tell(service.object, "Normal", "EnsuredLoadBalancer", "Ensured load balancer")

    async def _check(self, service: Service) -> Checked:
        found = await self._call(self._provider.get(self._cluster, service))
        if found is None:
            _logger.warning("the load balancer of service %s is missing", service.key)
        return Checked(found is not None)

    async def _update_nodes(self, service: Service, seen: Seen) -> Finished:
        self._warn_of_no_nodes(service, seen)
        start = self._clock.now()
        try:
            await self._call(self._provider.update(self._cluster, service, seen.nodes))
        except ImplementedElsewhereError:
            raise
        except Exception:
            self._node_errors += 1
            raise
        finally:
            self._host_seconds.observe(self._clock.now() - start)
        words = "Updated load balancer with new hosts"
        self._tell(service.object, "Normal", "UpdatedLoadBalancer", words)
        return Finished()

    async def _remove(self, service: Service) -> Finished:
        """Remove a load balancer if there may be one."""
        obj = service.object
        if await self._call(self._provider.get(self._cluster, service)) is not None:
            self._tell(obj, "Normal", "DeletingLoadBalancer", "Deleting load balancer")
        await self._call(self._provider.ensure_deleted(self._cluster, service))
        self._deleted += 1
        self._address_freed()
        self._tell(obj, "Normal", "DeletedLoadBalancer", "Deleted load balancer")
        return Finished()

    async def _release(self, service: Service) -> Finished:
        """Release a service whose load balancer is removed."""
        await self._api.patch(
            service,
            {
                "status": {"loadBalancer": {"ingress": None}},
                "metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]},
            },
        )
        return Finished()

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            async with self._clock.timeout(self._provider_timeout):
                return await call
        except TimeoutError as error:
            raise TimeoutError(
                str(error) or f"the provider did not finish within {self._provider_timeout:g} s"
            ) from error

    def _warn_of_no_nodes(self, service: Service, seen: Seen) -> None:
        provider = self._provider
        if not seen.nodes and (not isinstance(provider, MayNeedNoNodes) or provider.needs_nodes):
            words = "There are no available nodes for LoadBalancer"
            self._tell(service.object, "Warning", "UnAvailableLoadBalancer", words)

    def _tell(
        self, obj: Object, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        if self._recorder is not None:
            self._recorder.event(obj, kind, reason, message)


_NOTHING = State()


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _failed(what: str, error: Exception) -> str:
    return f"Error {what} load balancer (will retry): {_words(error)}"


def _complaint(action: Action, error: Exception) -> tuple[str, str]:
    """Return the reason and the message of the event for a failure."""
    match action:
        case UpdateNodes():
            words = f"Error updating load balancer with new hosts: {_words(error)}"
            return "UpdateLoadBalancerFailed", words
        case Remove() | Release():
            return "DeleteLoadBalancerFailed", _failed("deleting", error)
        case _:
            return "SyncLoadBalancerFailed", _failed("syncing", error)
