"""Splits list bodies and watch streams into objects while their bytes arrive, without I/O.

The HTTP client, adapters and replays feed the bytes as they come. Nothing is decoded twice or
buffered whole, and no buffer outlives the call that passed it.
"""

import re
from itertools import islice
from typing import Any, Final

import msgspec

from listwatch.cache.frame_values import MAX_BYTES, bare, end_of_json, part_decoder
from listwatch.cache.kinds import ExpectedKind
from listwatch.cache.list_watch import Decoder, ObjectList
from listwatch.cache.watch_frames import WatchFrames
from listwatch.errors import FrameError, StatusError
from listwatch.objects import ObjectDecodeError

__all__ = ["MAX_BYTES", "ListFrames", "WatchFrames"]

_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_any = msgspec.json.Decoder().decode

_ITEMS = re.compile(rb'"items"[ \t\r\n]*:[ \t\r\n]*\[')
_SPACE = re.compile(rb"[ \t\r\n]*")

_OPEN, _COMMA, _BRACKET = 0x7B, 0x2C, 0x5D
_NEVER: Final = 1 << 62

#: A head with more candidates for its end than this is buffered whole instead.
_HEAD_TRIES: Final = 8
#: How much of the items' common prefix is part of the separator.
_PREFIX: Final = 96
#: How often the separator may be relearnt.
_LESSONS: Final = 32
#: Maximum undecodable items in a list.
_MAX_POISON: Final = 10_000
#: Maximum undecodable items handled in one turn of the event loop.
_MOST_POISON_AT_ONCE: Final = 50
#: Bytes that wrong separators may waste, in addition to a quarter of the bytes split.
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


