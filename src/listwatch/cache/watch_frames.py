"""Splits the stream of a watch into events while its bytes arrive, without I/O."""

import re
from typing import Final

import msgspec

from listwatch.cache.frame_values import MAX_BYTES, OPENING, bare, end_of_json, part_decoder
from listwatch.cache.kinds import ExpectedKind
from listwatch.cache.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    ERROR,
    MODIFIED,
    Decoder,
    WatchEvent,
)
from listwatch.errors import FrameError, StatusError
from listwatch.objects import Object, ObjectDecodeError
from listwatch.objects.json_values import (
    BROKEN,
    LONGEST_SCAN,
    TooManyMembersError,
    ValueEnd,
    identity,
    members,
)

_any = msgspec.json.Decoder().decode


class _Type(msgspec.Struct, gc=False, frozen=True):
    type: str
    object: msgspec.Raw


class _PositionMeta(msgspec.Struct, gc=False, rename="camel"):
    resource_version: str | None = None
    annotations: dict[str, str] | None = None


class _Position(msgspec.Struct, gc=False, rename="camel"):
    kind: str | None = None
    api_version: str | None = None
    metadata: _PositionMeta | None = None


class _Kind(msgspec.Struct, gc=False):
    kind: str = ""


_envelope = msgspec.json.Decoder(_Type).decode
_position = msgspec.json.Decoder(_Position).decode
_kind = msgspec.json.Decoder(_Kind).decode


class _Line:
    """The next line of the bytes that may be an event; each is searched for once."""

    __slots__ = ("begin", "end")

    def __init__(self) -> None:
        self.begin = -1  # of the line break before it; the end of the bytes if there is none
        self.end = -1  # -1 if the line is incomplete

    def find(self, data: bytes | bytearray, begin: int) -> None:
        """Find the first line from there on, including the line break before it."""
        if self.begin < begin:
            found = data.find(_LINE_BEGIN, begin)
            self.begin = found if found >= 0 else len(data)
            self.end = data.find(b"\n", found + 1) if found >= 0 else -1


class _Scan:
    """The search for the end of a value that spans several lines.

    Args:
        begin: where the value starts in its bytes.
    """

    __slots__ = ("end", "lines_from", "whole")

    def __init__(self, begin: int) -> None:
        self.end = ValueEnd(begin, in_lines=True)
        self.lines_from = begin  # no line before this is an event
        self.whole = True  # False once the value turns out to be truncated


_CHANGES: Final = frozenset({ADDED, MODIFIED, DELETED})
#: Maximum events, and values on the slow path, handled in one turn of the event loop.
_MOST_EVENTS: Final = 256
_MOST_SLOW: Final = 100
_BETWEEN_EVENTS = re.compile(rb"(?:[ \t\r\n]++|\xef\xbb\xbf)*+")
_GARBAGE_END = re.compile(rb"[\n{]")
_LINE_BEGIN: Final = b'\n{"type":"'
#: Bytes that may follow a complete value at the end of a chunk.
_MAY_END: Final = frozenset((b"}", b"]", b" ", b"\t", b"\r"))
_NO_JSON: Final = "the watch sent bytes that are not JSON"
_CLOSE: Final = 0x7D
#: Where the type starts in a line, and by its first letter: the type, the text before the object,
#: and the length of that text.
_TYPE: Final = len(b'{"type":"')
_HEADS: Final = {
    kind[0].encode(): (kind, head, len(head))
    for kind in (ADDED, MODIFIED, DELETED)
    for head in (b'{"type":"%b","object":' % kind.encode(),)
}


