"""A pop loop with retries: pop, handle, and requeue what failed.

The contract is that of OpenShift origin's `pkg/controller/controller.go`, with these corrections:
the handler runs outside the queue's lock, a stop interrupts a blocked pop, a failing key function
is an error instead of an empty key, and a key's retry precedes anything newer of the key even with
several workers.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol, TypeVar

import msgspec

from listwatch.clock import Clock, stray
from listwatch.errors import ListWatchError, QueueClosedError
from listwatch.workqueue.rate_limiters import TokenBucket

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

_log = logging.getLogger(__name__)


class PopQueue(Protocol[T]):
    """A queue that passes its entries to a function, such as a DeltaFIFO."""

    async def pop(self, process: Callable[[T], Awaitable[None] | None], /) -> T:
        """Wait for the next resource, call `process` with it outside any lock, and return it.

        No other pop gets anything of its key until then. If cancelled, the resource stays queued.
        """

    def add_if_not_present(self, resource: T, /) -> object:
        """Queue the resource again, unless something newer is queued under its key.

        May be called from within its process function.
        """


class Retry(msgspec.Struct, frozen=True):
    """Earlier attempts with a resource."""

    #: Number of times it was requeued.
    count: int
    #: Time of its first failure, in seconds since 1970.
    start_timestamp: float
    #: Seconds since its first failure, unaffected by jumps of the wall clock.
    age: float


#: Decides from the resource, its error and its `Retry` whether to requeue it.
RetryFunc = Callable[[T_contra, Exception, Retry], bool]


def retry_never(resource: object, error: Exception, retry: Retry) -> bool:  # noqa: ARG001 - a RetryFunc
    """Give up at the first failure."""
    return False


def retry_always(resource: object, error: Exception, retry: Retry) -> bool:  # noqa: ARG001 - a RetryFunc
    """Never give up."""
    return True


def retry_until(
    *,
    count: int | None = None,
    age: float | None = None,
    is_fatal: Callable[[Exception], bool] | None = None,
) -> RetryFunc[object]:
    """Return a RetryFunc that gives up at the first of several limits.

    Args:
        count: maximum number of retries of a resource (OpenShift's build controllers: 61, since
            they give up at a count above 60).
        age: seconds since the first failure (OpenShift's build controller: 1800).
        is_fatal: whether a retry cannot help with this error.
    """

    def retry_func(resource: object, error: Exception, retry: Retry) -> bool:  # noqa: ARG001 - a RetryFunc
        return not (
            (count is not None and retry.count >= count)
            or (age is not None and retry.age > age)
            or (is_fatal is not None and is_fatal(error))
        )

    return retry_func


class RetryKeyError(ListWatchError):
    """The key function of a retry manager failed for a resource."""


class RetryManager(Protocol[T_contra]):
    """Decides about failed resources, while the queue has them in process."""

    async def retry(self, resource: T_contra, error: Exception, /) -> bool:
        """Requeue the failed resource in due time, or give it up; return whether it was requeued.

        If cancelled, leaves the resource to the queue, which still has it in process.
        """

    def forget(self, resource: T_contra, /) -> None:
        """Reset the resource's failures."""


class QueueRetryManager(Generic[T]):
    """Requeues failed resources in the queue they came from.

    Anything newer queued under the same key replaces the failed resource. For one event loop.

    Args:
        queue: the queue of the resources.
        key_func: returns the key under which a resource's failures are counted. For a DeltaFIFO use
            the queue's `key_of`, because its resources are deltas.
        retry_func: decides whether to try again.
        limiter: limits the retries of all keys together; by default, as in OpenShift, one per
            second after a burst of 10.
        clock: the time.
    """

    def __init__(
        self,
        queue: PopQueue[T],
        key_func: Callable[[T], Hashable],
        retry_func: RetryFunc[T],
        limiter: TokenBucket | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._queue = queue
        self._key_func = key_func
        self._retry_func = retry_func
        self._clock = clock or Clock()
        self._limiter = limiter or TokenBucket(1, 10, clock=self._clock)
        # By key: number of requeues, and wall and monotonic time of the first failure.
        self._failures: dict[Hashable, tuple[int, float, float]] = {}

    def __len__(self) -> int:
        """Return the number of keys that have failed and were neither forgotten nor given up."""
        return len(self._failures)

    async def retry(self, resource: T, error: Exception, /) -> bool:
        """Requeue the resource when the limiter allows, if the retry function agrees.

        Call it from within the queue's process function, as `RetryController` does. Then nothing
        newer of the key is handled while it waits, and cancelling loses nothing.

        Returns:
            False if the resource was given up.

        Raises:
            RetryKeyError: the resource has no key; nothing was queued.
        """
        key = self._key(resource)
        now = self._clock.now()
        count, stamp, start = self._failures.setdefault(key, (0, self._clock.time(), now))
        try:
            again = self._retry_func(resource, error, Retry(count, stamp, now - start))
        except Exception:
            self._queue.add_if_not_present(resource)  # a faulty function must not lose the resource
            raise
        if not again:
            self._failures.pop(key, None)
            _log.warning("giving up on %s after %d retries: %s", key, count, error)
            return False
        self._failures[key] = (count + 1, stamp, start)
        _log.info("requeueing %s, retry %d: %s", key, count + 1, error)
        await self._limiter.accept()
        self._queue.add_if_not_present(resource)
        return True

    def forget(self, resource: T, /) -> None:
        """Reset the resource's failures.

        Raises:
            RetryKeyError: the resource has no key.
        """
        self._failures.pop(self._key(resource), None)

    def _key(self, resource: T) -> Hashable:
        try:
            return self._key_func(resource)
        except Exception as error:
            raise RetryKeyError(
                f"no key for a {type(resource).__name__} ({error}): "
                "pass the retry manager the queue's key function, such as queue.key_of"
            ) from error


class RetryControllerStatistics(msgspec.Struct, frozen=True):
    """What a RetryController has done so far."""

    #: Resources handled without an error.
    handled: int
    #: Handlers that raised.
    failed: int
    #: Failed resources that were requeued.
    retried: int
    #: Failed resources that were given up.
    given_up: int


class RetryController(Generic[T]):
    """Pops resources, handles them, and lets the retry manager decide about failed ones.

    `run` may run several times at once: each is one worker, and the queue never gives one key to
    two of them.

    Args:
        queue: the queue of the resources.
        handle: handles one resource; async, or plain and non-blocking. It may add to the queue. An
            `Exception` is a failure; it is logged and passed to the retry manager.
        retry_manager: decides what to do after a failure, and after a success.
    """

    def __init__(
        self,
        queue: PopQueue[T],
        handle: Callable[[T], Awaitable[None] | None],
        retry_manager: RetryManager[T],
    ) -> None:
        self._queue = queue
        self._handle = handle
        self._retry_manager = retry_manager
        self._handled = 0
        self._failed = 0
        self._retried = 0
        self._given_up = 0

    async def run(self) -> None:
        """Handle resources until the queue is closed and empty.

        Cancelling while a handler runs, or while a retry waits, leaves the resource in the queue.

        Raises:
            RetryKeyError: the key function failed for a resource.
        """
        await self._work(asyncio.Event(), asyncio.Event())

    async def run_until(self, stop: asyncio.Event) -> None:
        """Handle resources until `stop` is set, or the queue is closed and empty.

        A running handler finishes; waiting for a resource, or for a retry, ends at once. Cancelling
        works as for `run`.

        Raises:
            RetryKeyError: the key function failed for a resource.
        """
        if stop.is_set():
            return
        idle = asyncio.Event()
        idle.set()
        failures: list[Exception] = []

        async def work() -> None:
            try:
                await self._work(stop, idle)
            except Exception as error:  # noqa: BLE001 - raised below without its exception group
                failures.append(error)
            finally:
                stopping.cancel()

        async def interrupt() -> None:
            await stop.wait()
            await idle.wait()
            working.cancel()

        async with asyncio.TaskGroup() as group:
            # In this order, because tasks may start at once (asyncio.eager_task_factory).
            stopping = group.create_task(interrupt())
            working = group.create_task(work())
        if failures:
            raise failures[0]

    def statistics(self) -> RetryControllerStatistics:
        """Return statistics so far."""
        return RetryControllerStatistics(self._handled, self._failed, self._retried, self._given_up)

    async def _work(self, stop: asyncio.Event, idle: asyncio.Event) -> None:
        async def process(resource: T) -> None:
            await self._process(resource, idle)

        try:
            while not stop.is_set():
                await self._queue.pop(process)
                # Neither pop nor the handler may ever yield, but other tasks must run.
                await asyncio.sleep(0)
        except QueueClosedError:
            return

    async def _process(self, resource: T, idle: asyncio.Event) -> None:
        idle.clear()
        try:
            result = self._handle(resource)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as cancellation:
            failure: Exception = stray(cancellation)
        except Exception as error:  # noqa: BLE001 - given to the retry manager below
            failure = error
        else:
            self._handled += 1
            self._retry_manager.forget(resource)
            return
        finally:
            idle.set()
        self._failed += 1
        if await self._retry_manager.retry(resource, failure):
            self._retried += 1
        else:
            self._given_up += 1
