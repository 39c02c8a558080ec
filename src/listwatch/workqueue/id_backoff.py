"""Delays that grow for each id, and are forgotten after a while.

The counterpart of client-go's `util/flowcontrol.Backoff`, for work that no queue retries: pulling
an image, starting a process, calling a cloud.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from listwatch.backoff import WORK_ITEM, Backoff
from listwatch.clock import Clock

K = TypeVar("K", bound=Hashable)


class IdBackoff(Generic[K]):
    """Says for each id whether it may be tried again, after failures that it counts.

    An id whose last failure is older than `expiry` starts afresh and costs no memory. Any thread
    may call it.

    Args:
        backoff: the delays; by default 5 ms · 2ⁿ, at most 1000 s.
        expiry: seconds after the last failure; by default twice the longest delay.
        clock: the time.

    Raises:
        ValueError: an id would expire before its longest delay is over.
    """

    def __init__(
        self,
        backoff: Backoff = WORK_ITEM,
        *,
        expiry: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        longest = backoff.cap * backoff.spread[1]
        if expiry is not None and expiry < longest:
            raise ValueError(f"expiry must be at least the longest delay, {longest:g} s")
        self._backoff = backoff
        self._expiry = 2 * longest if expiry is None else expiry
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        # By id: the number of failures, the time of the last one, and when it may be tried again.
        # The oldest failure comes first.
        self._failed: OrderedDict[K, tuple[int, float, float]] = OrderedDict()

    def failed(self, item: K) -> float:
        """Count a failure of an id, and return the seconds until it may be tried again."""
        with self._lock:
            now = self._clock.now()
            self._expire(now)
            failures = self._failed.pop(item, (0, 0.0, 0.0))[0]
            delay = self._backoff.delay(failures)
            self._failed[item] = (failures + 1, now, now + delay)
            return delay

    def remaining(self, item: K) -> float:
        """Return the seconds until an id may be tried again; 0 if it may be now."""
        with self._lock:
            found = self._failed.get(item)
            return 0.0 if found is None else max(0.0, found[2] - self._clock.now())

    def reset(self, item: K) -> None:
        """Forget the failures of an id, after a success."""
        with self._lock:
            self._failed.pop(item, None)

    def __len__(self) -> int:
        """Return the number of ids with failures that have not expired."""
        with self._lock:
            self._expire(self._clock.now())
            return len(self._failed)

    def _expire(self, now: float) -> None:
        while self._failed:
            item, (_, last, _) = next(iter(self._failed.items()))
            if now - last <= self._expiry:
                return
            del self._failed[item]
