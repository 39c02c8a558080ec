"""Finds whoever changes what a cache shares."""

import difflib
import os
from collections import deque
from typing import Any

import msgspec

from listwatch.clock import Clock
from listwatch.errors import ListWatchError
from listwatch.objects import Object

#: Set to anything but nothing, "0" or "false", it switches detectors on, as in client-go.
ENVIRONMENT = "KUBE_CACHE_MUTATION_DETECTOR"

_encode = msgspec.json.Encoder(enc_hook=repr, order="deterministic").encode


class CacheMutationError(ListWatchError):
    """Somebody has changed a cached object's fields, which all its readers share.

    Attributes:
        key: the object's.
        diff: what it was and what it is now, line by line.
    """

    def __init__(self, name: str, key: str, diff: str) -> None:
        self.key = key
        self.diff = diff
        super().__init__(f"cache {name or 'of objects'}: {key} was changed by a reader:\n{diff}")


def is_switched_on() -> bool:
    """Tell whether the environment asks for mutation detectors."""
    return os.environ.get(ENVIRONMENT, "").lower() not in {"", "0", "false"}


class MutationDetector:
    """Compares now and then what was decoded and is shared with what it was.

    An `Object` itself can't be changed; what can are its `fields`, if their type has lists, dicts
    or attributes that may be assigned. For tests: it costs an encoding for each object and
    period. For one event loop.

    Args:
        clock: time.
        name: of the cache, for the error.
        period: seconds between two looks.
        keep: seconds for which an object is looked at after it came.
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
        """Look at an object from now on, if it has anything that could be changed."""
        if obj.fields is not None:
            self._watched.append((self._clock.now(), obj, _snapshot(obj)))

    def check(self) -> None:
        """Look at all objects.

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
        """Look at all objects now and then, until cancelled.

        Raises:
            CacheMutationError: one has been changed.
        """
        while True:
            await self._clock.sleep(self._period)
            self.check()


def _snapshot(obj: Object) -> bytes:
    fields: Any = obj.fields
    # The metadata that a decoder adds to the fields is frozen, and has bytes that are no JSON.
    names = [name for name in fields.__struct_fields__ if name != "metadata"]
    return _encode({name: getattr(fields, name) for name in names})


def _diff(before: bytes, now: bytes) -> str:
    old, new = (msgspec.json.format(text, indent=2).decode().splitlines() for text in (before, now))
    return "\n".join(difflib.unified_diff(old, new, "cached", "now", lineterm="", n=2))
