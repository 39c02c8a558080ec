"""List bodies and watch streams cut into objects while their bytes arrive, without any I/O.

The HTTP client, adapters and replays feed bytes as they come; nothing is decoded twice, nothing
is held whole, and no buffer outlives the call that it came with.
"""

import re
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    ERROR,
    MODIFIED,
    Decode,
    ObjectList,
    WatchEvent,
)
from listwatch.errors import FrameError, StatusError
from listwatch.objects import Object, ObjectDecodeError, ObjectDecoder

#: What an item or an event may take at most. etcd takes 1.5 MB unless told otherwise.
MAX_BYTES: Final = 64 * 2**20

_raw = msgspec.json.Decoder(msgspec.Raw).decode
_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_any = msgspec.json.Decoder().decode

_ITEMS = re.compile(rb'"items"[ \t\r\n]*:[ \t\r\n]*\[')
_SPACE = re.compile(rb"[ \t\r\n]*")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)").search

_OPEN, _CLOSE, _COMMA, _BRACKET, _CR = 0x7B, 0x7D, 0x2C, 0x5D, 0x0D
_NEVER: Final = 1 << 62

#: A head with more places than this that look like its end is taken whole instead.
_HEAD_TRIES: Final = 8
#: How much of the items' common beginning is part of the separator.
_PREFIX: Final = 96
#: How often a separator may be learnt anew.
_LESSONS: Final = 32
#: How many items that are no objects a list may have.
_MAX_POISON: Final = 10_000
#: What wrong separators may waste, beside a quarter of what was cut.
_WASTE: Final = 2**16


class _ListMeta(msgspec.Struct, gc=False, rename="camel"):
    resource_version: str | None = None
    continue_: str | None = msgspec.field(default=None, name="continue")
    remaining_item_count: int | None = None
    shard_info: object = None


class _ListHead(msgspec.Struct, gc=False, rename="camel"):
    kind: str | None = None
    api_version: str | None = None
    metadata: _ListMeta | None = None


_list_head = msgspec.json.Decoder(_ListHead).decode


#: As `Decode`, of a part of bytes: begin and end stand after these.
_DecodePart: TypeAlias = Callable[[bytes | bytearray, int, int, str, str], Object]


def _part_decoder(decode: Decode) -> _DecodePart:
    """Return what decodes a part of larger bytes: without copying it first, where that can be."""
    if isinstance(decode, ObjectDecoder):
        return decode.decode_part

    def decode_copy(
        data: bytes | bytearray, begin: int, end: int, kind: str, api_version: str
    ) -> Object:
        return decode(bytes(memoryview(data)[begin:end]), kind, api_version)

    return decode_copy


