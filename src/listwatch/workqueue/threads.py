"""A work queue for threads other than its event loop's."""

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterator
from typing import Generic, TypeVar

from listwatch.clock import Clock
from listwatch.errors import QueueClosedError
from listwatch.workqueue.work_queue import WorkQueue, check_delay, check_hashable, finish

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# Seconds between checks whether the event loop that owes an answer still exists.
_LOOK_AFTER_LOOP = 1.0


class BlockingWorkQueue(Generic[K]):
    """A `WorkQueue` for use from any number of threads other than its event loop's.

    Create it in the queue's event loop. Before that loop ends, shut the queue down and wait for the
    threads; later calls fail. `add` and `add_after` hand the item over and return, in the order of
    one thread's calls; `len` and `num_requeues` read directly; all other methods wait for the
    loop's answer. In a forked process, methods raise RuntimeError, but leaving `item` does nothing
    and hides no exception.

    Args:
        queue: the queue; tasks may keep using it.
        clock: the time for the limit of `get`.

    Raises:
        RuntimeError: no event loop is running; or a method that waits was called from the queue's
            own loop, which would wait for itself; or from another process.
    """

    def __init__(self, queue: WorkQueue[K], *, clock: Clock | None = None) -> None:
        self._queue = queue
        self._clock = clock or Clock()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._process = os.getpid()

    def __len__(self) -> int:
        """Return the number of items that are ready now."""
        return len(self._queue)

    def __bool__(self) -> bool:
        return True  # as in WorkQueue

    def add(self, item: K) -> None:
        """Queue the item now.

        Raises:
            TypeError: the item is not hashable.
            QueueClosedError: the event loop has ended.
        """
        check_hashable(item)
        self._send(self._queue.add, item)

    def add_after(self, item: K, seconds: float) -> None:
        """Queue the item after this many seconds.

        Raises:
            TypeError: the item is not hashable.
            ValueError: `seconds` is infinite or not a number.
            QueueClosedError: the event loop has ended.
        """
        check_hashable(item)
        check_delay(item, seconds)
        self._send(self._queue.add_after, item, seconds)

    def add_rate_limited(self, item: K) -> None:
        """Queue a failed item again after the rate limiter's delay."""
        self._ask(self._queue.add_rate_limited, item)

    def forget(self, item: K) -> None:
        """Reset the item's failures in the rate limiter, after success or giving up."""
        self._ask(self._queue.forget, item)

    def num_requeues(self, item: K) -> int:
        """Return the item's failures since the last `forget`, as counted by the rate limiter."""
        return self._queue.num_requeues(item)

    def get(self, timeout: float | None = None) -> K:
        """Return the next item, waiting if necessary. Always call `done` with it afterwards.

        An exception in this thread, such as KeyboardInterrupt, takes nothing.

        Args:
            timeout: seconds, as counted by the event loop, which does not count while blocked; None
                for no limit.

        Raises:
            QueueClosedError: the queue is shutting down and empty, or the loop has ended.
            TimeoutError: no item came in time.
        """
        task: asyncio.Task[K] | None = None
        given_up = False

        async def get() -> K:
            nonlocal task
            task = asyncio.current_task()
            if given_up:
                raise asyncio.CancelledError
            async with self._clock.timeout(timeout):
                return await self._queue.get()

        def give_up() -> None:
            nonlocal given_up
            given_up = True
            if task is not None:
                task.cancel()

        future = self._start(get())
        try:
            return self._result(future)
        except (QueueClosedError, TimeoutError):
            raise
        except BaseException:
            # Don't cancel the future itself: an item may be on its way, and must be returned.
            future.add_done_callback(self._return)
            self._send(give_up)
            raise

    def done(self, item: K) -> None:
        """Mark the work on a taken item as finished, successful or not.

        Raises:
            ValueError: no worker has the item.
        """
        self._ask(self._queue.done, item)

    @contextlib.contextmanager
    def item(self, *, requeue: bool = False) -> Iterator[K]:
        """Return `with queue.item() as key`, like `WorkQueue.item` for a thread."""
        key = self.get()
        kind: type[BaseException] | None = None
        try:
            yield key
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            if os.getpid() != self._process:
                pass  # the other process has taken the item and continues
            elif requeue:
                self._ask(finish, self._queue, key, kind)
            else:
                self._ask(self._queue.done, key)

    def shut_down(self) -> None:
        """Refuse new items, drop delayed ones, and let the workers take the rest."""
        self._ask(self._queue.shut_down)

    def shut_down_with_drain(
        self, timeout: float | None = None, *, drop_waiting: bool = False
    ) -> bool:
        """Refuse new items, and return when all queued items are done.

        See `WorkQueue.shut_down_with_drain`.
        """
        drain = self._queue.shut_down_with_drain(timeout, drop_waiting=drop_waiting)
        return self._result(self._start(drain))

    def _return(self, future: "concurrent.futures.Future[K]") -> None:
        if not future.cancelled() and future.exception() is None:
            self._send(self._queue.put_back, future.result())

    def _send(self, call: Callable[..., object], *arguments: object) -> None:
        self._refuse_other_process()
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError as error:
            raise QueueClosedError("the work queue's event loop is closed") from error

    def _ask(self, call: Callable[..., T], *arguments: object) -> T:
        self._refuse_own_thread()
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def answer() -> None:
            try:
                future.set_result(call(*arguments))
            except Exception as error:  # noqa: BLE001 - raised in the calling thread
                future.set_exception(error)

        self._send(answer)
        return self._result(future)

    def _refuse_own_thread(self) -> None:
        if threading.get_ident() == self._thread:
            raise RuntimeError(
                "a BlockingWorkQueue is for other threads: use its WorkQueue in the event loop"
            )

    def _refuse_other_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "this work queue belongs to another process, which was forked: its event loop "
                "doesn't run here, so create a queue in this process"
            )

    def _start(self, work: Coroutine[object, object, T]) -> "concurrent.futures.Future[T]":
        """Run `work` in the event loop; the calling thread waits for it."""
        try:
            self._refuse_other_process()
            self._refuse_own_thread()
        except RuntimeError:
            work.close()
            raise
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise QueueClosedError("the work queue's event loop is closed") from error

    def _result(self, future: "concurrent.futures.Future[T]") -> T:
        while True:
            try:
                error = future.exception(_LOOK_AFTER_LOOP)
            except concurrent.futures.CancelledError as cancelled:
                raise QueueClosedError("the work queue's event loop has stopped") from cancelled
            except TimeoutError:
                # A call that reaches a loop in its last moments is never answered.
                if self._loop.is_closed():
                    raise QueueClosedError("the work queue's event loop is closed") from None
            else:
                break
        if error is not None:
            raise error
        return future.result()
