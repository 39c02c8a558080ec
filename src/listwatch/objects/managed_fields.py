"""Cuts `metadata.managedFields` out of an object's JSON, without decoding the rest."""

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
    """Return the JSON of an object within `data`, without `metadata.managedFields`.

    Finding the key and checking the bytes around it is many times faster than finding the value;
    decoding and re-encoding would cost most of what keeping bytes saves. If the place is ambiguous,
    for example because a key has escapes, the fields are kept.

    Args:
        data: contains the object.
        begin: the object's start.
        end: the object's end.
        value: the value of managedFields.
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
        # Two braces complete this prefix, so two objects are open here. If the inner one were not
        # the metadata, they would be complete before it.
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
        # Another key of this name, with the same value, may be deeper in the object.
        if _lacks_managed_fields(before + after):
            return before + after
    return raw


def _lacks_managed_fields(raw: bytes | bytearray) -> bool:
    """Return whether this is an object with metadata, but without managedFields in it."""
    try:
        return _decode(raw).metadata.managed_fields is _NONE
    except msgspec.MsgspecError:
        return False
