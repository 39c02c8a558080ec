"""A resource in memory that can fail in every way that a server can."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

import msgspec

from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    MODIFIED,
    Decoder,
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.clock import Clock, Timer
from listwatch.errors import (
    AlreadyExistsError,
    DisconnectedError,
    ExpiredError,
    InvalidError,
    NotFoundError,
    ServerTimeoutError,
)
from listwatch.objects import Object, ObjectDecodeError, decode_object
from listwatch.selector import parse_field_selector, parse_label_selector


class Ending(Enum):
    """How a request ends without an error."""

    #: The stream ends normally.
    END = "end"
    #: The peer sends nothing more, and does not close either.
    SILENCE = "silence"


#: Seconds between attempts to connect.
_CONNECT_SECONDS: Final = 2.0

END: Final = Ending.END
SILENCE: Final = Ending.SILENCE

#: How a source responds to a request for initial events; see `FakeControllerSource`.
WatchListMode: TypeAlias = Literal["yes", "invalid", "ignored"] | Exception

#: The response to a request: an error to raise, or silence.
SourceFault: TypeAlias = Exception | Literal[Ending.SILENCE]


class Request(msgspec.Struct, frozen=True):
    """One request that the source received.

    Attributes:
        options: the request's options; their type distinguishes a list from a watch.
        at: the time, by the clock.
    """

    options: ListOptions | WatchOptions
    at: float


class WatchScript(msgspec.Struct, frozen=True, kw_only=True):
    """What the next watches send after their start.

    Attributes:
        backlog: send the changes since the requested version (and the initial events) first.
        events: sent next; a callable returns them when the watch opens.
        then: how the watch continues; as usual if None.
    """

    backlog: bool = True
    events: Sequence[WatchEvent] | Callable[[], Sequence[WatchEvent]] = ()
    then: Exception | Ending | None = None


class Backup(msgspec.Struct, frozen=True):
    """The state of a source, for `FakeControllerSource.restore`."""

    items: Mapping[str, Object]
    version: int


class _Change(msgspec.Struct, frozen=True):
    version: int
    new: Object | None
    old: Object | None


class _Watch:
    """One open watch: its queued events, and how it ends."""

    def __init__(self, view: "FakeListWatch", options: WatchOptions, position: int) -> None:
        self.view = view
        self.options = options
        self.position = position
        self.silent = False
        self._events: deque[WatchEvent] = deque()
        self._ending: Exception | Literal[Ending.END] | None = None
        self._news = asyncio.Event()
        self.timers: dict[str, Timer] = {}

    def push(self, *events: WatchEvent) -> None:
        if not self.silent and self._ending is None:
            self._events.extend(events)
            self._news.set()

    def end(self, ending: Exception | Literal[Ending.END]) -> None:
        if not self.silent and self._ending is None:
            self._ending = ending
            self._news.set()

    async def read(self) -> AsyncIterator[Sequence[WatchEvent]]:
        while True:
            await self._news.wait()
            self._news.clear()
            batch = list(self._events)
            self._events.clear()
            if batch:
                yield batch
            if self._ending is not None and not self._events:
                if self._ending is not END:
                    raise self._ending
                return


class FakeListWatch:
    """Part of a source, selected by selectors and namespace: a `ListerWatcher`."""

    def __init__(
        self, source: "FakeControllerSource", labels: str, fields: str, namespace: str
    ) -> None:
        self._source = source
        self._labels = parse_label_selector(labels)
        self._fields = parse_field_selector(fields)
        self._namespace = namespace

    def has(self, obj: Object | None) -> bool:
        """Return whether an object belongs to this part."""
        if obj is None or (self._namespace and obj.namespace != self._namespace):
            return False
        return self._labels.matches(obj.labels) and (
            self._fields.is_everything
            or self._fields.matches(lambda field: _field_value(obj, field))
        )

    async def list(self, options: ListOptions) -> ObjectList:
        """Return the objects, or one page of them, in the order of their keys."""
        return await self._source._list(self, options)  # noqa: SLF001 - two halves of one thing

    async def wait_until_reachable(self) -> bool:
        """Return when the source accepts connections; True if it did not in between."""
        return await self._source.wait_until_reachable()

    async def is_gone(self) -> bool:
        """Return whether the resource is certainly no longer defined."""
        return await self._source.is_gone()

    @asynccontextmanager
    async def watch(self, options: WatchOptions) -> AsyncIterator[WatchStream]:
        """Open a watch that continues from a version, or starts with the current state."""
        watch = await self._source._open(self, options)  # noqa: SLF001 - as above
        try:
            yield watch.read()
        finally:
            self._source._close(watch)  # noqa: SLF001 - as above


class FakeControllerSource:
    """A resource in memory, with resource versions, paging, selectors, bookmarks and watch-list.

    A `ListerWatcher` of everything; `list_watch` returns others, limited by selectors. Every change
    takes the next resource version and is sent to all watches, unless its name ends in
    `_drop_watch`: then only a list, or a watch from an earlier version, shows it. A reader gets its
    own copy, decoded by its own decoder. For one event loop.

    After client-go's `tools/cache/testing/fake_controller_source.go`; selectors, paging, bookmarks
    and faults are new. A fault applies to requests that come after it was set.

    Args:
        kind: of objects that name none.
        api_version: the same for apiVersion.
        clock: ends watches after their timeoutSeconds, and times bookmarks.
        bookmark_seconds: interval of bookmarks for a watch that requested them; None for never.
        watch_list: "yes"; "invalid" to refuse `sendInitialEvents` like a server that does not know
            it; "ignored" to send the initial events without their end; or the error to return for a
            request for initial events.
    """

    def __init__(
        self,
        *,
        kind: str = "Pod",
        api_version: str = "v1",
        clock: Clock | None = None,
        bookmark_seconds: float | None = 60.0,
        watch_list: WatchListMode = "yes",
    ) -> None:
        self._kind = kind
        self._api_version = api_version
        self._clock = clock if clock is not None else Clock()
        self._bookmark_seconds = bookmark_seconds
        self.watch_list: WatchListMode = watch_list
        #: Keys of objects that can't be decoded, in lists and in watches.
        self.poison: set[str] = set()
        #: Whether the resource is defined; otherwise every request returns 404.
        self.defined = True
        #: Whether the source then proves that the resource is no longer defined.
        self.provable = True
        #: How often that proof was requested.
        self.inquiries = 0
        self._refuses = False
        #: Every request that the source received, oldest first.
        self.requests: list[Request] = []
        self._items: dict[str, Object] = {}
        self._version = 0
        self._uids = 0
        self._log: list[_Change] = []
        self._floor = 0
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self._watches: list[_Watch] = []
        self._list_faults: deque[tuple[SourceFault, float]] = deque()
        self._watch_faults: deque[tuple[SourceFault | WatchScript, float]] = deque()
        self._everything = FakeListWatch(self, "", "", "")

    # --- The state ------------------------------------------------------------------------------

    @property
    def resource_version(self) -> str:
        """The version of the last change."""
        return str(self._version)

    @property
    def objects(self) -> Mapping[str, Object]:
        """The current objects by key, in a new dict."""
        return dict(self._items)

    @property
    def open_watches(self) -> int:
        """Number of open watches."""
        return len(self._watches)

    def add(self, obj: Object | Mapping[str, Any]) -> Object:
        """Create an object, give it a uid if it has none, and return it as stored.

        Raises:
            AlreadyExistsError: an object of this name exists.
        """
        return self._write(ADDED, obj, tell=True)

    def modify(self, obj: Object | Mapping[str, Any]) -> Object:
        """Change an object, which keeps its uid if none is given, and return it as stored.

        Raises:
            NotFoundError: no object of this name exists.
        """
        return self._write(MODIFIED, obj, tell=True)

    def delete(self, obj: Object | Mapping[str, Any] | str) -> Object:
        """Delete an object, given as object or key, and return its last state.

        Raises:
            NotFoundError: no object of this name exists.
        """
        return self._remove(obj, tell=True)

    def add_drop_watch(self, obj: Object | Mapping[str, Any]) -> Object:
        """Add an object like `add`, but send it to no open watch."""
        return self._write(ADDED, obj, tell=False)

    def modify_drop_watch(self, obj: Object | Mapping[str, Any]) -> Object:
        """Modify an object like `modify`, but send it to no open watch."""
        return self._write(MODIFIED, obj, tell=False)

    def delete_drop_watch(self, obj: Object | Mapping[str, Any] | str) -> Object:
        """Delete an object like `delete`, but send it to no open watch."""
        return self._remove(obj, tell=False)

    def _write(self, kind: str, obj: Object | Mapping[str, Any], *, tell: bool) -> Object:
        value = obj.to_dict() if isinstance(obj, Object) else dict(obj)
        meta = dict(value.get("metadata") or {})
        key = decode_object(msgspec.json.encode({"metadata": meta})).key
        old = self._items.get(key)
        if kind == ADDED and old is not None:
            raise AlreadyExistsError(f"{self._kind} {key!r} already exists")
        if kind == MODIFIED and old is None:
            raise NotFoundError(f"{self._kind} {key!r} not found")
        if not meta.get("uid"):
            self._uids += 1
            meta["uid"] = f"uid-{self._uids}" if old is None else old.uid
        new = self._stamped({**value, "metadata": meta})
        self._items[key] = new
        self._changed(_Change(self._version, new, old), tell=tell)
        return new

    def _remove(self, obj: Object | Mapping[str, Any] | str, *, tell: bool) -> Object:
        if isinstance(obj, str):
            key = obj
        elif isinstance(obj, Object):
            key = obj.key
        else:
            key = Object.from_dict(obj).key
        old = self._items.pop(key, None)
        if old is None:
            raise NotFoundError(f"{self._kind} {key!r} not found")
        last = self._stamped(old.to_dict())
        self._changed(_Change(self._version, None, last), tell=tell)
        return last

    def _stamped(self, value: dict[str, Any]) -> Object:
        self._version += 1
        head = {"kind": self._kind, "apiVersion": self._api_version}
        meta = {**value["metadata"], "resourceVersion": str(self._version)}
        return Object.from_dict({**head, **value, "metadata": meta})

    def _changed(self, change: _Change, *, tell: bool) -> None:
        self._log.append(change)
        if tell:
            for watch in self._watches:
                self._tell(watch, change)

    # --- Faults ---------------------------------------------------------------------------------

    def fail_lists(self, fault: SourceFault, times: float = 1) -> None:
        """Answer the next lists with a fault, this many times (`math.inf` for all)."""
        self._list_faults.append((fault, times))

    def fail_watches(self, fault: SourceFault, times: float = 1) -> None:
        """Answer the next watches with a fault instead of opening them."""
        self._watch_faults.append((fault, times))

    def script_watches(self, script: WatchScript, times: float = 1) -> None:
        """Let the next watches follow a script."""
        self._watch_faults.append((script, times))

    def refuse(self) -> None:
        """Go away: break all open watches and refuse every connection, until `accept`.

        A refused connection is not recorded as a request.
        """
        self._refuses = True
        self.end_watches(DisconnectedError("reset by peer"))

    def accept(self) -> None:
        """Accept connections again."""
        self._refuses = False

    async def wait_until_reachable(self) -> bool:
        """Return when the source accepts connections; True if it did not in between."""
        refused = self._refuses
        while self._refuses:
            await self._clock.sleep(_CONNECT_SECONDS)
        return refused

    async def is_gone(self) -> bool:
        """Return whether the resource is certainly no longer defined."""
        self.inquiries += 1
        return self.provable and not self.defined

    def heal(self) -> None:
        """Remove all faults set for coming requests."""
        self._list_faults.clear()
        self._watch_faults.clear()

    def send(self, *events: WatchEvent) -> None:
        """Send events of any type to all open watches, without any change."""
        for watch in self._watches:
            watch.push(*events)

    def send_bookmark(self) -> None:
        """Send the current version as a bookmark to all open watches."""
        self.send(WatchEvent(BOOKMARK, resource_version=self.resource_version))

    def end_watches(self, ending: Exception | Literal[Ending.END] = END) -> None:
        """End all open watches, normally or with an error."""
        for watch in self._watches:
            watch.end(ending)

    def silence_watches(self) -> None:
        """Silence all open watches: they receive nothing more, not even their end."""
        for watch in self._watches:
            watch.silent = True

    def reset_watch(self) -> None:
        """End all watches normally and discard the history: older versions get 410.

        Continue tokens expire too.
        """
        self._log.clear()
        self._pages.clear()
        self._floor = self._version
        self.end_watches()

    def backup(self) -> Backup:
        """Return the current state."""
        return Backup(dict(self._items), self._version)

    def restore(self, backup: Backup) -> None:
        """Go back to an earlier state and its version. Open watches receive nothing more.

        As with a real server, a watch opened at a later version receives only what comes after that
        version.
        """
        self.silence_watches()
        self._items = dict(backup.items)
        self._version = self._floor = backup.version
        self._log.clear()
        self._pages.clear()

    # --- List and watch -------------------------------------------------------------------------

    def list_watch(
        self, *, label_selector: str = "", field_selector: str = "", namespace: str = ""
    ) -> FakeListWatch:
        """Return a part of this source.

        Raises:
            SelectorError: a selector can't be parsed.
        """
        return FakeListWatch(self, label_selector, field_selector, namespace)

    async def list(self, options: ListOptions) -> ObjectList:
        """Return the objects, or one page of them, in the order of their keys.

        Raises:
            ExpiredError: the continue token is from before a `reset_watch`.
            ServerTimeoutError: the requested version is in the future.
        """
        return await self._everything.list(options)

    def watch(self, options: WatchOptions) -> AbstractAsyncContextManager[WatchStream]:
        """Open a watch that continues from a version, or starts with the current state.

        Entering raises:
            ExpiredError: the requested version is from before a `reset_watch`.
            InvalidError: initial events are requested and `watch_list` is "invalid".
        """
        return self._everything.watch(options)

    async def _list(self, view: FakeListWatch, options: ListOptions) -> ObjectList:
        await self._begin(options)
        if (fault := _take(self._list_faults)) is not None:
            await _fail(fault)
        if options.continue_token:
            if options.continue_token not in self._pages:
                raise ExpiredError("The provided continue parameter is too old")
            version, items = self._pages.pop(options.continue_token)
        else:
            version = self._version
            if _number(options.resource_version) > version:
                raise _too_large(options.resource_version, version)
            items = [obj for _, obj in sorted(self._items.items()) if view.has(obj)]
        limit = options.limit if options.resource_version != "0" else 0
        rest = items[limit:] if limit else []
        page = ObjectList(items=[], resource_version=str(version), remaining=len(rest) or None)
        for obj in items[:limit] if limit else items:
            try:
                page.items.append(self._copy(obj, options.decoder))
            except ObjectDecodeError as error:
                page.undecodable = [*page.undecodable, error]
        if rest:
            page.continue_token = f"{version}:{rest[0].key}:{len(self.requests)}"
            self._pages[page.continue_token] = (version, rest)
        return page

    async def _begin(self, options: ListOptions | WatchOptions) -> None:
        if self._refuses:
            raise DisconnectedError("nobody listens", refused=True)
        self.requests.append(Request(options, self._clock.now()))
        await asyncio.sleep(0)
        if not self.defined:
            raise NotFoundError("404 page not found")

    async def _open(self, view: FakeListWatch, options: WatchOptions) -> _Watch:
        await self._begin(options)
        script = _take(self._watch_faults)
        if script is not None and not isinstance(script, WatchScript):
            await _fail(script)
            raise AssertionError("a fault lets nothing through")
        initial = options.send_initial_events
        if initial and self.watch_list == "invalid":
            raise InvalidError("sendInitialEvents: Forbidden: sendInitialEvents is forbidden")
        if initial and isinstance(self.watch_list, Exception):
            raise self.watch_list
        version = _number(options.resource_version)
        if not initial and 0 < version < self._floor:
            raise ExpiredError(f"too old resource version: {version} ({self._floor})")
        watch = _Watch(view, options, self._version if initial or not version else version)
        if script is None or script.backlog:
            self._send_backlog(watch, initial=initial, version=version)
        if script is not None:
            events = script.events
            watch.push(*(events() if callable(events) else events))
            if script.then is SILENCE:
                watch.silent = True
            elif script.then is not None:
                watch.end(script.then)
        self._watches.append(watch)
        self._set_timers(watch)
        return watch

    def _send_backlog(self, watch: _Watch, *, initial: bool, version: int) -> None:
        if initial or not version:
            for _, obj in sorted(self._items.items()):
                if watch.view.has(obj):
                    watch.push(self._event(ADDED, obj, watch.options.decoder))
            if initial and self.watch_list == "yes":
                end = WatchEvent(
                    BOOKMARK, resource_version=self.resource_version, initial_events_end=True
                )
                watch.push(end)
        else:
            for change in self._log:
                self._tell(watch, change)

    def _set_timers(self, watch: _Watch) -> None:
        if watch.options.timeout_seconds:
            watch.timers["end"] = self._clock.call_later(
                watch.options.timeout_seconds, watch.end, END
            )
        if watch.options.allow_bookmarks and self._bookmark_seconds is not None:
            self._time_bookmark(watch, self._bookmark_seconds)

    def _time_bookmark(self, watch: _Watch, seconds: float) -> None:
        def send() -> None:
            if self._version >= watch.position:
                watch.push(WatchEvent(BOOKMARK, resource_version=self.resource_version))
            self._time_bookmark(watch, seconds)

        watch.timers["bookmark"] = self._clock.call_later(seconds, send)

    def _close(self, watch: _Watch) -> None:
        self._watches.remove(watch)
        for timer in watch.timers.values():
            timer.cancel()

    def _tell(self, watch: _Watch, change: _Change) -> None:
        if change.version <= watch.position:
            return
        decoder = watch.options.decoder
        was, is_now = watch.view.has(change.old), watch.view.has(change.new)
        if is_now and change.new is not None:
            watch.push(self._event(MODIFIED if was else ADDED, change.new, decoder))
        elif was and change.old is not None:
            last = change.old
            if change.new is not None:  # it left the selection: last state, new version
                meta = {
                    **last.to_dict()["metadata"],
                    "resourceVersion": change.new.resource_version,
                }
                last = Object.from_dict({**last.to_dict(), "metadata": meta})
            watch.push(self._event(DELETED, last, decoder))

    def _event(self, kind: str, obj: Object, decoder: Decoder) -> WatchEvent:
        try:
            return WatchEvent(kind, self._copy(obj, decoder), obj.resource_version)
        except ObjectDecodeError as error:
            return WatchEvent(kind, None, obj.resource_version, error)

    def _copy(self, obj: Object, decoder: Decoder) -> Object:
        if obj.key in self.poison:
            raise ObjectDecodeError(f"{obj.key} was poisoned", key=obj.key)
        return decoder(obj.json(), self._kind, self._api_version)


def _take(faults: deque[Any]) -> Any:
    if not faults:
        return None
    fault, times = faults[0]
    if times <= 1:
        faults.popleft()
    else:
        faults[0] = (fault, times - 1)
    return fault


async def _fail(fault: SourceFault) -> None:
    if isinstance(fault, Exception):
        raise fault
    await asyncio.Event().wait()


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0


def _too_large(version: str, present: int) -> ServerTimeoutError:
    message = f"Too large resource version: {version}, current: {present}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return ServerTimeoutError(message, details={"causes": causes, "retryAfterSeconds": 1})


def _field_value(obj: Object, field: str) -> str | None:
    value: Any = obj
    for name in field.split("."):
        if not isinstance(value, Object | Mapping) or name not in value:
            return None
        value = value[name]
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def pod(
    name: str,
    namespace: str = "",
    *,
    uid: str = "",
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a small pod, of which only the metadata is realistic."""
    meta: dict[str, Any] = {"name": name}
    if namespace:
        meta["namespace"] = namespace
    if uid:
        meta["uid"] = uid
    if labels:
        meta["labels"] = dict(labels)
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec}
