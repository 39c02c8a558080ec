"""What the queues between reflector and store hold, and the interfaces they share."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from listwatch.errors import ListWatchError
from listwatch.objects import DeletedFinalStateUnknown, Object

#: An entry of a queue: an object, or the tombstone of one whose deletion was missed.
Item: TypeAlias = Object | DeletedFinalStateUnknown

#: Returns the key of an object; raises `KeyFunctionError` if it has none.
KeyFunc: TypeAlias = Callable[[object], str]

#: Changes an object before it is queued, for example to remove unused fields.
Rewrite: TypeAlias = Callable[[Object], Object]


class DeltaType(StrEnum):
    """What happened to an object, or to all objects."""

    ADDED = "Added"
    UPDATED = "Updated"
    DELETED = "Deleted"
    #: A list contained the object; it may be new, changed or unchanged.
    REPLACED = "Replaced"
    #: A periodic resync, or a list item where the queue does not tell the two apart.
    SYNC = "Sync"
    #: A whole list, as one delta.
    REPLACED_ALL = "ReplacedAll"
    #: A resync of everything in the consumer's store.
    SYNC_ALL = "SyncAll"
    #: Everything up to a resource version precedes this delta.
    BOOKMARK = "Bookmark"


class Delta(msgspec.Struct, frozen=True, gc=False):
    """One change.

    Attributes:
        type: what happened.
        object: the object after the change, its last state for DELETED, or a tombstone; None for
            REPLACED_ALL, SYNC_ALL and BOOKMARK.
        objects: the complete list, for REPLACED_ALL only.
        resource_version: version of the list or bookmark, for REPLACED_ALL and BOOKMARK only.
    """

    type: DeltaType
    object: Item | None = None
    objects: Sequence[Object] | None = None
    resource_version: str = ""


class Deltas(list[Delta]):
    """The changes of one key, oldest first.

    Attributes:
        key: the objects' key; empty for REPLACED_ALL, SYNC_ALL and BOOKMARK.
        is_in_initial_list: the changes belong to the first list given to the queue.
        queued_at: when the first change was queued, by the queue's clock, in seconds.
        popped_at: when they were last passed to a process function; 0 before that.
    """

    __slots__ = ("is_in_initial_list", "key", "popped_at", "queued_at")

    def __init__(
        self,
        deltas: Iterable[Delta] = (),
        key: str = "",
        *,
        is_in_initial_list: bool = False,
        queued_at: float = 0.0,
    ) -> None:
        super().__init__(deltas)
        self.key = key
        self.is_in_initial_list = is_in_initial_list
        self.queued_at = queued_at
        self.popped_at = 0.0

    def oldest(self) -> Delta:
        """Return the first change; raise `IndexError` if there is none."""
        return self[0]

    def newest(self) -> Delta:
        """Return the last change; raise `IndexError` if there is none."""
        return self[-1]


class RequeueError(ListWatchError):
    """Raised by a process function to put its deltas back, ahead of newer ones of their keys.

    Args:
        message: the reason.
        after: seconds until they may be popped again; by default the queue doubles the delay with
            each try of a key, from 5 ms to 30 s.
        keys: the keys of a batch to put back; None for all. The others count as done.
    """

    def __init__(
        self,
        message: str = "asked to be processed again",
        *,
        after: float | None = None,
        keys: Collection[str] | None = None,
    ) -> None:
        self.after = after
        self.keys = keys
        super().__init__(message)


class RewriteError(ListWatchError):
    """A rewrite raised; the object was queued unchanged."""

    def __init__(self, key: str, error: BaseException) -> None:
        self.key = key
        super().__init__(f"rewrite failed for {key}: {type(error).__name__}: {error}")
        self.__cause__ = error


#: Processes the deltas of one key. Its result is awaited unless it is None.
Process: TypeAlias = Callable[[Deltas], Awaitable[None] | None]

#: Processes the deltas of several keys, in the queue's order.
BatchProcess: TypeAlias = Callable[[Sequence[Deltas]], Awaitable[None] | None]


@runtime_checkable
class KnownObjects(Protocol):
    """Tells a queue what its consumer holds, so that a relist can find deletions.

    Called in the queue's task; must not block. A `Store` is one.
    """

    def list_keys(self) -> Iterable[str]:
        """Return all known keys. The queue's replace and resync raise what this raises."""
        ...

    def get_by_key(self, key: str) -> Item | None:
        """Return the known state of a key.

        None means not known; a tombstone without an object means known, in an unknown state.
        """
        ...


