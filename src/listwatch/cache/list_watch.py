"""The border between the cache and what it is fed from: list and watch of one resource."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from listwatch.objects import Object, ObjectDecodeError, decode_object

#: The types of a watch event, as on the wire.
ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"
BOOKMARK: Final = "BOOKMARK"
ERROR: Final = "ERROR"

#: Makes an object of its bytes; kind and apiVersion are for bytes that name none.
Decoder: TypeAlias = Callable[[bytes, str, str], Object]


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to list, as in the API's ListOptions.

    Attributes:
        resource_version: unset, "0" (any, from the server's cache) or a version.
        resource_version_match: "", "Exact" or "NotOlderThan".
        limit: items in a page at most; 0 is no limit. A server may ignore it.
        continue_token: where the next page begins; resource_version must be unset then.
        decoder: makes an object of its bytes; raises `ObjectDecodeError` for a poison object.
        progress: called whenever bytes arrive. A list that takes long must call it: whoever gives
            it guards the list, and a reflector gives one up that has not begun after 150 seconds,
            or is silent for 75 seconds after that.
    """

    resource_version: str = ""
    resource_version_match: str = ""
    limit: int = 0
    continue_token: str = ""
    decoder: Decoder = decode_object
    progress: Callable[[], None] | None = None


class ObjectList(msgspec.Struct, kw_only=True):
    """A list's answer, or one page of it.

    Attributes:
        items: the objects, in the server's order.
        resource_version: of the whole list, for the watch that follows.
        continue_token: of the next page; empty on the last one.
        remaining: how many items the following pages have, if the server tells.
        sharded: the server says that it has chosen by `shardSelector` (KEP-5866).
        undecodable: one error for each item that is no object; they never cost the others.
    """

    items: list[Object]
    resource_version: str = ""
    continue_token: str = ""
    remaining: int | None = None
    sharded: bool = False
    undecodable: list[ObjectDecodeError] = []


class WatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to watch, as in the API's ListOptions.

    Attributes:
        resource_version: the version after which events are wanted; unset or "0" begin with the
            present state.
        resource_version_match: "NotOlderThan" with `send_initial_events`, else unset.
        send_initial_events: stream the present state first, then a bookmark that says so
            (KEP-3157).
        allow_bookmarks: ask for bookmarks.
        timeout_seconds: when the server shall end the watch; 0 leaves it to the server.
        decoder: as in `ListOptions`.
    """

    resource_version: str = ""
    resource_version_match: str = ""
    send_initial_events: bool = False
    allow_bookmarks: bool = True
    timeout_seconds: int = 0
    decoder: Decoder = decode_object


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a watch.

    Attributes:
        type: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR; whatever else a server sent, as sent.
        object: the object of ADDED, MODIFIED and DELETED; None for the others, and for bytes that
            could not be decoded.
        resource_version: the position in the watch after this event, where the event tells it.
        error: a `StatusError` for ERROR; an `ObjectDecodeError` or `FrameError` for an event
            that could not be decoded.
        initial_events_end: this bookmark ends the initial events.
    """

    type: str
    object: Object | None = None
    resource_version: str = ""
    error: Exception | None = None
    initial_events_end: bool = False


#: The events of a watch, in batches as they arrive. An empty batch says that bytes came but no
#: whole event, so that a slow large event is told from a silent peer. The end of the iteration is
#: the orderly end of the watch; a broken connection raises `DisconnectedError`.
WatchStream: TypeAlias = AsyncIterator[Sequence[WatchEvent]]


@runtime_checkable
class ListerWatcher(Protocol):
    """Lists and watches one resource; the only thing that a reflector knows of a server.

    Both may raise `StatusError` (what the server refused), `DisconnectedError` (no connection, or
    a broken one), `FrameError` (bytes that are no list or watch) and `TimeoutError`. Both are
    called in the reflector's task and must end promptly when they are cancelled.
    """

    async def list(self, options: ListOptions) -> ObjectList:
        """Return the objects, or one page of them."""
        ...

    def watch(self, options: WatchOptions) -> AbstractAsyncContextManager[WatchStream]:
        """Open a watch: entering returns when the server has accepted it, leaving closes it."""
        ...


@runtime_checkable
class KnowsServer(Protocol):
    """A `ListerWatcher` that can tell when its server can be reached again.

    A reflector asks it, where it is one, after a connection failed, and so is back soon after the
    server is, however long that was away.
    """

    async def wait_until_reachable(self) -> bool:
        """Return when the server accepts connections; no request is sent to find out.

        Returns True if it did not meanwhile. False if it does already, or if that can't be told:
        then whoever asks must wait by himself.
        """
        ...


@runtime_checkable
class KnowsObjects(Protocol):
    """A `ListerWatcher` that can tell whether one object exists.

    A reflector asks it for the known objects that a list lacks if an item of the list does not
    tell which object it is. From a source that can't tell, no object is gone then.
    """

    async def find(self, key: str, decoder: Decoder) -> Object | None:
        """Return the object of a key; None only if the server says that there is none.

        None also if the object is there but not among those that are listed and watched.

        Raises:
            ObjectDecodeError: it is there and can't be decoded.
            Exception: as `ListerWatcher`; it may be there.
        """
        ...


@runtime_checkable
class KnowsDefinition(Protocol):
    """A `ListerWatcher` that can tell that its resource is defined no more."""

    async def is_gone(self) -> bool:
        """Tell whether it is certain that the server has no such resource any more.

        Asked after each list that was answered by 404. True ends every object in the cache, so
        that any doubt means False.

        Raises:
            As `ListerWatcher`.
        """
        ...
