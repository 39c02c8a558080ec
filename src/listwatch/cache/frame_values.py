"""What the frames of lists and of watches share: objects and values within bytes."""

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from listwatch.cache.list_watch import Decoder
from listwatch.objects import Object, ObjectDecodeError, ObjectDecoder
from listwatch.objects.json_values import decoded_end, end_of_value, identity, is_json_but_for_text

#: Size limit of an item or an event. etcd takes 1.5 MB by default; decoding one of this size is the
#: longest that a server can hold the event loop.
MAX_BYTES: Final = 8 * 2**20
OPENING: Final = frozenset(b"{[")

_TRUNCATED: Final = "Input data was truncated"
_MAYBE_HALF = re.compile(rb"\\u[dD][89a-fA-F]").search


#: A `Decoder` for part of some bytes: start and end follow the bytes.
DecodePart: TypeAlias = Callable[[bytes | bytearray, int, int, str, str], Object]


def part_decoder(decoder: Decoder) -> DecodePart:
    """Return the decoder for part of larger bytes: one that avoids a copy, if there is one."""
    if isinstance(decoder, ObjectDecoder):
        return decoder.decode_part

    def decode_copy(
        data: bytes | bytearray, begin: int, end: int, kind: str, api_version: str
    ) -> Object:
        return decoder(bytes(memoryview(data)[begin:end]), kind, api_version)

    return decode_copy


def bare(error: ObjectDecodeError | RecursionError, raw: bytes) -> ObjectDecodeError:
    """Return an error without traceback, with the object's key if it can be found."""
    if isinstance(error, RecursionError):
        return ObjectDecodeError("an object is nested too deeply", key=identity(raw).key)
    # The traceback of a kept error would keep the buffers alive.
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def end_of_json(view: memoryview, position: int) -> int:
    """Return where the value that starts there ends, or -1 if that is unknown."""
    try:
        return decoded_end(view, position)
    except msgspec.DecodeError as error:
        # The decoder takes the bytes after half a surrogate pair for the other half, and may then
        # miss the end of the string.
        if str(error) == _TRUNCATED and not _MAYBE_HALF(view, position):
            return -1
    except RecursionError:
        pass
    if view[position] not in OPENING:
        return -1
    # Brackets show where a value ends, but only if the value has no other fault.
    end = end_of_value(view, position)
    return end if end >= 0 and is_json_but_for_text(bytes(view[position:end])) else -1