def _bare(error: ObjectDecodeError | RecursionError) -> ObjectDecodeError:
    if isinstance(error, RecursionError):
        return ObjectDecodeError("an object that is nested too deeply")
    # An error that is kept would pin, through its tracebacks, the buffers it was found in.
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _common(one: bytes, other: bytes) -> bytes:
    """Return how both begin."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:index]
    return one[: len(other)]


def _past_space(data: bytearray, position: int) -> int:
    space = _SPACE.match(data, position)
    return space.end() if space else position


class ListFrames:
    """Cuts the body of a list into objects while it arrives.

    Feed the chunks in order, then call `finish`: only that proves that the body was whole, so
    nothing may be committed before. After an error the instance is of no more use. For one task;
    nothing here waits.

    How it is right: a JSON object is never a proper prefix of another, so bytes that begin where
    an item begins and decode *are* the item. How it is fast: where an item ends is guessed, by
    what stood between the items so far, or read from the decoder's complaint about what follows;
    a wrong guess costs time only. How it stays linear: after a failed try the pending bytes must
    grow fourfold, and guesses that waste more than they gain are given up.

    Args:
        decode: makes an object of the bytes of one; it must refuse bytes that are not exactly
            one JSON value, by `ObjectDecodeError`.
        kind: of the items, for those that name none and a list that names none before them.
        api_version: the same for apiVersion.
        max_item_bytes: what one item, or all that stands before or after the items, may take.
    """

    def __init__(
        self,
        decode: Decode,
        *,
        kind: str = "",
        api_version: str = "",
        max_item_bytes: int = MAX_BYTES,
    ) -> None:
        self._decode = decode
        self._decode_part = _part_decoder(decode)
        self._kind = kind
        self._api_version = api_version
        self._max = max_item_bytes
        self._items: list[Any] = []
        self._undecodable: list[ObjectDecodeError] = []
        self._pending = bytearray()  # begins with an item, or with what follows one
        self._head = b""
        self._stand_in = b""  # for the items that were cut off, so that the rest is a list again
        self._hold = 0  # nothing is tried before so many bytes are pending
        self._consumed = 0
        # A separator is "}", what stood between two items, and the items' common beginning.
        self._separator = b""
        self._step = 0  # from the separator's begin to the next item's
        self._prefix: bytes | None = None
        self._between = b""
        self._searched = 0  # no separator begins in the pending bytes before this
        self._wasted = 0
        self._lessons = _LESSONS

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes; decode the items that are whole.

        Raises:
            FrameError: the bytes can't be a list, or an item is over the limit.
        """
        pending = self._pending
        pending += chunk
        if len(pending) > self._max and self._hold != _NEVER:
            self._hold = 0
        if (len(pending) >= self._hold or self._separator) and (self._head or self._find_head()):
            self._cut()
        if len(pending) > self._max:
            raise FrameError(f"a list has more than {self._max} bytes without a whole item")

    def finish(self) -> ObjectList:
        """Return the list, whose body has ended.

        Raises:
            FrameError: the body is cut short, no JSON, or no list.
            StatusError: the body is a `Status` in place of a list.
        """
        if not self._head:
            self._find_head()
        body = self._head + self._stand_in + self._pending
        try:
            top = _top(body)
            head = _list_head(body)
        except (msgspec.DecodeError, RecursionError) as error:
            cut = "" if body else " (it is empty)"
            raise FrameError(f"the body is no whole list{cut}: {error}") from None
        kind = head.kind or ""
        if "items" not in top and not kind.endswith("List"):
            if kind == "Status":
                raise StatusError.from_status(_any(body))
            raise FrameError(f"the body is no list but {kind or 'an object without a kind'}")
        items = bytes(top.get("items", b"null"))
        if self._head:
            self._refuse_second_items(body, items)
        else:
            self._learn_kind(head)
        try:
            rest = [] if items == b"null" else _raws(items)
        except (msgspec.DecodeError, RecursionError) as error:
            raise FrameError(f"the items of the list are no array: {error}") from None
        for item in rest[1 if self._stand_in else 0 :]:
            self._add(bytes(item))
        meta = head.metadata or _ListMeta()
        return ObjectList(
            items=self._items,
            resource_version=meta.resource_version or "",
            continue_token=meta.continue_ or "",
            remaining=meta.remaining_item_count,
            sharded=meta.shard_info is not None,
            undecodable=self._undecodable,
        )

    def _refuse_second_items(self, body: bytes, items: bytes) -> None:
        # A decoder takes the last of two equal keys, but the first one's items were cut off.
        start = len(self._head) - 1
        tail = body[start + len(items) :]
        if not body.startswith(items, start) or "items" in _top(b'{"":0' + tail):
            raise FrameError('the list has "items" twice')

    def _find_head(self) -> bool:
        pending = self._pending
        places = [match.span() for match in islice(_ITEMS.finditer(pending), _HEAD_TRIES + 1)]
        for begin, end in places[:_HEAD_TRIES]:
            head = bytes(pending[:end])
            try:
                # The array that was just opened is the list's only if what is put into it is
                # found there: a key that ends in `"items":[`, as a string, fools one probe.
                empty, one = _top(head + b"]}"), _top(head + b"0]}")
                if bytes(empty["items"]) != b"[]" or bytes(one["items"]) != b"[0]":
                    continue
                if "items" in _top(head[:begin] + b'"":0}'):
                    raise FrameError('the list has "items" twice')
                self._learn_kind(_list_head(head + b"]}"))
            except (msgspec.DecodeError, KeyError, RecursionError):
                continue
            self._head, self._hold = head, 0
            del pending[:end]
            return True
        self._hold = 2 * len(pending) if len(places) <= _HEAD_TRIES else _NEVER
        return False

    def _learn_kind(self, head: _ListHead) -> None:
        kind, list_suffix = (head.kind or "").removesuffix("List"), (head.kind or "")[-4:]
        if kind and list_suffix == "List":
            self._kind = kind
            self._api_version = head.api_version or self._api_version

    def _add(self, raw: bytes) -> None:
        """Add an item that is known to be one JSON value."""
        try:
            self._items.append(self._decode(raw, self._kind, self._api_version))
        except (ObjectDecodeError, RecursionError) as error:
            self._report(error)

    def _report(self, error: ObjectDecodeError | RecursionError) -> None:
        if len(self._undecodable) == _MAX_POISON:
            raise FrameError(f"the list has more than {_MAX_POISON} items that are no objects")
        self._undecodable.append(_bare(error))

    def _cut(self) -> None:
        if self._hold == _NEVER:
            return
        pending = self._pending
        position = 0
        with memoryview(pending) as view:
            while True:
                if self._separator:
                    position = self._cut_by_separator(len(view), position)
                after = self._cut_one(view, position)
                if after < 0:
                    break
                position = after
        self._consumed += position
        self._searched = max(0, self._searched - position)
        del pending[:position]

    def _cut_by_separator(self, size: int, position: int) -> int:
        """Cut items as long as the separator shows where they end; return the new position.

        It is an item's begin on return, unless nothing was cut.
        """
        if self._stand_in == b"0":  # a comma is due, not an item
            return position
        pending, separator, step = self._pending, self._separator, self._step
        append, decode, kind, api_version = (
            self._items.append,
            self._decode_part,
            self._kind,
            self._api_version,
        )
        begin = position
        while (end := pending.find(separator, max(position, self._searched))) >= 0:
            try:
                append(decode(pending, position, end + 1, kind, api_version))
            except (ObjectDecodeError, RecursionError):
                # The separator stands inside of the item, or the item is poison, or the next
                # one begins in another way: the slow way tells.
                self._wasted += end + 1 - position
                if self._wasted > _WASTE + (self._consumed + position) // 4:
                    self._forget_separator()
                break
            position = end + step
        else:
            self._searched = max(position, size - len(separator) + 1)
        if position > begin:
            self._hold = 0
        return position

    def _cut_one(self, view: memoryview, position: int) -> int:
        """Cut one item or what stands between two; return where it ends, or -1: not yet known."""
        pending, size = self._pending, len(view)
        left = size - position
        if left < self._hold or not left:
            return -1
        if self._stand_in == b"0":
            return self._cut_comma(position)
        if not self._stand_in:
            position = _past_space(pending, position)
            if position == size or pending[position] == _BRACKET:
                self._hold = 2 * left if position == size else _NEVER
                return -1
        end = self._end_of_value(view, position)
        if end < 0 or (end == size and pending[position] not in b'{["'):  # digits may follow
            self._hold = 4 * left
            return -1
        raw = bytes(view[position:end]).rstrip(b" \t\r\n")
        try:
            self._items.append(self._decode(raw, self._kind, self._api_version))
        except (ObjectDecodeError, RecursionError) as error:
            if self._end_of_value(memoryview(raw), 0) != len(raw):
                self._hold = _NEVER  # no item: the complaint meant something else
                return -1
            self._report(error)
        self._learn_separator(raw)
        self._stand_in = b"0"
        self._hold = 0
        return position + len(raw)

    def _cut_comma(self, position: int) -> int:
        pending = self._pending
        after = _past_space(pending, position)
        if after < len(pending):
            if pending[after] == _BRACKET:
                self._hold = _NEVER
                return -1
            if pending[after] != _COMMA:
                raise FrameError("an item of the list is followed by neither a comma nor the end")
            after = _past_space(pending, after + 1)
        if after == len(pending):
            self._hold = 2 * (after - position)
            return -1
        self._between = bytes(pending[position : min(after, position + _PREFIX)])
        self._stand_in = b"0,"
        self._hold = 0
        return after

    @staticmethod
    def _end_of_value(view: memoryview, position: int) -> int:
        try:
            with view[position:] as rest:
                _raw(rest)
        except msgspec.DecodeError as error:
            hint = _TRAILING(str(error))
            return position + int(hint[1]) - 1 if hint else -1
        except RecursionError:
            raise FrameError("the list has an item that is nested too deeply") from None
        return len(view)

    def _learn_separator(self, raw: bytes) -> None:
        """Learn from an item that was cut without the help of a separator."""
        if not self._lessons:
            return
        between = self._between
        prefix = raw[:_PREFIX] if self._prefix is None else _common(self._prefix, raw)
        separator = b"}" + between + prefix if between and prefix else b""
        if separator != self._separator:
            self._lessons -= 1
            self._separator, self._step, self._searched = separator, 1 + len(between), 0
        self._prefix = prefix
        if not (self._lessons and raw[0] == _OPEN):
            self._forget_separator()

    def _forget_separator(self) -> None:
        self._separator, self._lessons = b"", 0


