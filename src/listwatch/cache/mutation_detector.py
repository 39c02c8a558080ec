"""Detects code that changes objects shared by a cache."""

import difflib
import os
from collections import deque
from typing import Any

import msgspec

from listwatch.clock import Clock
from listwatch.errors import ListWatchError
from listwatch.objects import Object

#: Any value except "", "0" or "false" enables detectors, as in client-go.
ENVIRONMENT = "KUBE_CACHE_MUTATION_DETECTOR"

_encode = msgspec.json.Encoder(enc_hook=repr, order="deterministic").encode


class CacheMutationError(ListWatchError):
    """Code has changed a cached object's fields, which all readers share.

    Attributes:
        key: the object's key.
        diff: the old and the current state, line by line.
    """

    def __init__(self, name: str, key: str, diff: str) -> None:
        self.key = key
        self.diff = diff
        super().__init__(f"cache {name or 'of objects'}: {key} was changed by a reader:\n{diff}")


def is_switched_on() -> bool:
    """Return whether the environment enables mutation detectors."""
    return os.environ.get(ENVIRONMENT, "").lower() not in {"", "0", "false"}


class MutationDetector:
    """Periodically compares shared decoded values with their original state.

    An `Object` itself can't be changed, but its `fields` can, if their type has lists, dicts or
    assignable attributes. For tests: it encodes each object once per period. For one event loop.

    Args:
        clock: the time.
        name: of the cache, for the error.
        period: seconds between two checks.
        keep: seconds for which an object is checked after it arrived.
    """

    def __init__(
        self, clock: Clock, *, name: str = "", period: float = 1.0, keep: float = 120.0
    ) -> None:
        self._clock = clock
        self._name = name
        self._period = period
        self._keep = keep
        self._watched: deque[tuple[float, Object, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, obj: Object) -> None:
        """Check an object from now on, if it has anything that can be changed."""
        if obj.fields is not None:
            self._watched.append((self._clock.now(), obj, _snapshot(obj)))

    def check(self) -> None:
        """Check all objects.

        Raises:
            CacheMutationError: one has been changed.
        """
        oldest = self._clock.now() - self._keep
        for _, obj, before in self._watched:
            now = _snapshot(obj)
            if now != before:
                raise CacheMutationError(self._name, obj.key, _diff(before, now))
        while self._watched and self._watched[0][0] < oldest:
            self._watched.popleft()

    async def run(self) -> None:
        """Check all objects periodically, until cancelled.

        Raises:
            CacheMutationError: one has been changed.
        """
        while True:
            await self._clock.sleep(self._period)
            self.check()


def _snapshot(obj: Object) -> bytes:
    fields: Any = obj.fields
    # The metadata that a decoder adds to the fields is frozen, and has bytes that are not JSON.
    names = [name for name in fields.__struct_fields__ if name != "metadata"]
    return _encode({name: getattr(fields, name) for name in names})


def _diff(before: bytes, now: bytes) -> str:
    old, new = (msgspec.json.format(text, indent=2).decode().splitlines() for text in (before, now))
    return "\n".join(difflib.unified_diff(old, new, "cached", "now", lineterm="", n=2))
