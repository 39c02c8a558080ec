"""Rate limits per key, in bounded memory."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: Number of keys remembered.
LIMIT = 4096


class Lru(Generic[K, V]):
    """A mapping that drops the least recently used keys."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._items: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value, marking it as the newest, or None."""
        value = self._items.get(key)
        if value is not None:
            self._items.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Store the value as the newest."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._limit:
            self._items.popitem(last=False)

    def pop(self, key: K) -> None:
        """Remove the key if it exists."""
        self._items.pop(key, None)

    def items(self) -> list[tuple[K, V]]:
        """Return all items, oldest first."""
        return list(self._items.items())

    def __len__(self) -> int:
        return len(self._items)


class KeyLimits(Generic[K]):
    """A token bucket per key; a dropped key starts with a full one again.

    Args:
        burst: tokens in a full bucket.
        interval: seconds per new token.
        limit: number of keys remembered.
    """

    def __init__(self, burst: int, interval: float, limit: int = LIMIT) -> None:
        if burst < 1 or not interval >= 0:
            raise ValueError(
                f"a bucket needs a burst of at least 1 and an interval of 0 seconds or more, not "
                f"{burst} and {interval}"
            )
        self._burst = float(burst)
        self._interval = interval
        self._buckets: Lru[K, tuple[float, float]] = Lru(limit)

    def take(self, key: K, now: float) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        tokens, since = self._buckets.get(key) or (self._burst, now)
        now = max(since, now)
        if self._interval == 0:
            return 0.0
        tokens = min(self._burst, tokens + (now - since) / self._interval)
        # A rounding error must not turn a token that has arrived into a wait of zero.
        if tokens >= 1 - 1e-9:
            self._buckets.put(key, (max(0.0, tokens - 1), now))
            return 0.0
        self._buckets.put(key, (tokens, now))
        return (1 - tokens) * self._interval