def _common(one: bytes, other: bytes) -> bytes:
    """Return the common prefix."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:index]
    return one[: len(other)]


def _past_space(data: bytearray, position: int) -> int:
    space = _SPACE.match(data, position)
    return space.end() if space else position


class ListFrames:
    """Splits the body of a list into objects while it arrives.

    Feed the chunks in order, then call `finish`: only that proves that the body was complete, so
    commit nothing before. After an error, discard the instance. For one task; nothing here waits.

    Correctness: a JSON object is never a proper prefix of another, so bytes that start at an item
    and decode *are* the item. Speed: the end of an item is guessed from the bytes between earlier
    items, or read from the decoder's complaint about what follows; a wrong guess costs only time.
    Linear time: after a failed try the pending bytes must grow fourfold, and guessing stops when it
    wastes more than it gains.

    Args:
        decoder: creates an object from its bytes; it must raise `ObjectDecodeError` for bytes that
            are not exactly one JSON value.
        kind: kind of the items, if neither they nor the list before them name one.
        api_version: the same for apiVersion.
        expected: the required kind of the list; a list of any other kind is refused.
        max_item_bytes: size limit of one item, and of everything before or after the items.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        kind: str = "",
        api_version: str = "",
        expected: ExpectedKind | None = None,
        max_item_bytes: int = MAX_BYTES,
    ) -> None:
        self._decoder = decoder
        self._decode_part = part_decoder(decoder)
        self._kind = kind
        self._api_version = api_version
        self._expected = expected
        self._max = max_item_bytes
        self._items: list[Any] = []
        self._undecodable: list[ObjectDecodeError] = []
        self._pending = bytearray()  # begins with an item, or with what follows one
        self._head = b""
        self._stand_in = b""  # replaces the items cut off, so that the rest is a list again
        self._hold = 0  # nothing is tried before this many bytes are pending
        self._consumed = 0
        self._is_behind = False
        # A separator is "}", the bytes between two items, and the items' common prefix.
        self._separator = b""
        self._step = 0  # from the separator's start to the next item's
        self._prefix: bytes | None = None
        self._between = b""
        self._searched = 0  # no separator starts before this
        self._wasted = 0
        self._lessons = _LESSONS

    @property
    def is_behind(self) -> bool:
        """Whether `feed` left complete items: call it again with no bytes.

        Undecodable items are slow to handle; this keeps a server from holding the event loop with
        them.
        """
        return self._is_behind

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes and decode the complete items.

        Raises:
            FrameError: the bytes can't be a list, or an item exceeds the limit.
        """
        pending = self._pending
        pending += chunk
        if len(pending) > self._max and self._hold != _NEVER:
            self._hold = 0
        if (len(pending) >= self._hold or self._separator) and (self._head or self._find_head()):
            self._cut()
        if len(pending) > self._max and not self._is_behind:
            raise FrameError(f"a list has more than {self._max} bytes without a complete item")

    def finish(self) -> ObjectList:
        """Return the list; its body has ended.

        Raises:
            FrameError: the body is truncated, not JSON, not a list, or of an unexpected kind.
            StatusError: the body is a `Status` instead of a list.
        """
        if self._head or self._find_head():
            if self._hold != _NEVER:
                self._hold = 0
            self._cut()
            while self._is_behind:
                self._cut()
        body = self._head + self._stand_in + self._pending
        try:
            top = _top(body)
            head = _list_head(body)
        except (msgspec.DecodeError, RecursionError) as error:
            cut = "" if body else " (it is empty)"
            raise FrameError(f"the list body is incomplete or invalid{cut}: {error}") from None
        kind = head.kind or ""
        if "items" not in top and not kind.endswith("List"):
            if kind == "Status":
                raise StatusError.from_status(_any(body))
            raise FrameError(
                f"expected a list, but the body is {kind or 'an object without a kind'}"
            )
        items = bytes(top.get("items", b"null"))
        if self._head:
            self._refuse_second_items(body, items)
        else:
            self._learn_kind(head)
        try:
            rest = [] if items == b"null" else _raws(items)
        except (msgspec.DecodeError, RecursionError) as error:
            raise FrameError(f"the items of the list are not an array: {error}") from None
        for item in rest[1 if self._stand_in else 0 :]:
            self._add(bytes(item))
        if self._expected is not None:
            self._expected.check_list(kind, head.api_version or "", self._items)
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
        # A decoder takes the last of two equal keys, but here the first one's items were split off.
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
                # The array just opened is the list's only if a probe put into it turns up there: a
                # string key that ends in `"items":[` fools a single probe.
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
            self._items.append(self._decoder(raw, self._kind, self._api_version))
        except (ObjectDecodeError, RecursionError) as error:
            self._report(error, raw)

    def _report(self, error: ObjectDecodeError | RecursionError, raw: bytes) -> None:
        if len(self._undecodable) == _MAX_POISON:
            raise FrameError(f"the list has more than {_MAX_POISON} items that are not objects")
        self._undecodable.append(bare(error, raw))

    def _cut(self) -> None:
        if self._hold == _NEVER:
            return
        pending = self._pending
        position = 0
        poison = len(self._undecodable) + _MOST_POISON_AT_ONCE
        self._is_behind = False
        with memoryview(pending) as view:
            while True:
                if self._separator:
                    position = self._cut_by_separator(len(view), position)
                after = self._cut_one(view, position)
                if after < 0:
                    break
                position = after
                if len(self._undecodable) >= poison:
                    self._is_behind = True
                    break
        self._consumed += position
        self._searched = max(0, self._searched - position)
        del pending[:position]

    def _cut_by_separator(self, size: int, position: int) -> int:
        """Split items while the separator shows where they end; return the new position.

        The position is the start of an item, unless nothing was split.
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
                # The separator is inside the item, the item is undecodable, or the next item starts
                # differently: the slow path decides.
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
        """Split off one item or what is between two; return its end, or -1 if not yet known."""
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
        end = end_of_json(view, position)
        if end < 0 or (end == size and pending[position] not in b'{["'):  # digits may follow
            self._hold = 4 * left
            return -1
        raw = bytes(view[position:end]).rstrip(b" \t\r\n")
        try:
            self._items.append(self._decoder(raw, self._kind, self._api_version))
        except (ObjectDecodeError, RecursionError) as error:
            if end_of_json(memoryview(raw), 0) != len(raw):
                self._hold = _NEVER  # not an item: the complaint meant something else
                return -1
            self._report(error, raw)
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
                raise FrameError("an item of the list must be followed by a comma or the end")
            after = _past_space(pending, after + 1)
        if after == len(pending):
            self._hold = 2 * (after - position)
            return -1
        self._between = bytes(pending[position : min(after, position + _PREFIX)])
        self._stand_in = b"0,"
        self._hold = 0
        return after

    def _learn_separator(self, raw: bytes) -> None:
        """Learn the separator from an item that was split without one."""
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