class _Type(msgspec.Struct, gc=False, frozen=True):
    type: str
    object: msgspec.Raw


class _PositionMeta(msgspec.Struct, gc=False, rename="camel"):
    resource_version: str | None = None
    annotations: dict[str, str] | None = None


class _Position(msgspec.Struct, gc=False):
    metadata: _PositionMeta | None = None


class _Kind(msgspec.Struct, gc=False):
    kind: str = ""


_envelope = msgspec.json.Decoder(_Type).decode
_position = msgspec.json.Decoder(_Position).decode
_kind = msgspec.json.Decoder(_Kind).decode

_BEGIN: Final = b'{"type":"'
_MIDDLE: Final = b'","object":'
_BEGINNINGS: Final = {_BEGIN + kind.encode(): kind for kind in (ADDED, MODIFIED, DELETED)}
_LONGEST_BEGINNING: Final = max(map(len, _BEGINNINGS)) + 1


class WatchFrames:
    """Cuts the body of a watch into events while it arrives: one event a line.

    Feed the chunks in order, however they were cut, then call `finish`. What a server can send
    never raises before that: a line that is no event becomes a `WatchEvent` with an empty type
    and a `FrameError`, an object that can't be decoded one with an `ObjectDecodeError`. A
    `Status` in place of an event is an ERROR. For one task; nothing here waits.

    Args:
        decode: makes an object of the bytes of one; it must refuse bytes that are not exactly
            one JSON value, by `ObjectDecodeError`.
        kind: for objects that name none.
        api_version: the same for apiVersion.
        max_event_bytes: a longer line is reported and skipped, and never held.
    """

    def __init__(
        self,
        decode: Decode,
        *,
        kind: str = "",
        api_version: str = "",
        max_event_bytes: int = MAX_BYTES,
    ) -> None:
        self._decode = decode
        self._decode_part = _part_decoder(decode)
        self._kind = kind
        self._api_version = api_version
        self._max = max_event_bytes
        self._pending: list[bytes] = []  # the pieces of an unfinished line
        self._size = 0
        self._skipping = False  # the rest of a line that is over the limit

    def feed(self, *pieces: bytes) -> list[WatchEvent]:
        """Take the next bytes; return the events that are whole now, in order."""
        events: list[WatchEvent] = []
        for piece in pieces:
            begin, end = 0, piece.find(b"\n")
            if self._pending or self._skipping or end < 0:
                events += self._hold(piece if end < 0 else piece[:end])
                if end < 0:
                    continue
                events += self._release()
                begin, end = end + 1, piece.find(b"\n", end + 1)
            while end >= 0:
                self._add(events, piece, begin, end)
                begin, end = end + 1, piece.find(b"\n", end + 1)
            if begin < len(piece):
                events += self._hold(piece[begin:])
        return events

    def finish(self) -> list[WatchEvent]:
        """Return the last event, if it came without an end of line; the body has ended.

        Raises:
            FrameError: half an event is left.
        """
        events = self._release()
        for event in events:
            if isinstance(event.error, FrameError):
                raise FrameError("the watch ended within an event")
        return events

    def _hold(self, piece: bytes) -> list[WatchEvent]:
        if self._skipping or not piece:
            return []
        self._pending.append(piece)
        self._size += len(piece)
        if self._size <= self._max + 1:  # the last byte may be a carriage return
            return []
        self._pending.clear()
        self._skipping = True
        return [_broken(f"an event of a watch is over {self._max} bytes")]

    def _release(self) -> list[WatchEvent]:
        line = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        self._skipping = False
        events: list[WatchEvent] = []
        self._add(events, line, 0, len(line))
        return events

    def _add(self, events: list[WatchEvent], data: bytes, begin: int, end: int) -> None:
        """Add the event of a line, if it is not empty."""
        # The form in which every API server sends events; anything else takes the long way.
        middle = data.find(b'"', begin + len(_BEGIN), begin + _LONGEST_BEGINNING)
        if (
            (kind := _BEGINNINGS.get(data[begin:middle])) is not None
            and data.startswith(_MIDDLE, middle)
            and data[end - 1] == _CLOSE
            and end - begin <= self._max
        ):
            begin_of_object = middle + len(_MIDDLE)
            try:
                obj = self._decode_part(
                    data, begin_of_object, end - 1, self._kind, self._api_version
                )
            except (ObjectDecodeError, RecursionError):
                pass  # poison, or more keys after the object: the long way tells
            else:
                events.append(WatchEvent(kind, obj, obj.meta.resource_version))
                return
        line = data[begin:end].removesuffix(b"\r")
        if len(line) > self._max:
            events.append(_broken(f"an event of a watch is over {self._max} bytes"))
        elif line.strip(b" \t\r\n"):
            events.append(self._uncommon(line))

    def _uncommon(self, line: bytes) -> WatchEvent:
        try:
            envelope = _envelope(line)
        except (msgspec.DecodeError, RecursionError) as error:
            return _no_event(line, error)
        kind, raw = envelope.type, bytes(envelope.object)
        if kind == ERROR:
            try:
                return WatchEvent(ERROR, error=StatusError.from_status(_any(raw)))
            except (msgspec.DecodeError, RecursionError):
                return _broken("an ERROR event whose status can't be decoded")
        version, initial_events_end = _read_position(raw)
        if kind == BOOKMARK:
            if not version:
                return _broken("a bookmark without a resource version", BOOKMARK)
            return WatchEvent(
                BOOKMARK, resource_version=version, initial_events_end=initial_events_end
            )
        if kind not in {ADDED, MODIFIED, DELETED}:
            return WatchEvent(kind, resource_version=version)
        try:
            obj = self._decode(raw, self._kind, self._api_version)
        except (ObjectDecodeError, RecursionError) as error:
            return WatchEvent(kind, resource_version=version, error=_bare(error))
        return WatchEvent(kind, obj, obj.meta.resource_version)


def _read_position(raw: bytes) -> tuple[str, bool]:
    """Return an object's resource version and whether it ends the initial events (KEP-3157)."""
    try:
        meta = _position(raw).metadata
    except (msgspec.DecodeError, RecursionError):
        return "", False
    if meta is None:
        return "", False
    mark = (meta.annotations or {}).get("k8s.io/initial-events-end")
    return meta.resource_version or "", mark == "true"


def _broken(message: str, kind: str = "") -> WatchEvent:
    return WatchEvent(kind, error=FrameError(message))


def _no_event(line: bytes, error: Exception) -> WatchEvent:
    try:
        kind = _kind(line).kind
        if kind == "Status":
            return WatchEvent(ERROR, error=StatusError.from_status(_any(line)))
    except (msgspec.DecodeError, RecursionError):
        return _broken(f"a line of a watch is no JSON object: {error}")
    return _broken(f"a line of a watch is no event but {kind or 'another JSON object'}")
