"""Assemble the build controllers, from list-watch to retry loop (see docs/seed.md)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import Deltas, DeltaType, QueueStatistics
from listwatch.cache.list_watch import ListerWatcher
from listwatch.cache.reflector import Reflector
from listwatch.cache.reflector_statistics import ReflectorStatistics
from listwatch.clock import Clock
from listwatch.controllers.builds.api import BuildsAPI
from listwatch.controllers.builds.deletion import (
    BuildDeleteController,
    BuildPodDeleteController,
)
from listwatch.controllers.builds.list_watch import (
    BuildDeleteListWatch,
    BuildPodDeleteListWatch,
    DeletionsOnly,
    EveryKeyKnown,
)
from listwatch.controllers.failures import single_error
from listwatch.controllers.recorder import Recorder
from listwatch.objects import DeletedFinalStateUnknown, Object, meta_namespace_key
from listwatch.workqueue.rate_limiters import TokenBucket
from listwatch.workqueue.retry_controller import (
    QueueRetryManager,
    RetryController,
    RetryControllerStatistics,
    RetryFunc,
    retry_never,
)

_logger = logging.getLogger(__name__)

#: Seconds between two searches for deletions that the watch missed.
RELIST_SECONDS = 300.0


class DeleteControllerStatistics(msgspec.Struct, frozen=True):
    """Statistics of a delete controller's parts.

    Attributes:
        queue: its queue.
        reflector: the reflector that feeds the queue.
        handling: the loop that pops the queue.
        searches: searches for deletions, in addition to the reflector's own lists.
        failed_searches: searches that failed.
    """

    queue: QueueStatistics
    reflector: ReflectorStatistics
    handling: RetryControllerStatistics
    searches: int
    failed_searches: int


class _FindsDeletions(ListerWatcher, Protocol):
    async def find_deletions(self) -> str: ...


class DeleteController:
    """Handles the deletions of one kind of object (Go: `RunnableController`).

    Created by a factory. Bound to one event loop; one run at a time.
    """

    def __init__(
        self,
        name: str,
        queue: DeltaFIFO,
        source: _FindsDeletions,
        handle: Callable[[Object], Awaitable[None]],
        *,
        retry_func: RetryFunc[Deltas],
        relist_period: float,
        clock: Clock,
    ) -> None:
        self.name = name
        self._clock = clock
        self._queue = queue
        self._source = source
        self._handle = handle
        self._relist_period = relist_period
        self._searches = self._failed_searches = 0
        # No streaming: only a list searches for missed deletions.
        self._reflector = Reflector(
            source, DeletionsOnly(queue), name=name, clock=clock, watch_list=False
        )
        self._loop = RetryController(
            queue,
            self._handle_deltas,
            QueueRetryManager(
                queue, queue.key_of, retry_func, TokenBucket(1, 10, clock=clock), clock=clock
            ),
        )

    async def run(self) -> None:
        """Handle deletions until cancelled."""
        await self.run_until(asyncio.Event())

    async def run_until(self, stop: asyncio.Event) -> None:
        """Handle deletions until `stop` is set; a running handler finishes."""
        with single_error():
            await self._run_tasks(stop)

    async def _run_tasks(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            others = (
                group.create_task(self._reflector.run()),
                group.create_task(self._search_forever()),
            )
            try:
                await self._loop.run_until(stop)
            finally:
                for task in others:
                    task.cancel()

    def statistics(self) -> DeleteControllerStatistics:
        """Return current statistics."""
        return DeleteControllerStatistics(
            self._queue.statistics(),
            self._reflector.statistics(),
            self._loop.statistics(),
            self._searches,
            self._failed_searches,
        )

    async def _search_forever(self) -> None:
        # OpenShift's resync period did this while a resync still listed.
        while True:
            await self._clock.sleep(self._relist_period)
            self._searches += 1
            try:
                await self._source.find_deletions()
            except Exception as error:  # noqa: BLE001 - the next period tries again
                self._failed_searches += 1
                _logger.warning(
                    "%s: the search for deletions failed (%s); next in %g s",
                    self.name,
                    error,
                    self._relist_period,
                )

    async def _handle_deltas(self, deltas: Deltas) -> None:
        for delta in deltas:
            if delta.type is not DeltaType.DELETED:
                continue
            item = delta.object
            if isinstance(item, DeletedFinalStateUnknown):
                item = item.obj
            if item is not None:
                await self._handle(item)


class BuildPodControllerFactory:
    """Creates the controller that ends builds whose pods were deleted.

    Args:
        api: reads and writes builds, reads pods.
        pods: the pods with the label `openshift.io/build.name`.
        builds: all builds.
        recorder: gets an event for each build that failed.
        retry_func: whether to retry a failed deletion, once a second after a burst of 10. By
            default never, as in OpenShift: the next search finds it again.
        relist_period: seconds between searches for deletions that the watch missed.
        clock: the time.
    """

    def __init__(
        self,
        api: BuildsAPI,
        pods: ListerWatcher,
        builds: ListerWatcher,
        *,
        recorder: Recorder | None = None,
        retry_func: RetryFunc[Deltas] = retry_never,
        relist_period: float = RELIST_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._pods = pods
        self._builds = builds
        self._recorder = recorder
        self._retry_func = retry_func
        self._relist_period = relist_period
        self._clock = clock or Clock()

    def create_delete_controller(self) -> DeleteController:
        """Return a new controller."""
        queue = DeltaFIFO(meta_namespace_key, known_objects=EveryKeyKnown(), clock=self._clock)
        controller = BuildPodDeleteController(self._api, self._recorder, self._clock)
        return DeleteController(
            "build-pod-delete-controller",
            queue,
            BuildPodDeleteListWatch(self._pods, self._builds, self._api, queue),
            controller.handle_build_pod_deletion,
            retry_func=self._retry_func,
            relist_period=self._relist_period,
            clock=self._clock,
        )


class BuildControllerFactory:
    """Creates the controller that deletes the pods of deleted builds.

    Args:
        api: reads builds, reads and deletes pods.
        builds: all builds.
        pods: the pods with the label `openshift.io/build.name`.
        retry_func: as for `BuildPodControllerFactory`.
        relist_period: as for `BuildPodControllerFactory`.
        clock: the time.
    """

    def __init__(
        self,
        api: BuildsAPI,
        builds: ListerWatcher,
        pods: ListerWatcher,
        *,
        retry_func: RetryFunc[Deltas] = retry_never,
        relist_period: float = RELIST_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._builds = builds
        self._pods = pods
        self._retry_func = retry_func
        self._relist_period = relist_period
        self._clock = clock or Clock()

    def create_delete_controller(self) -> DeleteController:
        """Return a new controller."""
        queue = DeltaFIFO(meta_namespace_key, known_objects=EveryKeyKnown(), clock=self._clock)
        return DeleteController(
            "build-delete-controller",
            queue,
            BuildDeleteListWatch(self._builds, self._pods, self._api, queue),
            BuildDeleteController(self._api).handle_build_deletion,
            retry_func=self._retry_func,
            relist_period=self._relist_period,
            clock=self._clock,
        )
