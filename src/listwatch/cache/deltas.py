"""What the queues between reflector and store hold, and the interfaces that both of them have."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from listwatch.errors import ListWatchError
from listwatch.objects import DeletedFinalStateUnknown, Object

#: What a queue holds: an object, or the tombstone of one whose deletion was missed.
Item: TypeAlias = Object | DeletedFinalStateUnknown

#: Gives the key of an object; raises `KeyFunctionError` for what has none.
KeyFunc: TypeAlias = Callable[[object], str]

#: Changes an object before it is queued, for example to cut what nobody reads.
Rewrite: TypeAlias = Callable[[Object], Object]


class DeltaType(StrEnum):
    """What happened to an object, or to all of them."""

    ADDED = "Added"
    UPDATED = "Updated"
    DELETED = "Deleted"
    #: A list had the object; it may be new, changed or as before.
    REPLACED = "Replaced"
    #: Nothing happened: a periodic resync, or a list where the queue doesn't tell them apart.
    SYNC = "Sync"
    #: A whole list, as one delta.
    REPLACED_ALL = "ReplacedAll"
    #: A resync of everything that the consumer's store holds.
    SYNC_ALL = "SyncAll"
    #: Everything up to a resource version stands before this delta.
    BOOKMARK = "Bookmark"


class Delta(msgspec.Struct, frozen=True, gc=False):
    """One change.

    Attributes:
        type: what happened.
        object: the object after the change, its last state for DELETED, or a tombstone; None for
            REPLACED_ALL, SYNC_ALL and BOOKMARK.
        objects: the whole list, for REPLACED_ALL only.
        resource_version: of the list or the bookmark, for REPLACED_ALL and BOOKMARK only.
    """

    type: DeltaType
    object: Item | None = None
    objects: Sequence[Object] | None = None
    resource_version: str = ""


class Deltas(list[Delta]):
    """The changes of one key, the oldest first.

    Attributes:
        key: the objects' key; empty for REPLACED_ALL, SYNC_ALL and BOOKMARK.
        is_in_initial_list: these changes belong to the first list that the queue was given.
        queued_at: when the first of them was queued, by the queue's clock, in seconds.
        popped_at: when they were last given to a process function; 0 before.
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
        """Return the first change; `IndexError` when there is none."""
        return self[0]

    def newest(self) -> Delta:
        """Return the last change; `IndexError` when there is none."""
        return self[-1]


class RequeueError(ListWatchError):
    """Raised by a process function: put these deltas back, ahead of newer ones of their keys.

    Args:
        message: why, in words.
        after: seconds until they may be popped again; None lets the queue double the delay with
            each try of a key, from 5 ms to 30 s.
        keys: which keys of a batch to put back; None is all of them. The others count as done.
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
    """A rewrite raised; the object was queued as it came."""

    def __init__(self, key: str, error: BaseException) -> None:
        self.key = key
        super().__init__(f"rewrite failed for {key}: {type(error).__name__}: {error}")
        self.__cause__ = error


#: Takes the deltas of one key. What it returns is awaited unless it is None.
Process: TypeAlias = Callable[[Deltas], Awaitable[None] | None]

#: Takes the deltas of several different keys, in the queue's order.
BatchProcess: TypeAlias = Callable[[Sequence[Deltas]], Awaitable[None] | None]


@runtime_checkable
class KnownObjects(Protocol):
    """Tells a queue what its consumer holds, so that deletions can be found at a relist.

    Called in the queue's task; must not block. A `Store` is one.
    """

    def list_keys(self) -> Iterable[str]:
        """Return all known keys. What it raises, the queue's replace and resync raise."""
        ...

    def get_by_key(self, key: str) -> Item | None:
        """Return what is known of a key.

        None: not known. A tombstone without an object: known, but not in which state.
        """
        ...


@runtime_checkable
class ReflectorStore(Protocol):
    """What a reflector feeds: a queue, or a plain store.

    All methods belong to the event loop's thread and return without waiting.
    """

    def add(self, obj: Object) -> None:
        """Take an object that is new."""
        ...

    def update(self, obj: Object) -> None:
        """Take an object's new state."""
        ...

    def delete(self, obj: Item) -> None:
        """Take the end of an object: its last state, or a tombstone."""
        ...

    def replace(self, objs: Sequence[Object], resource_version: str) -> None:
        """Take a whole list; what it lacks exists no longer."""
        ...

    def resync(self) -> None:
        """Tell the consumer of every object again, if there is a consumer."""
        ...

    def bookmark(self, resource_version: str) -> None:
        """Take a position: everything up to it has been given."""
        ...


class QueueStatistics(msgspec.Struct, frozen=True, gc=False):
    """Figures of a queue at one moment; the counters begin with the queue.

    Attributes:
        depth: entries that wait to be popped: keys in a `DeltaFIFO`, changes in an `OrderedFIFO`.
        in_process: entries whose process function runs.
        retrying: entries put back by `RequeueError` whose delay is not over.
        adds: changes taken in.
        pops: entries given to a process function.
        failures: entries dropped because their process function raised.
        requeues: entries put back by `RequeueError` or a cancellation.
        errors: what rewrites, compressors and known objects raised.
        oldest_age_seconds: how long the entry at the head has been waiting; 0 without one.
        longest_running_seconds: how long the oldest running process function has been at it.
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

        Returns without yielding to the event loop when there is an entry and the function does
        not wait, so that a loop around it must yield now and then. The entry's keys stay in
        process until the function returns: no other pop gets them meanwhile. A cancellation,
        before or within the function, loses nothing: the deltas are back, at the head.

        Raises:
            QueueClosedError: closed, and nothing is left.
            Exception: whatever the function raised; the deltas are dropped then, and counted.
                `RequeueError` is not raised: the deltas are put back, ahead of newer ones.
        """
        ...

    async def pop_batch(self, process: BatchProcess, limit: int = 1000) -> int:
        """Do as `pop` for as many entries of different keys as are there, and return how many.

        A batch never mixes items of the initial list with later ones.
        """
        ...

    def key_of(self, item: Item | Deltas) -> str:
        """Return the key of an object, of a tombstone, or of deltas (by the newest).

        Raises:
            KeyFunctionError: there is none.
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
        """Let pops end with `QueueClosedError` once nothing is left. Writes are still taken."""
        ...

    def statistics(self) -> QueueStatistics:
        """Return figures for metrics."""
        ...
