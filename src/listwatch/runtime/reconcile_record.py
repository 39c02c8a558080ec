"""The record of one reconcile: what woke it, what it read and wrote, and how it ended."""

import os
import re
from pathlib import Path
from traceback import walk_tb
from typing import Final

import msgspec

from listwatch.client.request_target import RequestTarget
from listwatch.errors import StatusError, unwrap
from listwatch.objects import Object
from listwatch.printable import printable

#: The result of a reconcile without an exception that asks for nothing.
SUCCESS: Final = "success"
#: Maximum requests recorded for one reconcile; more are counted.
MAX_REQUESTS: Final = 30
#: Bytes of one record; beyond that, states of written objects are not kept for a comparison.
MAX_BYTES: Final = 128 * 1024
#: Maximum versions kept of what one reconcile wrote, the newest ones.
MAX_WRITTEN: Final = 100
#: The approximate bytes of a record, of a cache's version in it, of a request and of a version.
RECORD_BYTES: Final = 1000
CACHE_BYTES: Final = 110
_REQUEST_BYTES: Final = 500
_VERSION_BYTES: Final = 60
#: The subresources whose requests are answered with the object itself. Other answers are something
#: else, such as a token.
_OF_OBJECT: Final = frozenset(
    {"", "status", "finalize", "approval", "ephemeralcontainers", "resize"}
)
#: Bytes of a response in which its version is searched.
_HEAD_BYTES: Final = 16 * 1024
_LONGEST_ERROR: Final = 500
_PACKAGE: Final = str(Path(__file__).parents[1]) + os.sep
_STDLIB: Final = str(Path(os.__file__).parent) + os.sep
_VERSION: Final = re.compile(rb'"resourceVersion":\s*"([^"\\]{1,40})"')
_READS: Final = frozenset({"GET", "LIST", "WATCH", "HEAD", "OPTIONS"})


class Trigger(msgspec.Struct, frozen=True, gc=False):
    """What woke a key.

    Attributes:
        change: Listed, Added, Updated, Resync, Deleted, Timer, Stream, Enqueued, Shared, Retry or
            Requeue.
        resource: the resource that changed, as given to the reconciler; empty if none did.
        object: the key of the object that changed.
        version: its version.
    """

    change: str
    resource: str = ""
    object: str = ""
    version: str = ""


#: The key's last reconcile failed.
RETRY: Final = Trigger("Retry")
#: The key's last reconcile asked for it.
REQUEUE: Final = Trigger("Requeue")


class SentRequest(msgspec.Struct, gc=False):
    """A request of a reconcile.

    Attributes:
        verb: as in the API server's metrics.
        target: resource and object.
        began: seconds, by the monotonic clock.
        seconds: until the response; None while it runs.
        code: of the response; 0 if there was none.
        error: type and message of the exception; empty for a success.
        version: of the object in the response; empty if unknown.
        before: the object in the cache when a write was sent.
        after: JSON of the written object.
        kept: the bytes of both states.
    """

    verb: str
    target: RequestTarget
    began: float
    seconds: float | None = None
    code: int = 0
    error: str = ""
    version: str = ""
    before: Object | None = None
    after: bytes = b""
    kept: int = 0

    @property
    def is_write(self) -> bool:
        """Whether the request may change something."""
        return self.verb not in _READS

    @property
    def key(self) -> str:
        """The key of the object; of a collection, its namespace."""
        target = self.target
        return f"{target.namespace}/{target.name}" if target.namespace else target.name


class CacheVersion(msgspec.Struct, frozen=True, gc=False):
    """The version of a cache when a reconcile began."""

    name: str
    version: str


