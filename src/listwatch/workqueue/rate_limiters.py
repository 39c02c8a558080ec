"""A token bucket, and the rate limiters of work queues.

The kinds and default values are those of client-go `util/workqueue` and `util/flowcontrol`. Not
thread-safe.
"""

import math
import random
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from listwatch.backoff import LONE_WORK_ITEM, WORK_ITEM, Backoff
from listwatch.clock import Clock

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class RateLimiter(Protocol[K_contra]):
    """Determines when a work queue may retry a failed item."""

    def when(self, item: K_contra, /) -> float:
        """Count a failure of the item, and return its delay in seconds."""

    def forget(self, item: K_contra, /) -> None:
        """Reset the item's failures, after success or giving up."""

    def num_requeues(self, item: K_contra, /) -> int:
        """Return the item's failures since the last `forget`."""


class TokenBucket:
    """A bucket of `burst` tokens, full at first, that gains `qps` tokens per second.

    Args:
        qps: tokens per second, more than 0.
        burst: capacity of the bucket, at least 1.
        clock: the time.

    Raises:
        ValueError: `qps` or `burst` is out of range.
    """

    __slots__ = ("_burst", "_clock", "_full_at", "_qps", "_taken")

    def __init__(self, qps: float, burst: int, *, clock: Clock | None = None) -> None:
        if not (qps > 0 and math.isfinite(qps)):
            raise ValueError(f"qps must be a finite number above 0, not {qps!r}")
        if not burst >= 1:
            raise ValueError(f"burst must be at least 1, not {burst}")
        self._qps = qps
        self._burst = burst
        self._clock = clock or Clock()
        # The bucket was last full at _full_at and has given _taken tokens since. Times are always
        # computed from these two, never accumulated, so rounding errors can't grow.
        self._full_at = self._clock.now()
        self._taken = 0

    def reserve(self) -> float:
        """Take a token, possibly a future one, and return the seconds until it is available."""
        now = self._clock.now()
        self._refill(now)
        self._taken += 1
        return self._wait(now)

    def try_accept(self) -> bool:
        """Take a token if one is available now, and return whether it was."""
        now = self._clock.now()
        self._refill(now)
        self._taken += 1
        if self._wait(now) > 0:
            self._taken -= 1
            return False
        return True

    async def accept(self) -> None:
        """Wait for a token and take it, in order of arrival.

        A cancelled wait gives its token back, unless others wait for later ones.
        """
        wait = self.reserve()
        if wait <= 0:
            return
        reserved = self._full_at, self._taken
        try:
            await self._clock.sleep(wait)
        except BaseException:
            # Later reservations keep their times, so only the last token can be returned.
            if (self._full_at, self._taken) == reserved:
                self._taken -= 1
            raise

    def _refill(self, now: float) -> None:
        if now >= self._full_at + self._taken / self._qps:
            self._full_at = now
            self._taken = 0

    def _wait(self, now: float) -> float:
        return max(0.0, self._full_at + (self._taken - self._burst) / self._qps - now)


class BucketRateLimiter:
    """One token bucket for all items: each failure of any item costs a token.

    Costs a token even if the item is already waiting in the queue.
    """

    __slots__ = ("_bucket",)

    def __init__(self, bucket: TokenBucket) -> None:
        self._bucket = bucket

    def when(self, item: Hashable, /) -> float:  # noqa: ARG002 - the protocol's, one bucket for all
        """Return the seconds until the next token."""
        return self._bucket.reserve()

    def forget(self, item: Hashable, /) -> None:
        """Do nothing: only time refills tokens."""

    def num_requeues(self, item: Hashable, /) -> int:  # noqa: ARG002 - as above, nothing counted
        """Return 0: failures are not counted per item."""
        return 0


class _CountingRateLimiter(Generic[K]):
    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures: dict[K, int] = {}

    def _count(self, item: K) -> int:
        count = self._failures.get(item, 0)
        self._failures[item] = count + 1
        return count

    def forget(self, item: K, /) -> None:
        """Reset the item's failures."""
        self._failures.pop(item, None)

    def num_requeues(self, item: K, /) -> int:
        """Return the item's failures since the last `forget`."""
        return self._failures.get(item, 0)


class ItemExponentialFailureRateLimiter(_CountingRateLimiter[K]):
    """Doubles an item's delay with each failure: `base` · 2ⁿ seconds, at most `limit`."""

    __slots__ = ("_backoff",)

    def __init__(self, base: float = WORK_ITEM.base, limit: float = WORK_ITEM.cap) -> None:
        super().__init__()
        self._backoff = Backoff(
            base=_seconds("base", base), cap=_seconds("limit", limit), spread=WORK_ITEM.spread
        )

    def when(self, item: K, /) -> float:
        """Count a failure, and return its delay in seconds."""
        return self._backoff.delay(self._count(item))


