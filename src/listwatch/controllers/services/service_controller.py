"""Provide load balancers for services, as `k8s.io/cloud-provider/controllers/service` does.

A DeltaFIFO that keeps only the newest change of each service feeds several workers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from listwatch.backoff import LOAD_BALANCER
from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import (
    Delta,
    Deltas,
    DeltaType,
    Item,
    QueueStatistics,
    ReflectorStore,
)
from listwatch.cache.known import NewestKnown
from listwatch.cache.list_watch import ListerWatcher
from listwatch.cache.reflector import Reflector
from listwatch.cache.reflector_statistics import ReflectorStatistics
from listwatch.clock import Clock, Timer
from listwatch.controllers.failures import single_error
from listwatch.controllers.recorder import Recorder
from listwatch.controllers.services.addresses import ReservingQueue
from listwatch.controllers.services.api import ServicesAPI
from listwatch.controllers.services.nodes import Node, NodeSet
from listwatch.controllers.services.provider import (
    AddressTakenError,
    ImplementedElsewhereError,
    KeepsAddresses,
    LoadBalancerProvider,
    RetryAfterError,
)
from listwatch.controllers.services.service import (
    FINALIZER,
    InvalidServiceError,
    LoadBalancerStatus,
    Service,
    changes,
    needs_cleanup,
    needs_update,
    wants_load_balancer,
)
from listwatch.objects import DeletedFinalStateUnknown, Object, meta_namespace_key
from listwatch.workqueue.metrics import Histogram, HistogramStatistics
from listwatch.workqueue.rate_limiters import ItemExponentialFailureRateLimiter

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class ServiceControllerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a service controller at one moment; the counters begin with it.

    Attributes:
        queue: of the services that wait.
        reflector: of what feeds it.
        services: that have, or may have, a load balancer.
        nodes: that load balancers send to.
        syncs: services looked at.
        ensured: load balancers made or changed.
        deleted: load balancers removed.
        failures: of any of these.
        retrying: services that wait for their next try.
        node_syncs: times that the nodes of all load balancers were looked at.
        node_errors: load balancers that did not take new nodes.
        node_sync_seconds: how long such a round took.
        host_update_seconds: how long one load balancer took.
    """

    queue: QueueStatistics
    reflector: ReflectorStatistics
    services: int
    nodes: int
    syncs: int
    ensured: int
    deleted: int
    failures: int
    retrying: int
    node_syncs: int
    node_errors: int
    node_sync_seconds: HistogramStatistics
    host_update_seconds: HistogramStatistics


class _Cached:
    """What is known of one service."""

    __slots__ = (
        "applied",
        "claimed",
        "gone",
        "last",
        "lock",
        "nodes",
        "status",
        "touched",
        "written",
    )

    def __init__(self, last: Object) -> None:
        self.last = last
        #: The server has it no longer, but its load balancer may be left.
        self.gone = False
        #: Finalizer and status may have been written, also if no object seen so far shows it.
        self.claimed = False
        #: Something of a load balancer may exist, made for this state.
        self.touched: Service | None = None
        #: The load balancer is as this state wants it, and the status says so.
        self.applied: Service | None = None
        self.status = LoadBalancerStatus()
        self.nodes: tuple[Node, ...] = ()
        #: The version that the status was written at.
        self.written = ""
        # Between a worker and the node loop; the queue keeps the workers apart.
        self.lock = asyncio.Lock()


class _ServiceCache:
    """The queue's known objects (Go: `serviceCache`)."""

    def __init__(self) -> None:
        self.services: dict[str, _Cached] = {}

    def list_keys(self) -> Iterable[str]:
        return list(self.services)

    def get_by_key(self, key: str) -> Item | None:
        cached = self.services.get(key)
        if cached is None:
            return None
        if cached.gone:
            return DeletedFinalStateUnknown(key, cached.last)
        return cached.last


def newest_only(deltas: Deltas) -> Sequence[Delta]:
    """Return only the last change: a compressor for consumers of the current state."""
    return deltas[-1:]


