"""Failure reports: every loop of the cache passes its failures to one callable."""

import logging
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec import structs

from listwatch.clock import Clock
from listwatch.printable import printable

_log = logging.getLogger("listwatch")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that was survived.

    Attributes:
        error: the exception raised or received.
        doing: what failed, in a word or two: "list", "watch", "decode", "handler" …
        name: of the informer, reflector or queue; may be empty.
        key: the object's key, if the failure concerns one.
        delay: seconds until the next try; None if there is none.
        more: earlier failures of its kind that were only counted, because there were too many.
    """

    error: BaseException
    doing: str
    name: str = ""
    key: str | None = None
    delay: float | None = None
    more: int = 0

    def __str__(self) -> str:
        what = f"{self.name}: {self.doing}" if self.name else self.doing
        if self.key is not None:
            what = f"{what} {self.key}"
        text = " ".join(str(self.error).split()) or type(self.error).__name__
        again = "" if self.delay is None else f"; next try in {self.delay:.1f} s"
        more = f" ({self.more} more like this)" if self.more else ""
        return printable(f"{what}: {text}{again}{more}")


#: Called with every failure, in the task where it happened. Must not block or raise: an exception
#: ends the loop that failed.
OnError: TypeAlias = Callable[[Failure], None]


def log_with_trace(failure: Failure) -> None:
    """Log a failure with its traceback, as queues do by default."""
    _log.error("%s", failure, exc_info=failure.error)


#: A kind of failure: the name, what failed, and the error's type.
_Kind: TypeAlias = tuple[str, str, type[BaseException]]


def _kind(failure: Failure) -> _Kind:
    return failure.name, failure.doing, type(failure.error)


class BoundedRate:
    """Passes failures on at a bounded rate for each kind, and counts the others.

    A server can cause any number of failures, and each takes the receiver's time. The next failure
    passed on says how many were not (`Failure.more`). Not thread-safe.

    Args:
        on_error: receives the failures.
        clock: the time.
        most: maximum of one kind passed on in `seconds`.
        seconds: length of the period that `most` applies to.
    """

    #: Beyond this many kinds everything is forgotten and may be reported again.
    _MOST_KINDS = 1000

    def __init__(
        self, on_error: OnError, clock: Clock, *, most: int = 100, seconds: float = 10.0
    ) -> None:
        self._on_error = on_error
        self._clock = clock
        self._most = most
        self._seconds = seconds
        #: For each kind: start of the current period, how many were reported in it, how many not.
        self._seen: dict[_Kind, tuple[float, int, int]] = {}

    def __call__(self, failure: Failure) -> None:
        """Pass the failure on, or count it."""
        kind = _kind(failure)
        now = self._clock.now()
        began, reported, left_out = self._seen.get(kind, (now, 0, 0))
        if now - began >= self._seconds:
            began, reported = now, 0
        if reported >= self._most:
            self._seen[kind] = (began, reported, left_out + 1)
            return
        if len(self._seen) >= self._MOST_KINDS:
            self._seen.clear()
        self._seen[kind] = (began, reported + 1, 0)
        self._on_error(structs.replace(failure, more=left_out) if left_out else failure)


class LogFailures:
    """Logs failures as warnings, one line each, with a minimum interval for each kind.

    A kind is a name, what failed, and the error's type. Not thread-safe.

    Args:
        clock: the time.
        seconds: minimum time between two lines of one kind.
        logger: by default "listwatch".
    """

    #: Beyond this many kinds everything is forgotten and may be logged again.
    _MOST_KINDS = 1000

    def __init__(
        self, clock: Clock, *, seconds: float = 10.0, logger: logging.Logger = _log
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._logger = logger
        self._seen: dict[_Kind, tuple[float, int]] = {}

    def __call__(self, failure: Failure) -> None:
        """Log the failure, or count it for the next line of its kind."""
        kind = _kind(failure)
        now = self._clock.now()
        last, left_out = self._seen.get(kind, (None, 0))
        left_out += failure.more
        if last is not None and now - last < self._seconds:
            self._seen[kind] = (last, left_out + 1)
            return
        if len(self._seen) >= self._MOST_KINDS:
            self._seen.clear()
        self._seen[kind] = (now, 0)
        more = f" ({left_out} more like this since)" if left_out else ""
        self._logger.warning("%s%s", structs.replace(failure, more=0), more)
