"""Reading the parts of an object that a controller needs."""

from typing import TypeVar

import msgspec

from listwatch.objects.metadata import without_nulls

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Decode a JSON object; a field that is null counts as absent, as Go decodes it.

    Raises:
        msgspec.MsgspecError: a field is of the wrong type.
    """
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError:
        # Rare, so that only then the whole object is built.
        cleaned = msgspec.json.encode(without_nulls(msgspec.json.decode(raw)))
        return decoder.decode(cleaned)
