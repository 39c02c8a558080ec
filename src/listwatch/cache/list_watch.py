"""The interface between the cache and its source: list and watch of one resource."""

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

#: Creates an object from its bytes. kind and apiVersion apply to bytes that name none.
Decoder: TypeAlias = Callable[[bytes, str, str], Object]


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to list, as in the API's ListOptions.

    Attributes:
        resource_version: unset, "0" (any version, from the server's cache) or a version.
        resource_version_match: "", "Exact" or "NotOlderThan".
        limit: maximum items per page; 0 is no limit. A server may ignore it.
        continue_token: where the next page begins; resource_version must be unset then.
        decoder: creates an object from its bytes; raises `ObjectDecodeError` for a poison object.
        progress: called whenever bytes arrive. A slow list must call it: a reflector gives up on a
            list that has not begun after 150 seconds, or is silent for 75 seconds after that.
    """

    resource_version: str = ""
    resource_version_match: str = ""
    limit: int = 0
    continue_token: str = ""
    decoder: Decoder = decode_object
    progress: Callable[[], None] | None = None


class ObjectList(msgspec.Struct, kw_only=True):
    """The response to a list, or one page of it.

    Attributes:
        items: the objects, in the server's order.
        resource_version: the list's version, from which a watch continues.
        continue_token: where the next page begins; empty on the last one.
        remaining: number of items on the following pages, if the server says.
        sharded: the server says that it applied `shardSelector` (KEP-5866).
        undecodable: one error for each item that can't be decoded; the other items are unaffected.
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
        resource_version: the version after which to watch; unset or "0" start with the current
            state.
        resource_version_match: "NotOlderThan" with `send_initial_events`, else unset.
        send_initial_events: stream the current state first, then a bookmark that ends it
            (KEP-3157).
        allow_bookmarks: request bookmarks.
        timeout_seconds: when the server should end the watch; 0 lets the server choose.
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
        type: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR; any other value as the server sent it.
        object: the object of ADDED, MODIFIED and DELETED; None for other types and for bytes that
            can't be decoded.
        resource_version: the watch's position after this event, if the event has one.
        error: a `StatusError` for ERROR; an `ObjectDecodeError` or `FrameError` for an event that
            can't be decoded.
        initial_events_end: this bookmark ends the initial events.
    """

    type: str
    object: Object | None = None
    resource_version: str = ""
    error: Exception | None = None
    initial_events_end: bool = False


#: The events of a watch, in batches as they arrive. An empty batch means that bytes came but no
#: complete event, which distinguishes a large slow event from a silent peer. The iteration ends
#: when the watch ends normally; a broken connection raises `DisconnectedError`.
WatchStream: TypeAlias = AsyncIterator[Sequence[WatchEvent]]


@runtime_checkable
class ListerWatcher(Protocol):
    """Lists and watches one resource: all that a reflector knows of a server.

    Both methods may raise `StatusError` (the server refused), `DisconnectedError` (no connection,
    or a broken one), `FrameError` (the bytes are not a list or watch) and `TimeoutError`. They run
    in the reflector's task and must end promptly when cancelled.
    """

    async def list(self, options: ListOptions) -> ObjectList:
        """Return the objects, or one page of them."""
        ...

    def watch(self, options: WatchOptions) -> AbstractAsyncContextManager[WatchStream]:
        """Open a watch. Entering returns when the server has accepted it; leaving closes it."""
        ...


@runtime_checkable
class KnowsServer(Protocol):
    """A `ListerWatcher` that notices when its server becomes reachable again.

    After a failed connection, a reflector waits for it, and so resumes soon after the server is
    back, however long the outage was.
    """

    async def wait_until_reachable(self) -> bool:
        """Return when the server accepts connections. Sends no request.

        Returns True if the server was unreachable in between. Returns False if it accepts
        connections already, or if that is unknown; the caller must then wait by other means.
        """
        ...


@runtime_checkable
class KnowsObjects(Protocol):
    """A `ListerWatcher` that can check whether one object exists.

    A reflector asks for the known objects that a list lacks if the list has an item without a
    readable name. With a source that can't check, no object counts as gone in that case.
    """

    async def find(self, key: str, decoder: Decoder) -> Object | None:
        """Return the object of a key; None only if the server says that it does not exist.

        Also returns None if the object exists but is outside the selection that is listed and
        watched.

        Raises:
            ObjectDecodeError: the object exists and can't be decoded.
            Exception: as `ListerWatcher`; the object may exist.
        """
        ...


@runtime_checkable
class KnowsDefinition(Protocol):
    """A `ListerWatcher` that notices when its resource is no longer defined."""

    async def is_gone(self) -> bool:
        """Return whether the server certainly no longer has this resource.

        Called after each list that was answered by 404. True deletes every object from the cache,
        so return False in any doubt.

        Raises:
            As `ListerWatcher`.
        """
        ...
