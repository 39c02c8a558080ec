"""Reading the parts of an object that a controller needs."""

from typing import Any, TypeVar

import msgspec

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
        cleaned = msgspec.json.encode(_without_nulls(msgspec.json.decode(raw)))
        return decoder.decode(cleaned)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
