"""The loop of a reconciler: calls its function with the keys of its queue."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from listwatch.clock import Clock, is_cancelled
from listwatch.errors import QueueClosedError, unwrap
from listwatch.printable import MAX_CHARACTERS, printable
from listwatch.runtime.calling import ReconcileCaller
from listwatch.runtime.feeds import Feeds
from listwatch.runtime.history import History
from listwatch.runtime.key_limits import KeyLimits, Lru
from listwatch.runtime.own_writes import OwnWrites
from listwatch.runtime.reconcile_context import ReconcileContext, enter_reconcile
from listwatch.runtime.reconcile_record import REQUEUE, RETRY, SUCCESS, Trigger, words_of
from listwatch.runtime.reconciler_statistics import ReconcilerStatistics
from listwatch.runtime.recorded_writes import Write, record
from listwatch.runtime.results import DONE, Result, is_expected, is_terminal
from listwatch.workqueue.metrics import Histogram
from listwatch.workqueue.priority_queue import PriorityQueue

if TYPE_CHECKING:
    from listwatch.runtime.leading import LeadershipGuard
    from listwatch.runtime.tracing import EndSpan, ReconcileTracer

_logger = logging.getLogger(__name__)

#: Seconds for which a key that belongs to another replica is remembered.
REFUSED_SECONDS: Final = 120.0

#: Number of deleted objects whose keys are remembered as seen.
_REMEMBERED_DELETIONS: Final = 10_000


class HoldsKeys(Protocol):
    """Knows which objects are cached."""

    def holds(self, key: str) -> bool:
        """Return whether an object of this key is cached."""
        ...


class BoundsGroups(Protocol):
    """Bounds how many keys of a group are in process."""

    def take(self, key: str) -> bool:
        """Take a slot; otherwise keep the key, to queue it again later, and return False."""
        ...

    def leave(self, key: str) -> None:
        """Give the slot of a key back."""
        ...

    def pass_on(self, key: str) -> None:
        """Let another key come: this one, which came from the queue, takes no slot now."""
        ...


class ReconcileLoop:
    """Reconciles the keys of a queue, several at once. Runs once, in one event loop.

    Args:
        name: of the reconciler, for logs and statistics.
        queue: the keys.
        hot: limits how often a key is reconciled.
        own_writes: delays a key until the caches have its last writes; None to continue at once.
        history: gets records of the reconciles; None for none.
        concurrency: maximum keys reconciled at the same time.
        timeout: seconds after which a reconcile is cancelled and counts as failed; None for no
            limit.
        clock: the time.
    """

    def __init__(
        self,
        name: str,
        queue: PriorityQueue[str],
        hot: KeyLimits[str],
        own_writes: OwnWrites | None,
        history: History | None,
        *,
        concurrency: int,
        timeout: float | None,
        clock: Clock,
    ) -> None:
        self._name = name
        self._queue = queue
        self._hot = hot
        self._own_writes = own_writes
        self._history = history
        self._numbers = count(1)
        #: The failures of each key since its last success.
        self.failures: dict[str, int] = {}
        self._concurrency = concurrency
        self._timeout = timeout
        self._clock = clock
        #: Knows the objects whose keys are reconciled; None if there are none.
        self.primary: HoldsKeys | None = None
        #: Starts a span for each reconcile; None for none.
        self.tracer: ReconcileTracer | None = None
        #: Returns whether a key belongs to this replica; None accepts all.
        self.accepts: Callable[[str], bool] | None = None
        #: Bounds the keys in process of each group; None for no such bound.
        self.slots: BoundsGroups | None = None
        #: The times at which keys were refused. In a plain dict, finding the first key takes longer
        #: the more keys before it were removed.
        self.refused: OrderedDict[str, float] = OrderedDict()
        #: The keys being reconciled.
        self.running: set[str] = set()
        self.is_stopping = False
        self._stopped = asyncio.Event()
        self._guard: LeadershipGuard | None = None
        # How often `hold` was called without its `release`.
        self._holds = 0
        self._released = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        #: Delays keys whose writes are not cached yet.
        self._settling: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._successes = self._requeues = self._limited_requeues = 0
        self._errors = self._terminal_errors = self._panics = 0
        self._timeouts = self._throttled = self._unseen = 0
        self._deleted: Lru[str, bool] = Lru(_REMEMBERED_DELETIONS)
        self._duration = Histogram()
        self._last_error = ""

    async def run(
        self, caller: ReconcileCaller, feeds: Feeds, guard: "LeadershipGuard | None"
    ) -> None:
        """Reconcile until `stop` or a cancellation.

        Args:
            caller: calls the function.
            feeds: runs meanwhile.
            guard: once another process may lead, this refuses every further step of the function.
        """
        self._guard = guard
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                workers = [
                    group.create_task(self._work(caller), name=f"{self._name} {number}")
                    for number in range(self._concurrency)
                ]
                feeds.begin(group)
                await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
                if not self.is_stopping:
                    raise RuntimeError("one of its workers was cancelled")
                await asyncio.wait(workers)
                feeds.end()
                for task in list(self._settling):
                    task.cancel()
        finally:
            feeds.end()
            self.is_stopping = True
            self._queue.shut_down()
            caller.close()

    def stop(self) -> None:
        """Start no new reconcile; `run` returns when the running ones have ended."""
        self.is_stopping = True
        self._stopped.set()
        self._released.set()
        self._queue.shut_down()

    def hold(self) -> None:
        """Start no reconcile until `release`."""
        self._holds += 1
        self._released.clear()

    def release(self) -> None:
        """End one `hold`."""
        self._holds -= 1
        if not self._holds:
            self._released.set()

    async def drained(self, keeps: Callable[[str], bool]) -> None:
        """Return when no key is in process that `keeps` rejects."""
        while not all(keeps(key) for key in self.running):
            self._ended.clear()
            await self._ended.wait()

    def forget(self, key: str) -> None:
        """Forget the failures of a key."""
        self.failures.pop(key, None)
        self._queue.forget(key)

    def remember_deleted(self, key: str) -> None:
        """Count the key as seen although its object is no longer cached."""
        self._deleted.put(key, True)

    def statistics(self) -> ReconcilerStatistics:
        """Return the current state; any thread may call this."""
        return ReconcilerStatistics(
            name=self._name,
            successes=self._successes,
            requeues=self._requeues,
            limited_requeues=self._limited_requeues,
            errors=self._errors,
            terminal_errors=self._terminal_errors,
            panics=self._panics,
            timeouts=self._timeouts,
            unseen=self._unseen,
            throttled=self._throttled,
            active=len(self.running),
            concurrency=self._concurrency,
            duration=self._duration.statistics(),
            queue=self._queue.statistics(),
            last_error=self._last_error,
            own_writes=None if self._own_writes is None else self._own_writes.statistics(),
        )

    def report(self, words: str, error: BaseException) -> None:
        """Log an error, and remember it for the statistics."""
        self._last_error = words
        if is_expected(error):
            _logger.warning("reconciler %s: %s", self._name, words)
        else:
            _logger.error("reconciler %s: %s", self._name, words, exc_info=error)

    # --- Work ---

    async def _work(self, caller: ReconcileCaller) -> None:
        queue = self._queue
        while True:
            try:
                key = await queue.get()
            except QueueClosedError:
                return
            waited = queue.last_wait
            if self.is_stopping:
                queue.done(key)
                return
            if self.accepts is not None and not self.accepts(key):
                self._remember_refused(key)
                if self._history is not None:
                    self._history.forget(key)
                queue.forget(key)
                queue.done(key)
                self._pass_on(key)
                continue
            if (wait := self._hot.take(key, self._clock.now())) > 0:
                self._throttled += 1
                queue.add_with(key, priority=queue.priority_of(key), after=wait)
                queue.done(key)
                self._pass_on(key)
                continue
            if self.slots is not None and not self.slots.take(key):
                queue.done(key)
                continue
            try:
                is_held = self._holds or self._guard is not None
                if is_held and not await self._may_begin():
                    queue.put_back(key)
                    return
                writes = await self._reconcile(key, waited, caller)
            except asyncio.CancelledError:
                queue.put_back(key)  # also marks it as done
                raise
            finally:
                if self.slots is not None:
                    self.slots.leave(key)
            self._finish(key, writes)
            if is_cancelled():  # although the function suppressed it
                raise asyncio.CancelledError

    def _pass_on(self, key: str) -> None:
        if self.slots is not None:
            self.slots.pass_on(key)

    def _finish(self, key: str, writes: list[Write]) -> None:
        """Allow the key's next reconcile, once the caches contain this reconcile's writes."""
        own = self._own_writes
        if own is None or not writes or self._group is None or is_cancelled():
            self._queue.done(key)  # the group of a cancelled reconciler accepts no tasks
            return
        if own.are_seen(writes):
            self._queue.done(key)
            return
        # No worker waits here. New events for the key wait in the queue, merged.
        task = self._group.create_task(own.wait(key, writes), name=f"{self._name} {key}")
        self._settling.add(task)
        # A callback also runs if the task is cancelled before its first step.
        task.add_done_callback(partial(self._let_go, key))

    def _let_go(self, key: str, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        self._queue.done(key)

    async def _may_begin(self) -> bool:
        """Return when a reconcile may start; False to stop."""
        while self._holds and not self.is_stopping:
            await self._released.wait()
        if self._guard is not None and not self._guard.is_leader:
            # Another process may lead: wait for the cancellation or the stop.
            await self._stopped.wait()
        return not self.is_stopping

    def _remember_refused(self, key: str) -> None:
        # While views change, both the old and the new owner may refuse a key, and the key of a
        # deleted object is in no cache.
        now = self._clock.now()
        self.refused.pop(key, None)
        self.refused[key] = now
        while now - self.refused[oldest := next(iter(self.refused))] > REFUSED_SECONDS:
            del self.refused[oldest]

    async def _reconcile(self, key: str, waited: float, caller: ReconcileCaller) -> list[Write]:
        """Call the function; return what it wrote."""
        history = self._history
        started = self._clock.now()
        self.running.add(key)
        self._count_unseen(key)
        attempt = self.failures.get(key, 0) + 1
        context = ReconcileContext(self._name, key, attempt, f"{self._name}-{next(self._numbers)}")
        enter_reconcile(context)
        story = None if history is None else history.begin(context, waited, started)
        end_span: EndSpan | None = None
        if self.tracer is not None:
            end_span = self.tracer.begin(context, None if story is None else story.trigger)
        recording = record(story, history)
        word = "cancelled"
        error: BaseException | None = None
        try:
            result: Result | None = None
            limit = self._clock.timeout(self._timeout)
            try:
                async with limit:
                    result = await caller.call(key, self._guard)
            except asyncio.CancelledError as cancellation:
                if is_cancelled():
                    raise
                # Not the function was cancelled, but something that it awaited.
                error = cancellation
            except Exception as raised:  # noqa: BLE001 - the key is retried after any exception
                error = raised
            if limit.expired:
                # Even if the function suppressed its cancellation, its work is unfinished.
                self._timeouts += 1
                error = error or TimeoutError(
                    f"it ignored its cancellation after {self._timeout:g} s"
                )
            word = self._settle(key, result, error)
        finally:
            self.running.discard(key)
            self._ended.set()
            writes = recording.end()
            ended = self._clock.now()
            self._duration.observe(ended - started)
            if end_span is not None:
                end_span(word, error)
            if story is not None and history is not None:
                next_in = None if word == SUCCESS else self._queue.due_in(key)
                history.end(story, ended, word, error, next_in)
        return writes

    def _settle(self, key: str, result: Result | None, error: BaseException | None) -> str:
        """Decide when the key is reconciled again; return the word for the result."""
        queue = self._queue
        if error is None:
            self.failures.pop(key, None)
            return self._settle_success(key, result or DONE)
        self._failed(key, error)
        if is_terminal(error):
            self._terminal_errors += 1
            self.failures.pop(key, None)
            queue.forget(key)
            return "terminal_error"
        self.failures[key] = self.failures.get(key, 0) + 1
        queue.requeue(key, failed=True)
        self._will_come_again(key, RETRY)
        return "error"

    def _will_come_again(self, key: str, trigger: Trigger) -> None:
        if self._history is not None:
            self._history.woken(key, trigger)

    def _settle_success(self, key: str, result: Result) -> str:
        queue = self._queue
        priority = queue.priority_of(key) if result.priority is None else result.priority
        if result.requeue:
            self._limited_requeues += 1
            queue.add_with(key, priority=priority, rate_limited=True)
            self._will_come_again(key, REQUEUE)
            return "requeue"
        queue.forget(key)
        if result.requeue_after is None:
            self._successes += 1
            return SUCCESS
        self._requeues += 1
        queue.add_with(key, priority=priority, after=max(0.0, result.requeue_after))
        self._will_come_again(key, REQUEUE)
        return "requeue_after"

    def _count_unseen(self, key: str) -> None:
        primary = self.primary
        if primary is None or primary.holds(key) or self._deleted.get(key):
            return
        self._unseen += 1
        self._deleted.put(key, True)  # from now on the key counts as seen

    def _failed(self, key: str, error: BaseException) -> None:
        self._errors += 1
        error = unwrap(error)
        self._panics += not is_expected(error)
        self.report(printable(f"{key}: {words_of(error, MAX_CHARACTERS)}"), error)
