"""Cuts `metadata.managedFields` out of an object's JSON, without decoding the rest of it."""

import re

import msgspec

_COMMA, _OPEN, _CLOSE = b",{}"
_KEY = b'"managedFields":'
_KEY_SPACED = re.compile(rb'"managedFields"[ \t\r\n]*:[ \t\r\n]*')
_NONE = msgspec.Raw(b"")


class _Metadata(msgspec.Struct, gc=False, rename="camel"):
    managed_fields: msgspec.Raw = _NONE


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata


_decode = msgspec.json.Decoder(_Object).decode


def cut_managed_fields(
    data: bytes | bytearray, begin: int, end: int, value: bytes | msgspec.Raw
) -> bytes:
    """Return the JSON of an object, which is a part of `data`, without `metadata.managedFields`.

    Finding the key and checking what stands before it and what follows is many times faster than
    finding the value; decoding and encoding anew would cost most of what keeping bytes saves.
    What is written so oddly that the place can't be told, such as a key with escapes, is kept.

    Args:
        data: what the object is in.
        begin: where it begins.
        end: where it ends.
        value: of the managedFields.
    """
    first = data.find(_KEY, begin, end)
    last = first + len(_KEY) + len(value)
    if first > begin and data.startswith(value, first + len(_KEY)):
        left, right = data[first - 1], data[last]
        cut = -1
        if left == _COMMA:
            cut = first - 1
        elif left == _OPEN and right == _COMMA:
            cut, last = first, last + 1
        elif left == _OPEN and right == _CLOSE:
            cut = first
        # Two braces end this beginning, so that two objects are open at this place. Were the
        # inner one anything but the metadata, these would be complete before it.
        if cut > 0 and _lacks_managed_fields((head := data[begin:cut]) + b"}}"):
            return b"".join((head, memoryview(data)[last:end]))
    raw = bytes(memoryview(data)[begin:end])
    for match in _KEY_SPACED.finditer(raw):
        if not raw.startswith(value, match.end()):
            continue
        before, after = raw[: match.start()].rstrip(), raw[match.end() + len(value) :].lstrip()
        if before.endswith(b","):
            before = before[:-1]
        elif after.startswith(b","):
            after = after[1:]
        # Another key of this name, with the same value, may stand deeper in the object.
        if _lacks_managed_fields(before + after):
            return before + after
    return raw


def _lacks_managed_fields(raw: bytes | bytearray) -> bool:
    """Tell whether this is an object that has metadata, and no managedFields in them."""
    try:
        return _decode(raw).metadata.managed_fields is _NONE
    except msgspec.MsgspecError:
        return False
