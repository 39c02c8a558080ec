"""Decodes the parts of an object that a controller needs."""

from typing import TypeVar

import msgspec

from listwatch.objects.metadata import without_nulls

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Decode a JSON object; a null field counts as absent, as in Go.

    Raises:
        msgspec.MsgspecError: a field has the wrong type.
    """
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError:
        # Rare, so only then is the whole object decoded.
        cleaned = msgspec.json.encode(without_nulls(msgspec.json.decode(raw)))
        return decoder.decode(cleaned)