class ServiceController:
    """Makes, changes and removes the load balancers of a cluster's services.

    For one event loop; runs once. Two of them on one cluster by mistake (there is a leader
    election against that) each make load balancers, and the address of the one that wrote last is
    in the status: none of them answers to the other's writes, so nothing flaps.

    Args:
        provider: makes the load balancers.
        api: writes finalizers and status.
        services: all services.
        nodes: all nodes.
        cluster: the cluster's name, for the provider.
        load_balancer_class: which services are meant; None for those without a class.
        recorder: gets the events.
        workers: how many services are worked on at once.
        service_sync_period: seconds between two checks that every load balancer is there.
        node_sync_period: seconds after which the nodes of all load balancers are compared even if
            none has changed.
        min_retry_delay: seconds after a service's first failure; doubled with each further one.
        max_retry_delay: the most seconds between two tries.
        provider_timeout: seconds that one call of the provider may take.
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
        self._workers = workers
        self._node_sync_period = node_sync_period
        self._provider_timeout = provider_timeout
        self._cache = _ServiceCache()
        self._queue = DeltaFIFO(
            meta_namespace_key,
            compressor=newest_only,
            known_objects=self._cache,
            clock=self._clock,
        )
        store: ReflectorStore = self._queue
        if isinstance(provider, KeepsAddresses):
            store = ReservingQueue(self._queue, provider, self._address_freed)
        self._reflector = Reflector(
            services,
            store,
            name="services",
            resync_period=service_sync_period,
            known=NewestKnown(self._queue),
            clock=self._clock,
        )
        self._nodes = NodeSet()
        self._node_reflector = Reflector(nodes, self._nodes, name="nodes", clock=self._clock)
        self._backoff: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(
            min_retry_delay, max_retry_delay
        )
        self._retries: dict[str, Timer] = {}
        # Services that lack an address which others have, the first one first.
        self._lacking: dict[str, None] = {}
        self._freed = 0
        self._syncs = self._ensured = self._deleted = self._failures = 0
        self._node_syncs = self._node_errors = 0
        self._node_seconds = Histogram()
        self._host_seconds = Histogram()

    # --- Life ---

    @property
    def has_synced(self) -> bool:
        """Whether every service that was there at the start has been worked on once."""
        return self._queue.has_synced

    async def run(self) -> None:
        """Work until cancelled. Load balancers stay as they are then."""
        try:
            with single_error():
                await self._run_tasks()
        finally:
            for timer in self._retries.values():
                timer.cancel()
            self._retries.clear()

    async def _run_tasks(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._node_reflector.run(), name="nodes")
            # A load balancer without nodes would be made, and changed at once.
            await self._nodes.synced.wait()
            self._nodes.changed.clear()
            group.create_task(self._reflector.run(), name="services")
            group.create_task(self._sync_nodes_forever(), name="node sync")
            for number in range(self._workers):
                group.create_task(self._work(), name=f"service worker {number}")

    def statistics(self) -> ServiceControllerStatistics:
        """Return the figures of this moment."""
        return ServiceControllerStatistics(
            queue=self._queue.statistics(),
            reflector=self._reflector.statistics(),
            services=sum(c.touched is not None for c in self._cache.services.values()),
            nodes=len(self._nodes.nodes()),
            syncs=self._syncs,
            ensured=self._ensured,
            deleted=self._deleted,
            failures=self._failures,
            retrying=len(self._retries),
            node_syncs=self._node_syncs,
            node_errors=self._node_errors,
            node_sync_seconds=self._node_seconds.statistics(),
            host_update_seconds=self._host_seconds.statistics(),
        )

    # --- Services ---

    async def _work(self) -> None:
        while True:
            await self._queue.pop(self._process)
            await asyncio.sleep(0)

    async def _process(self, deltas: Deltas) -> None:
        key, newest = deltas.key, deltas.newest()
        item = newest.object
        if isinstance(item, DeletedFinalStateUnknown):
            item = item.obj
        is_gone = newest.type is DeltaType.DELETED
        cached = self._cache.services.get(key)
        if cached is None:
            if item is None or is_gone:
                return  # no load balancer of it is known
            cached = self._cache.services[key] = _Cached(item)
        else:
            before, was_gone = cached.last, cached.gone
            if item is not None:
                cached.last = item
            cached.gone = is_gone
            if key in self._retries and is_gone == was_gone and not _matters(before, cached.last):
                return  # its retry comes in due time, with this state
        self._syncs += 1
        async with cached.lock:
            self._cancel_retry(key)
            freed = self._freed
            try:
                await self._sync(cached, newest.type)
            except AddressTakenError as error:
                self._failures += 1
                self._lacking.setdefault(key)
                # An address may have been let go while it looked for one.
                delay = self._backoff.when(key) if freed == self._freed else 0.0
                _logger.warning("service %s waits for an address: %s", key, error)
                self._retry(key, cached, delay)
                return
            except RetryAfterError as error:
                _logger.info("service %s waits %g s: %s", key, error.seconds, error)
                self._retry(key, cached, error.seconds)
            except Exception as error:  # noqa: BLE001 - whatever a provider or server raises: tried again
                self._failures += 1
                delay = self._backoff.when(key)
                _logger.warning(
                    "service %s failed, next try in %g s: %s", key, delay, _words(error)
                )
                self._retry(key, cached, delay)
            else:
                self._backoff.forget(key)
                self._lacking.pop(key, None)
                # What failed stays known, so that its deletion is told even before it is retried.
                if not cached.claimed and cached.touched is None:
                    self._cache.services.pop(key, None)

    def _retry(self, key: str, cached: _Cached, delay: float) -> None:
        """Queue a service again in due time, unless something newer of it comes before."""
        self._cancel_retry(key)
        self._retries[key] = self._clock.call_later(delay, self._queue_again, key, cached)

    def _queue_again(self, key: str, cached: _Cached) -> None:
        self._cancel_retry(key)
        kind = DeltaType.DELETED if cached.gone else DeltaType.UPDATED
        self._queue.add_if_not_present(Deltas((Delta(kind, cached.last),), key))

    def _address_freed(self) -> None:
        """Try those again at once that lack an address."""
        self._freed += 1
        waiting, self._lacking = self._lacking, {}
        for key in waiting:
            if key in self._retries and (cached := self._cache.services.get(key)) is not None:
                self._queue_again(key, cached)

    def _cancel_retry(self, key: str) -> None:
        if (timer := self._retries.pop(key, None)) is not None:
            timer.cancel()

    async def _sync(self, cached: _Cached, kind: DeltaType) -> None:
        if cached.gone:
            if cached.touched is not None:
                await self._remove(cached, cached.touched)
            cached.claimed = False
            return
        service = self._read(cached.last)
        if cached.touched is not None and cached.touched.uid != service.uid:
            await self._remove(cached, cached.touched)
            cached.claimed = False
        wanted = not service.is_deleted and wants_load_balancer(service, self._class)
        if needs_cleanup(service, self._class) or (cached.claimed and not wanted):
            await self._remove(cached, service)
            await self._release(cached, service)
        elif wanted:
            await self._ensure_if_needed(cached, service, is_check=kind is DeltaType.SYNC)

    def _read(self, obj: Object) -> Service:
        try:
            return Service.of(obj)
        except InvalidServiceError as error:
            if self._recorder is not None:
                words = _failed("syncing", error)
                self._recorder.event(obj, "Warning", "SyncLoadBalancerFailed", words)
            raise

    async def _ensure_if_needed(self, cached: _Cached, service: Service, *, is_check: bool) -> None:
        applied = cached.applied
        if applied is not None:
            differences = list(changes(applied, service))
            if differences:
                _logger.info("service %s changed: %s", service.key, ", ".join(differences))
            elif is_check and await self._call(self._provider.get(self._cluster, service)) is None:
                _logger.warning("the load balancer of service %s is missing", service.key)
            else:
                await self._restore(cached, service)
                return
        cached.applied = None
        try:
            await self._ensure(cached, service)
        except RetryAfterError:
            raise
        except ImplementedElsewhereError as error:
            _logger.info("service %s belongs to another controller: %s", service.key, error)
            cached.applied, cached.nodes = service, self._nodes.nodes()
        except Exception as error:
            self._tell(service, "Warning", "SyncLoadBalancerFailed", _failed("syncing", error))
            raise

    async def _ensure(self, cached: _Cached, service: Service) -> None:
        self._tell(service, "Normal", "EnsuringLoadBalancer", "Ensuring load balancer")
        cached.claimed = True
        if not service.has_finalizer:
            patch = {"metadata": {"finalizers": [FINALIZER]}}
            if await self._api.patch(service, patch) is None:
                return  # gone by now
        nodes = self._nodes.nodes()
        if not nodes:
            self._tell(
                service,
                "Warning",
                "UnAvailableLoadBalancer",
                "There are no available nodes for LoadBalancer",
            )
        cached.touched = service
        status = await self._call(self._provider.ensure(self._cluster, service, nodes))
        cached.status, cached.nodes = status, nodes
        if status != service.status:
            await self._write_status(cached, service, status)
        cached.applied = service
        self._ensured += 1
        self._tell(service, "Normal", "EnsuredLoadBalancer", "Ensured load balancer")

    async def _restore(self, cached: _Cached, service: Service) -> None:
        """Write what somebody took away; another load balancer's status is left alone."""
        if _is_older(service.object.resource_version, cached.written):
            return
        if not service.has_finalizer:
            patch = {"metadata": {"finalizers": [FINALIZER]}}
            await self._api.patch(service, patch)
        if not service.status.ingress and cached.status.ingress:
            await self._write_status(cached, service, cached.status)

    async def _write_status(
        self, cached: _Cached, service: Service, status: LoadBalancerStatus
    ) -> None:
        ingress = status.to_dict().get("ingress")
        written = await self._api.patch(service, {"status": {"loadBalancer": {"ingress": ingress}}})
        if written is not None:
            cached.written = written.resource_version

    async def _remove(self, cached: _Cached, service: Service) -> None:
        """Remove a load balancer, as far as there may be one."""
        cached.applied = None
        try:
            if await self._call(self._provider.get(self._cluster, service)) is not None:
                self._tell(service, "Normal", "DeletingLoadBalancer", "Deleting load balancer")
            await self._call(self._provider.ensure_deleted(self._cluster, service))
        except RetryAfterError:
            raise
        except ImplementedElsewhereError:
            pass
        except Exception as error:
            self._tell(service, "Warning", "DeleteLoadBalancerFailed", _failed("deleting", error))
            raise
        cached.touched = None
        cached.status, cached.nodes = LoadBalancerStatus(), ()
        self._deleted += 1
        self._address_freed()
        self._tell(service, "Normal", "DeletedLoadBalancer", "Deleted load balancer")

    async def _release(self, cached: _Cached, service: Service) -> None:
        """Let a service go whose load balancer is gone."""
        patch: dict[str, Any] = {}
        if cached.claimed or service.status.ingress:
            patch["status"] = {"loadBalancer": {"ingress": None}}
        if cached.claimed or service.has_finalizer:
            patch["metadata"] = {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}
        if patch:
            await self._api.patch(service, patch)
        cached.claimed = False

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            async with self._clock.timeout(self._provider_timeout):
                return await call
        except TimeoutError as error:
            raise TimeoutError(
                str(error) or f"the provider did not finish within {self._provider_timeout:g} s"
            ) from error

    def _tell(
        self, service: Service, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        if self._recorder is not None:
            self._recorder.event(service.object, kind, reason, message)

    # --- Nodes ---

    async def _sync_nodes_forever(self) -> None:
        while True:
            try:
                async with self._clock.timeout(self._node_sync_period):
                    await self._nodes.changed.wait()
            except TimeoutError:
                pass  # compared all the same: this is the period
            self._nodes.changed.clear()
            await self._sync_nodes()

    async def _sync_nodes(self) -> None:
        start = self._clock.now()
        nodes = self._nodes.nodes()
        slots = asyncio.Semaphore(self._workers)

        async def update(key: str, cached: _Cached) -> None:
            async with slots, cached.lock:
                await self._update_nodes(key, cached, nodes)

        async with asyncio.TaskGroup() as group:
            for key, cached in list(self._cache.services.items()):
                if cached.applied is not None and cached.nodes != nodes:
                    group.create_task(update(key, cached))
        self._node_syncs += 1
        self._node_seconds.observe(self._clock.now() - start)

    async def _update_nodes(self, key: str, cached: _Cached, nodes: tuple[Node, ...]) -> None:
        service = cached.applied
        if service is None or cached.nodes == nodes:
            return  # a worker was here meanwhile
        if not nodes:
            self._tell(
                service,
                "Warning",
                "UnAvailableLoadBalancer",
                "There are no available nodes for LoadBalancer",
            )
        start = self._clock.now()
        try:
            await self._call(self._provider.update(self._cluster, service, nodes))
        except ImplementedElsewhereError:
            cached.nodes = nodes
        except Exception as error:  # noqa: BLE001 - a provider's failure: told, and tried again as a whole
            self._node_errors += 1
            self._tell(
                service,
                "Warning",
                "UpdateLoadBalancerFailed",
                f"Error updating load balancer with new hosts: {_words(error)}",
            )
            cached.applied = None
            if key not in self._retries:
                self._retry(key, cached, self._backoff.when(key))
        else:
            cached.nodes = nodes
            self._tell(
                service, "Normal", "UpdatedLoadBalancer", "Updated load balancer with new hosts"
            )
        finally:
            self._host_seconds.observe(self._clock.now() - start)


def _matters(old: Object, new: Object) -> bool:
    """Tell whether a change is a reason to try again what has just failed."""
    if (old.meta.deletion_timestamp, old.uid) != (new.meta.deletion_timestamp, new.uid):
        return True
    try:
        return needs_update(Service.of(old), Service.of(new))
    except InvalidServiceError:
        return old.resource_version != new.resource_version


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _failed(what: str, error: Exception) -> str:
    return f"Error {what} load balancer (will retry): {_words(error)}"


def _is_older(version: str, than: str) -> bool:
    """Tell whether a state is from before a write; versions are numbers (KEP-5504)."""
    return version.isdigit() and than.isdigit() and int(version) < int(than)