class WatchFrames:
    """Splits the body of a watch, a stream of JSON values, into events while it arrives.

    Values may be indented, adjacent, or separated by any whitespace. Events on one line each, as
    API servers send them, take the fast path.

    Feed the chunks in order, whatever their boundaries, then call `finish`. Before that, nothing
    that a server can send raises: a value that is not an event becomes a `WatchEvent` with an empty
    type and a `FrameError`, an undecodable object one with an `ObjectDecodeError`. A `Status`
    instead of an event is an ERROR. After bytes that are not JSON, events are recognized again from
    the next line that starts with one. For one task; nothing here waits.

    Args:
        decoder: creates an object from its bytes; it must raise `ObjectDecodeError` for bytes that
            are not exactly one JSON value.
        kind: for objects that name none.
        api_version: the same for apiVersion.
        expected: the required kind of the events; others are reported.
        max_event_bytes: a longer event is reported and skipped, and never buffered.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        kind: str = "",
        api_version: str = "",
        expected: ExpectedKind | None = None,
        max_event_bytes: int = MAX_BYTES,
    ) -> None:
        self._decoder = decoder
        self._decode_part = part_decoder(decoder)
        self._kind = kind
        self._api_version = api_version
        self._expected = expected
        self._max = max_event_bytes
        self._behind: tuple[bytes, ...] = ()  # fed and not split yet
        # Between two chunks, an incomplete value is here or in the pieces of a line.
        self._pending = bytearray()
        self._scan = _Scan(0)
        self._line: _Line | None = None  # in the bytes being split
        self._line_pieces: list[bytes] = []  # of a value without a line break so far
        self._line_size = 0
        self._in_lines = False  # the last event was a line, so the next one probably is
        self._skipping = False  # up to a line that starts with a brace
        self._at_line_begin = False

    @property
    def is_behind(self) -> bool:
        """Whether `feed` stopped before the end of its bytes: call it again with no bytes.

        It stops so that no server can hold the event loop.
        """
        return bool(self._behind)

    @property
    def is_in_event(self) -> bool:
        """Whether part of an event has arrived, not only whitespace since the last one."""
        return bool(self._pending) or self._skipping

    def feed(self, *pieces: bytes) -> list[WatchEvent]:
        """Take the next bytes; return the complete events, in order."""
        events: list[WatchEvent] = []
        if self._behind:
            pieces, self._behind = (*self._behind, *pieces), ()
        slow = 0
        for index, piece in enumerate(pieces):
            if len(events) >= _MOST_EVENTS or slow >= _MOST_SLOW:
                self._behind = pieces[index:]
                break
            begin, data = 0, piece
            if self._line_pieces:
                begin, data = self._go_on_with_line(events, piece)
            elif self._pending or self._skipping:
                data = self._go_on(events, piece)
            size, self._line = len(data), None
            while begin < size:
                if (end := data.find(b"\n", begin)) < 0:
                    end = size
                if len(events) >= _MOST_EVENTS:
                    self._behind = (data[begin:], *pieces[index + 1 :])
                    return events
                if self._add(events, data, begin, end):
                    begin = end + 1
                    self._in_lines = begin <= size
                elif slow < _MOST_SLOW:
                    begin = self._take(events, data, begin, end)
                    slow += 1
                else:
                    self._behind = (data[begin:], *pieces[index + 1 :])
                    return events
        return events

    def finish(self) -> list[WatchEvent]:
        """Return the last events; the body has ended.

        Raises:
            FrameError: an incomplete event is left.
        """
        events: list[WatchEvent] = []
        while self._behind:
            events += self.feed()
        if self._line_pieces:
            self._scan = _Scan(0)
            events += self.feed(self._go_on(events, self._take_line_pieces()))
        if self._pending and _BETWEEN_EVENTS.fullmatch(self._pending) is None:
            raise FrameError("the watch ended in the middle of an event")
        return events

    def _add(self, events: list[WatchEvent], data: bytes, begin: int, end: int) -> bool:
        """Add the event of a line, if the line has the form that every API server sends."""
        form = _HEADS.get(data[begin + _TYPE : begin + _TYPE + 1])
        if form is None:
            return False
        kind, head, size = form
        if not data.startswith(head, begin) or data[end - 1] != _CLOSE or end - begin > self._max:
            return False
        own, version = self._kind, self._api_version
        try:
            obj = self._decode_part(data, begin + size, end - 1, own, version)
        except (ObjectDecodeError, RecursionError):
            return False  # undecodable, or more keys after the object
        if (obj.kind != own or obj.api_version != version) and not self._fits(obj):
            return False
        events.append(WatchEvent(kind, obj, obj.meta.resource_version))
        return True

    def _fits(self, obj: Object) -> bool:
        return self._expected is None or self._expected.is_kind(obj.kind, obj.api_version)

    def _take(self, events: list[WatchEvent], data: bytes, begin: int, line_end: int) -> int:
        """Take whitespace, a value or garbage; return its end, or the end of the bytes if cut."""
        space = _BETWEEN_EVENTS.match(data, begin)
        if space is not None and space.end() > begin:
            return space.end()
        if data[begin] not in OPENING:
            if (end := _GARBAGE_END.search(data, begin)) is None:
                return self._hold(events, data, begin)
            events.append(_broken(_NO_JSON))
            return end.start()
        if line_end == len(data) and not self._may_be_whole(data):
            return self._hold(events, data, begin)
        end_in_line = end_of_json(memoryview(data)[begin:line_end], 0)
        if end_in_line >= 0:
            events.append(self._value(data[begin : begin + end_in_line]))
            return begin + end_in_line
        if line_end == len(data):
            return self._hold(events, data, begin)
        if self._line is None:
            self._line = _Line()
        scan = _Scan(begin)
        position = self._find_end(data, scan, self._line)
        if position < 0:
            scan.end.move(begin)
            scan.lines_from = max(0, scan.lines_from - begin)
            return self._hold(events, data, begin, scan)
        events.append(self._value(data[begin:position]) if scan.whole else _broken(_NO_JSON))
        return position

    def _hold(
        self, events: list[WatchEvent], data: bytes, begin: int, scan: _Scan | None = None
    ) -> int:
        if scan is None and data[begin] in OPENING:
            self._line_pieces.append(data[begin:])
            self._line_size = len(data) - begin
        else:
            self._pending += memoryview(data)[begin:]
            self._scan = scan or _Scan(0)
        self._limit(events)
        return len(data)

    def _limit(self, events: list[WatchEvent]) -> None:
        size = self._line_size if self._line_pieces else len(self._pending)
        if size > self._max:
            self._skipping, self._at_line_begin = True, self._pending.endswith(b"\n")
            self._pending.clear()
            self._line_pieces.clear()
            events.append(_broken(f"an event of a watch is over {self._max} bytes"))

    def _go_on_with_line(self, events: list[WatchEvent], data: bytes) -> tuple[int, bytes]:
        """Continue a value without a line break so far; return as `_go_on`, with the start.

        Usually an event cut between two reads.
        """
        line_end = data.find(b"\n")
        if line_end < 0 and not self._may_be_whole(data):
            self._line_pieces.append(data)
            self._line_size += len(data)
            self._limit(events)
            return 0, b""
        held = self._take_line_pieces()
        if line_end >= 0:
            line = b"".join((held, memoryview(data)[:line_end]))
            if self._add(events, line, 0, len(line)):
                return line_end + 1, data
        self._pending += held
        self._scan = _Scan(0)
        return 0, self._go_on(events, data)

    def _take_line_pieces(self) -> bytes:
        held = b"".join(self._line_pieces)
        self._line_pieces.clear()
        return held

    def _go_on(self, events: list[WatchEvent], data: bytes) -> bytes:
        """Continue an incomplete value; return the bytes after it once it is complete."""
        if self._skipping:
            return self._skip(data)
        pending, held = self._pending, len(self._pending)
        pending += data
        if pending[0] not in OPENING:
            if (end := _GARBAGE_END.search(pending, held)) is None:
                self._limit(events)
                return b""
            if _BETWEEN_EVENTS.fullmatch(pending, 0, end.start()) is None:
                events.append(_broken(_NO_JSON))
            return self._release(end.start())
        position = self._find_end(pending, self._scan, _Line())
        if position < 0:
            self._limit(events)
            return b""
        value = bytes(memoryview(pending)[:position])
        events.append(self._value(value) if self._scan.whole else _broken(_NO_JSON))
        return self._release(position)

    def _may_be_whole(self, data: bytes) -> bool:
        """Check quickly whether a value may end in these bytes, which have no line break."""
        return not self._in_lines or data[-1:] in _MAY_END

    def _release(self, position: int) -> bytes:
        rest = bytes(memoryview(self._pending)[position:])
        self._pending.clear()
        return rest

    def _skip(self, data: bytes) -> bytes:
        begin = 0 if self._at_line_begin and data.startswith(b"{") else data.find(b"\n{") + 1
        if begin == 0 and not (self._at_line_begin and data.startswith(b"{")):
            self._at_line_begin = data.endswith(b"\n")
            return b""
        self._skipping = False
        return data[begin:]

    def _find_end(self, data: bytes | bytearray, scan: _Scan, line: _Line) -> int:
        """Return where a value of several lines ends, or -1 if not yet known.

        A line that is a complete event shows that the value before it was truncated. Then return
        its start, and mark the value as not whole.
        """
        while True:
            line.find(data, scan.lines_from)
            end = scan.end.find(data, line.begin if line.end >= 0 else None)
            if end >= 0:
                return end
            if end == BROKEN:
                scan.whole = False
                return scan.end.position
            if line.end < 0:
                scan.lines_from = min(line.begin, max(0, len(data) - len(_LINE_BEGIN)))
                return -1
            event = bytes(memoryview(data)[line.begin + 1 : line.end])
            if self._add([], event, 0, len(event)):
                scan.whole = False
                return line.begin
            scan.lines_from = line.end

    def _value(self, value: bytes) -> WatchEvent:
        value = value.rstrip(b" \t\r\n")
        if len(value) > self._max:
            return _broken(f"an event of a watch is over {self._max} bytes")
        return self._uncommon(value)

    def _uncommon(self, line: bytes) -> WatchEvent:
        broken: Exception | None = None
        try:
            envelope = _envelope(line)
            kind, raw = envelope.type, bytes(envelope.object)
        except (msgspec.DecodeError, RecursionError) as error:
            kind, raw = _scan_envelope(line)
            if kind not in _CHANGES or not raw:
                return _no_event(line, error)
            broken = error
        if kind == ERROR:
            try:
                return WatchEvent(ERROR, error=StatusError.from_status(_any(raw)))
            except (msgspec.DecodeError, RecursionError):
                return _broken("an ERROR event whose status can't be decoded")
        version, initial_events_end, kind_of, api_version = _read_position(raw)
        if (
            self._expected is not None
            and kind_of
            and not self._expected.is_kind(kind_of, api_version or self._api_version)
        ):
            # Its resource version belongs to another resource too.
            return WatchEvent("", error=self._expected.refusal(kind_of, api_version))
        if kind == BOOKMARK:
            if not version:
                return _broken("a bookmark without a resource version", BOOKMARK)
            return WatchEvent(
                BOOKMARK, resource_version=version, initial_events_end=initial_events_end
            )
        if kind not in _CHANGES:
            return WatchEvent(kind, resource_version=version)
        try:
            obj = self._decoder(raw, self._kind, self._api_version)
        except (ObjectDecodeError, RecursionError) as error:
            return WatchEvent(kind, resource_version=version, error=bare(error, raw))
        if broken is not None:  # the event is broken, not the object
            return _no_event(line, broken)
        return WatchEvent(kind, obj, obj.meta.resource_version)


def _read_position(raw: bytes) -> tuple[str, bool, str, str]:
    """Return an object's resource version, whether it ends the initial events (KEP-3157), and
    its kind and apiVersion.
    """  # noqa: D205 - the summary needs two lines
    try:
        found = _position(raw)
    except (msgspec.DecodeError, RecursionError):
        which = identity(raw)
        return which.resource_version, False, which.kind, which.api_version
    meta = found.metadata or _PositionMeta()
    mark = (meta.annotations or {}).get("k8s.io/initial-events-end")
    version, kind, api_version = meta.resource_version, found.kind, found.api_version
    return version or "", mark == "true", kind or "", api_version or ""


def _scan_envelope(line: bytes) -> tuple[str, bytes]:
    kind, raw = "", b""
    if len(line) > LONGEST_SCAN:
        return kind, raw
    try:
        for key, begin, end in members(line):
            if key == "type":
                kind = line[begin + 1 : end - 1].decode("utf-8", "replace")
            elif key == "object":
                raw = line[begin:end]
    except TooManyMembersError:
        return "", b""
    return kind, raw


def _broken(message: str, kind: str = "") -> WatchEvent:
    return WatchEvent(kind, error=FrameError(message))


def _no_event(line: bytes, error: Exception) -> WatchEvent:
    try:
        kind = _kind(line).kind
        if kind == "Status":
            return WatchEvent(ERROR, error=StatusError.from_status(_any(line)))
    except (msgspec.DecodeError, RecursionError):
        return _broken(f"a line of the watch is not a JSON object: {error}")
    return _broken(f"a line of the watch is not an event but {kind or 'another JSON object'}")