@runtime_checkable
class ReflectorStore(Protocol):
    """What a reflector feeds: a queue, or a plain store.

    All methods belong to the event loop's thread and return without waiting.
    """

    def add(self, obj: Object) -> None:
        """Add a new object."""
        ...

    def update(self, obj: Object) -> None:
        """Update an object to a new state."""
        ...

    def delete(self, obj: Item) -> None:
        """Delete an object, given as its last state or a tombstone."""
        ...

    def replace(self, objs: Sequence[Object], resource_version: str) -> None:
        """Replace everything with a complete list; objects missing from it no longer exist."""
        ...

    def resync(self) -> None:
        """Re-deliver every object to the consumer, if there is one."""
        ...

    def bookmark(self, resource_version: str) -> None:
        """Note a position: everything up to this version has been given."""
        ...


class QueueStatistics(msgspec.Struct, frozen=True, gc=False):
    """Statistics of a queue; the counters start with the queue.

    Attributes:
        depth: entries waiting to be popped: keys in a `DeltaFIFO`, changes in an `OrderedFIFO`.
        in_process: entries whose process function is running.
        retrying: entries put back by `RequeueError` whose delay is not over.
        adds: changes queued.
        pops: entries passed to a process function.
        failures: entries dropped because their process function raised.
        requeues: entries put back by `RequeueError` or a cancellation.
        errors: errors of rewrites, compressors and known objects.
        oldest_age_seconds: waiting time of the entry at the head; 0 without one.
        longest_running_seconds: running time of the oldest process function still running.
    """

    depth: int
    in_process: int
    retrying: int
    adds: int
    pops: int
    failures: int
    requeues: int
    errors: int
    oldest_age_seconds: float
    longest_running_seconds: float


@runtime_checkable
class Queue(ReflectorStore, Protocol):
    """A queue of changes between a reflector and a consumer, for one event loop."""

    async def pop(self, process: Process) -> Deltas:
        """Wait for the next entry, run a process function on it, and return it.

        Does not yield to the event loop if there is an entry and the function does not wait, so a
        loop around it must yield now and then. The entry's keys stay in process until the function
        returns; no other pop gets them before. Cancelling before or within the function loses
        nothing: the deltas return to the head.

        Raises:
            QueueClosedError: the queue is closed and empty.
            Exception: whatever the function raised; the deltas are dropped and counted.
                `RequeueError` is not raised: the deltas are put back, ahead of newer ones.
        """
        ...

    async def pop_batch(self, process: BatchProcess, limit: int = 1000) -> int:
        """Pop as many entries of different keys as are queued, like `pop`; return their number.

        A batch never mixes items of the initial list with later ones.
        """
        ...

    def key_of(self, item: Item | Deltas) -> str:
        """Return the key of an object, of a tombstone, or of deltas (that of the newest).

        Raises:
            KeyFunctionError: it has no key.
        """
        ...

    @property
    def has_synced(self) -> bool:
        """Whether every item of the first replace was processed, or a change came before it."""
        ...

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        ...

    def close(self) -> None:
        """Make pops raise `QueueClosedError` once the queue is empty. Writes are still accepted."""
        ...

    def statistics(self) -> QueueStatistics:
        """Return statistics for metrics."""
        ...