class ItemFastSlowRateLimiter(_CountingRateLimiter[K]):
    """Delays an item's first `fast_attempts` failures by `fast` seconds, later ones by `slow`."""

    __slots__ = ("_fast", "_fast_attempts", "_slow")

    def __init__(self, fast: float, slow: float, fast_attempts: int) -> None:
        super().__init__()
        self._fast = _seconds("fast", fast)
        self._slow = _seconds("slow", slow)
        self._fast_attempts = fast_attempts

    def when(self, item: K, /) -> float:
        """Count a failure, and return its delay in seconds."""
        return self._fast if self._count(item) < self._fast_attempts else self._slow


class MaxOfRateLimiter(Generic[K]):
    """The longest delay of several limiters, and the largest count.

    Each limiter counts every failure, and `forget` resets all of them.
    """

    __slots__ = ("_limiters",)

    def __init__(self, *limiters: RateLimiter[K]) -> None:
        if not limiters:
            raise ValueError("MaxOfRateLimiter needs at least one rate limiter")
        self._limiters = limiters

    def when(self, item: K, /) -> float:
        """Count a failure with every limiter, and return the longest delay in seconds."""
        return max([limiter.when(item) for limiter in self._limiters])

    def forget(self, item: K, /) -> None:
        """Reset the item's failures."""
        for limiter in self._limiters:
            limiter.forget(item)

    def num_requeues(self, item: K, /) -> int:
        """Return the largest count."""
        return max([limiter.num_requeues(item) for limiter in self._limiters])


class JitterRateLimiter(Generic[K]):
    """Multiplies another limiter's delays by a random factor in [1, 1 + `factor`).

    Spreads the retries of items that failed together, as in an outage.

    Args:
        limiter: the limiter whose delays to stretch.
        factor: 0.1 makes them up to a tenth longer; 0 or more.
        uniform: the source of random numbers in [0, 1).
    """

    __slots__ = ("_factor", "_limiter", "_uniform")

    def __init__(
        self,
        limiter: RateLimiter[K],
        factor: float = 0.1,
        *,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._limiter = limiter
        self._factor = _seconds("factor", factor)
        self._uniform = uniform

    def when(self, item: K, /) -> float:
        """Count a failure, and return its lengthened delay in seconds."""
        return self._limiter.when(item) * (1.0 + self._factor * self._uniform())

    def forget(self, item: K, /) -> None:
        """Reset the item's failures."""
        self._limiter.forget(item)

    def num_requeues(self, item: K, /) -> int:
        """Return the other limiter's count."""
        return self._limiter.num_requeues(item)


class MaxWaitRateLimiter(Generic[K]):
    """Limits another limiter's delays to `limit` seconds."""

    __slots__ = ("_limit", "_limiter")

    def __init__(self, limiter: RateLimiter[K], limit: float) -> None:
        self._limiter = limiter
        self._limit = _seconds("limit", limit)

    def when(self, item: K, /) -> float:
        """Count a failure, and return its delay in seconds, at most `limit`."""
        return min(self._limiter.when(item), self._limit)

    def forget(self, item: K, /) -> None:
        """Reset the item's failures."""
        self._limiter.forget(item)

    def num_requeues(self, item: K, /) -> int:
        """Return the other limiter's count."""
        return self._limiter.num_requeues(item)


def default_rate_limiter(clock: Clock | None = None) -> MaxOfRateLimiter[Hashable]:
    """Return client-go's default for controllers (`DefaultTypedControllerRateLimiter`).

    Each item waits 5 ms · 2ⁿ, at most 1000 s; all items share 10 retries per second after a burst
    of 100. `forget` resets only the item's own delay.
    """
    each: ItemExponentialFailureRateLimiter[Hashable] = ItemExponentialFailureRateLimiter()
    return MaxOfRateLimiter(each, BucketRateLimiter(TokenBucket(10, 100, clock=clock)))


def default_item_based_rate_limiter() -> ItemExponentialFailureRateLimiter[Hashable]:
    """Return the default without a shared bucket: each item waits 1 ms · 2ⁿ, at most 1000 s.

    That is client-go's `DefaultTypedItemBasedRateLimiter`.
    """
    return ItemExponentialFailureRateLimiter(LONE_WORK_ITEM.base, LONE_WORK_ITEM.cap)


def _seconds(name: str, value: float) -> float:
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number of 0 or more, not {value!r}")
    return value