class ReconcileRecord(msgspec.Struct, kw_only=True, gc=False):
    """What is known of one reconcile. It has no references to what is not a record.

    Attributes:
        id: unique in the process.
        key: the key.
        attempt: 1, or one more after each failure.
        began: seconds, by the monotonic clock.
        waited: seconds in the queue, from due until taken.
        trigger: what woke it; None if unknown.
        newest: the last of several triggers merged into this reconcile.
        merged: the number of further triggers.
        wakes_itself: it was woken by a write of this key's previous reconcile.
        caches: the versions of the reconciler's caches at the start.
        requests: the first ones.
        unkept: the number of requests not in `requests`.
        written: the versions of what it wrote, the newest ones.
        seconds: duration; None while it runs.
        result: success, requeue, requeue_after, error, terminal_error or cancelled; empty while it
            runs.
        error: type and message of the exception.
        place: where it was raised, such as "controller.py:12 in reconcile".
        next_in: seconds from the end until the next try; None if there is none.
        size: the approximate memory in bytes.
    """

    id: str
    key: str
    attempt: int
    began: float
    waited: float
    trigger: Trigger | None
    newest: Trigger | None
    merged: int
    wakes_itself: bool
    caches: tuple[CacheVersion, ...]
    requests: tuple[SentRequest, ...] = ()
    unkept: int = 0
    written: tuple[str, ...] = ()
    seconds: float | None = None
    result: str = ""
    error: str = ""
    place: str = ""
    next_in: float | None = None
    size: int = RECORD_BYTES

    def add_request(self, sent: SentRequest) -> None:
        """Record a request that is being sent."""
        if len(self.requests) < MAX_REQUESTS:
            self.requests = (*self.requests, sent)
            self.size += _REQUEST_BYTES
        else:
            self.unkept += 1

    def end_request(
        self, sent: SentRequest, now: float, code: int, answer: bytes, version: str = ""
    ) -> None:
        """Record the response.

        Args:
            sent: the request.
            now: the monotonic time.
            code: of the response.
            answer: its body.
            version: of the object in it; empty to look for it.
        """
        sent.seconds = now - sent.began
        sent.code = code
        before, sent.before = sent.before, None
        # The size of a reconcile that has ended is already in its history's.
        is_write = sent.verb not in _READS
        if self.result or not (is_write or sent.target.name):
            return
        if not version:
            if (found := _VERSION.search(answer, 0, _HEAD_BYTES)) is None:
                return
            version = found[1].decode("utf-8", "replace")
        sent.version = version
        if not is_write:
            return
        if len(self.written) < MAX_WRITTEN:
            self.size += _VERSION_BYTES
        self.written = (*self.written[1 - MAX_WRITTEN :], sent.version)
        size = len(answer) + (0 if before is None else before.stored_bytes)
        if sent.target.subresource in _OF_OBJECT and self.size + size <= MAX_BYTES:
            sent.before, sent.after, sent.kept = before, answer, size
            self.size += size

    def fail_request(self, sent: SentRequest, now: float, error: BaseException) -> None:
        """Record that there was no response, or a refusal."""
        sent.seconds = now - sent.began
        sent.code = error.code if isinstance(error, StatusError) else 0
        sent.before = None
        sent.error = words_of(error)
        if not self.result:
            self.size += len(sent.error)

    def fail(self, error: BaseException) -> None:
        """Record the exception of a failed reconcile."""
        self.error = words_of(error)
        self.place = place_of(error)
        self.size += len(self.error) + len(self.place)

    def drop_states(self) -> int:
        """Forget the states of written objects; return the number of bytes freed."""
        freed = sum(sent.kept for sent in self.requests)
        for sent in self.requests:
            sent.before, sent.after, sent.kept = None, b"", 0
        self.size -= freed
        return freed


def words_of(error: BaseException, longest: int = _LONGEST_ERROR) -> str:
    """Return type and message of an exception, without a refused Secret's values.

    Args:
        error: the exception.
        longest: maximum characters of its message.
    """
    if (
        isinstance(error, StatusError)
        and (
            error.resource.partition("/")[0] == "secrets"
            or error.details.get("kind") in {"secrets", "Secret"}
        )
        and error.code not in {404, 409}  # these name only the object
    ):
        return f"{type(error).__name__} for a Secret"
    text = str(error)
    if len(text) > longest:
        text = f"{text[:longest]}…"
    return printable(f"{type(error).__name__}: {text}")


def place_of(error: BaseException) -> str:
    """Return where an exception was raised: the innermost line of the reconciler's own file."""
    frames = [(frame.f_code, line) for frame, line in walk_tb(unwrap(error).__traceback__)]
    own = [each for each in frames if not _is_machinery(each[0].co_filename)] or frames
    if not own:
        return ""
    file = own[0][0].co_filename
    code, line = next(each for each in reversed(own) if each[0].co_filename == file)
    return printable(f"{Path(file).name}:{line} in {code.co_qualname}")


def _is_machinery(file: str) -> bool:
    """Return whether a file belongs to this package or to the standard library."""
    if file.startswith(_STDLIB):
        return "site-packages" not in file or file.startswith(_PACKAGE)
    return file.startswith((_PACKAGE, "<frozen"))
