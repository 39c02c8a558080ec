"""What the frames of lists and of watches have in common: objects and values within bytes."""

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from listwatch.cache.list_watch import Decoder
from listwatch.objects import Object, ObjectDecodeError, ObjectDecoder
from listwatch.objects.json_values import decoded_end, end_of_value, identity, is_json_but_for_text

#: Bytes of an item or an event at most. etcd takes 1.5 MB unless told otherwise; decoding one
#: of this size is the longest that a server can hold the event loop.
MAX_BYTES: Final = 8 * 2**20
OPENING: Final = frozenset(b"{[")

_TRUNCATED: Final = "Input data was truncated"
_MAYBE_HALF = re.compile(rb"\\u[dD][89a-fA-F]").search


#: As `Decoder`, of a part of bytes: begin and end stand after these.
DecodePart: TypeAlias = Callable[[bytes | bytearray, int, int, str, str], Object]


def part_decoder(decoder: Decoder) -> DecodePart:
    """Return what decodes a part of larger bytes: without copying it first, where that can be."""
    if isinstance(decoder, ObjectDecoder):
        return decoder.decode_part

    def decode_copy(
        data: bytes | bytearray, begin: int, end: int, kind: str, api_version: str
    ) -> Object:
        return decoder(bytes(memoryview(data)[begin:end]), kind, api_version)

    return decode_copy


def bare(error: ObjectDecodeError | RecursionError, raw: bytes) -> ObjectDecodeError:
    """Return an error that may be kept, with the key of the object where one can be told."""
    if isinstance(error, RecursionError):
        return ObjectDecodeError("an object is nested too deeply", key=identity(raw).key)
    # An error that is kept would pin, through its tracebacks, the buffers it was found in.
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def end_of_json(view: memoryview, position: int) -> int:
    """Return where the value ends that begins there, or -1 if that can't be told."""
    try:
        return decoded_end(view, position)
    except msgspec.DecodeError as error:
        # The decoder takes what follows half a character for the other half, and may then miss
        # the end of the string.
        if str(error) == _TRUNCATED and not _MAYBE_HALF(view, position):
            return -1
    except RecursionError:
        pass
    if view[position] not in OPENING:
        return -1
    # Brackets show where a value ends, but only if it has no other fault.
    end = end_of_value(view, position)
    return end if end >= 0 and is_json_but_for_text(bytes(view[position:end])) else -1
