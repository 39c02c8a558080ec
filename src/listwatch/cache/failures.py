"""One place for what goes wrong: every loop of the cache tells its failures to one callable."""

import logging
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec import structs

from listwatch.clock import Clock
from listwatch.printable import printable

_log = logging.getLogger("listwatch")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Something that went wrong and was survived.

    Attributes:
        error: what was raised or received.
        doing: what was tried, in a word or two: "list", "watch", "decode", "handler" …
        name: of the informer, reflector or queue; may be empty.
        key: of the object that it was about, where it was about one.
        delay: seconds until the next try; None where nothing will be tried again.
        more: how many of its kind went before and were counted only, since there were too many.
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


#: Is told of every failure, in the task where it happened. Must not block, and must not raise:
#: what it raises ends the loop that told it.
OnError: TypeAlias = Callable[[Failure], None]


def log_with_trace(failure: Failure) -> None:
    """Log a failure with its traceback: what queues do unless told otherwise."""
    _log.error("%s", failure, exc_info=failure.error)


#: What counts as one kind of failure: the name, what was tried, and the error's type.
_Kind: TypeAlias = tuple[str, str, type[BaseException]]


def _kind(failure: Failure) -> _Kind:
    return failure.name, failure.doing, type(failure.error)


class BoundedRate:
    """Passes failures on, those of one kind at a bounded rate, and counts the others.

    A server can cause any number of failures, and whoever is told of them takes time for each.
    The next one that is passed on says how many were not (`Failure.more`). Not thread-safe.

    Args:
        on_error: is told.
        clock: for the limit.
        most: how many of a kind may be passed on in `seconds`.
        seconds: the length of the time that `most` is meant for.
    """

    #: Beyond so many kinds everything is forgotten and may be told again.
    _MOST_KINDS = 1000

    def __init__(
        self, on_error: OnError, clock: Clock, *, most: int = 100, seconds: float = 10.0
    ) -> None:
        self._on_error = on_error
        self._clock = clock
        self._most = most
        self._seconds = seconds
        #: When the present time began, how many were told in it, and how many were not.
        self._seen: dict[_Kind, tuple[float, int, int]] = {}

    def __call__(self, failure: Failure) -> None:
        """Pass the failure on, or count it."""
        kind = _kind(failure)
        now = self._clock.now()
        began, told, left_out = self._seen.get(kind, (now, 0, 0))
        if now - began >= self._seconds:
            began, told = now, 0
        if told >= self._most:
            self._seen[kind] = (began, told, left_out + 1)
            return
        if len(self._seen) >= self._MOST_KINDS:
            self._seen.clear()
        self._seen[kind] = (began, told + 1, 0)
        self._on_error(structs.replace(failure, more=left_out) if left_out else failure)


class LogFailures:
    """Logs failures as warnings, one line each, those of one kind at most once in a while.

    Kinds are told apart by name, by what was tried, and by the error's type. Not thread-safe.

    Args:
        clock: for the limit.
        seconds: at least so much time between two lines of one kind.
        logger: where to; "listwatch" if not given.
    """

    #: Beyond so many kinds everything is forgotten and may be logged again.
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
