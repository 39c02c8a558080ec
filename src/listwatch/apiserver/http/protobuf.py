"""The API's protobuf form: kubectl sends some kinds only in it, clientsets accept only it.

The codec is our own because the types are data here, one table for all kinds, and because their
JSON form differs from protobuf's own in places (inlined structs, quantities, times).
"""

import base64
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.http.protobuf_types import (
    EXTENSIONS,
    INTSTR,
    META,
    RESOURCE,
    RUNTIME,
    DataError,
    Field,
    fields_of,
    is_bare_list,
    message_of,
)
from listwatch.apiserver.http.protobuf_writing import put_bytes, put_number, writer_of
from listwatch.apiserver.kinds.resources import APIResource

Object = dict[str, Any]

_MAGIC = b"k8s\0"
_DEPTH_LIMIT = 64


# -- reading ---------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise DataError("a number is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _wire(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in {1, 5}:
            size = 8 if kind == 1 else 4
        else:
            raise DataError(f"wire type {kind}")
        if at + size > end:
            raise DataError("a field is cut short")
        yield tag >> 3, data[at : at + size]
        at += size


def _signed(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise DataError("a number was expected")
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(value: int | bytes) -> str:
    if not isinstance(value, bytes):
        raise DataError("a string was expected")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise DataError("a string is not UTF-8") from None


def decode_message(message: str, data: bytes, depth: int = 0) -> Any:
    """Return the JSON value of a message.

    Raises:
        DataError: the bytes are not such a message.
    """
    if depth > _DEPTH_LIMIT:
        raise DataError("nested too deeply")
    special = _SPECIAL_READERS.get(message)
    if special is not None:
        return special(data)
    if is_bare_list(message):
        return [_text(value) for _, value in _wire(data)]
    fields = {field.number: field for field in fields_of(message)}
    result: Object = {}
    for number, raw in _wire(data):
        field = fields.get(number)
        if field is None:
            continue
        if field.is_map:
            key, value = _entry(field.message, raw, depth)
            result.setdefault(field.name, {})[key] = value
            continue
        value = _value(field, raw, depth)
        if field.repeated:
            result.setdefault(field.name, []).append(value)
        elif field.inline:
            result.update(value)
        else:
            result[field.name] = value
    return result


def _value(field: Field, raw: int | bytes, depth: int) -> Any:
    match field.kind:
        case "s":
            return _text(raw)
        case "i":
            return _signed(raw)
        case "b":
            return bool(_signed(raw))
        case "y":
            return base64.b64encode(raw if isinstance(raw, bytes) else b"").decode()
        case "d" if isinstance(raw, bytes) and len(raw) == 8:
            return float(struct.unpack("<d", raw)[0])
        case "m" if isinstance(raw, bytes):
            return decode_message(field.message, raw, depth + 1)
    raise DataError(f"{field.name} has another wire type")


def _entry(message: str, raw: int | bytes, depth: int) -> tuple[str, Any]:
    if not isinstance(raw, bytes):
        raise DataError("a map's entry was expected")
    parts = dict(_wire(raw))
    key_field, value_field = sorted(fields_of(message), key=lambda field: field.number)
    key = _text(parts.get(key_field.number, b""))
    empty: int | bytes = b"" if value_field.kind in "sym" else 0
    return key, _value(value_field, parts.get(value_field.number, empty), depth + 1)


def _read_time(data: bytes) -> str | None:
    parts = dict(_wire(data))
    if not parts:
        return None
    seconds = _signed(parts.get(1, 0))
    if seconds <= -62_135_596_800:
        return None
    return _stamp(seconds)


def _stamp(seconds: int) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise DataError("a time is out of range") from None
    return moment.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def _read_micro_time(data: bytes) -> str | None:
    parts = dict(_wire(data))
    if not parts:
        return None
    micros = _signed(parts.get(2, 0)) // 1000
    return _stamp(_signed(parts.get(1, 0)))[:-1] + f".{micros:06d}Z"


def _read_int_or_string(data: bytes) -> int | str:
    parts = dict(_wire(data))
    if parts.get(1):
        return _text(parts.get(3, b""))
    return _signed(parts.get(2, 0))


def _read_json(data: bytes) -> Any:
    raw = dict(_wire(data)).get(1, b"")
    if not raw or not isinstance(raw, bytes):
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise DataError("embedded JSON can't be read") from None


def _read_schema(raw: int | bytes) -> Any:
    if not isinstance(raw, bytes):
        raise DataError("a schema was expected")
    return decode_message(EXTENSIONS + "JSONSchemaProps", raw)


def _read_schema_or_bool(data: bytes) -> Any:
    parts = dict(_wire(data))
    return _read_schema(parts[2]) if 2 in parts else bool(parts.get(1, 0))


def _read_schema_or_others(data: bytes) -> Any:
    # a schema, or several, or the names of properties
    others = []
    for number, raw in _wire(data):
        if number == 1:
            return _read_schema(raw)
        others.append(raw)
    return others


_SPECIAL_READERS = {
    META + "Time": _read_time,
    META + "MicroTime": _read_micro_time,
    RESOURCE + "Quantity": lambda data: _text(dict(_wire(data)).get(1, b"")),
    INTSTR + "IntOrString": _read_int_or_string,
    META + "FieldsV1": _read_json,
    RUNTIME + "RawExtension": _read_json,
    EXTENSIONS + "JSON": _read_json,
    EXTENSIONS + "JSONSchemaPropsOrArray": _read_schema_or_others,
    EXTENSIONS + "JSONSchemaPropsOrBool": _read_schema_or_bool,
    EXTENSIONS + "JSONSchemaPropsOrStringArray": _read_schema_or_others,
}


# -- whole bodies ----------------------------------------------------------------------------


def enveloped(version: str, kind: str, body: bytes) -> bytes:
    """Return a message as a complete body, preceded by version and kind."""
    type_meta = put_bytes(1, version.encode()) + put_bytes(2, kind.encode())
    return _MAGIC + put_bytes(1, type_meta) + put_bytes(2, body) + b"\x1a\x00\x22\x00"


def encode_value(value: Object) -> bytes:
    """Return an object with kind and apiVersion in protobuf.

    Raises:
        NotAcceptableError: 406, the kind has no protobuf form here.
    """
    version, kind = value.get("apiVersion", ""), value.get("kind", "")
    return enveloped(version, kind, writer_of(_known(version, kind))(value))


def encode_json(body: bytes) -> bytes:
    """Return a JSON response in protobuf, like `encode_value`."""
    return encode_value(msgspec.json.decode(body))


def encode_item(version: str, kind: str, data: bytes) -> bytes:
    """Return an object's JSON as an item of a list."""
    return put_bytes(2, writer_of(_known(version, kind))(msgspec.json.decode(data)))


def encode_list(version: str, kind: str, metadata: Object, items: Sequence[bytes]) -> bytes:
    """Return a list whose items `encode_item` encoded."""
    head = put_bytes(1, writer_of(META + "ListMeta")(metadata))
    return enveloped(version, kind, b"".join((head, *items)))


def encode_event(event: str, body: bytes) -> bytes:
    """Return a watch event, framed: its length, then a message with the object's body."""
    message = put_bytes(1, event.encode()) + put_bytes(2, put_bytes(1, body))
    return len(message).to_bytes(4, "big") + message


def _known(version: str, kind: str) -> str:
    message = message_of(version, kind)
    if message is None:
        raise refusal.not_acceptable(f"this server has no protobuf form of {kind}")
    return message


def _unwrap(data: bytes) -> tuple[str, str, bytes]:
    if not data.startswith(_MAGIC):
        raise DataError("the body does not begin as a protobuf body does")
    version, kind, raw = "", "", b""
    for number, value in _wire(data[len(_MAGIC) :]):
        if number == 1 and isinstance(value, bytes):
            parts = dict(_wire(value))
            version, kind = _text(parts.get(1, b"")), _text(parts.get(2, b""))
        elif number == 2 and isinstance(value, bytes):
            raw = value
    return version, kind, raw


def decode_body(data: bytes, version: str = "", kind: str = "") -> Object:
    """Return the object of a complete body, with kind and apiVersion.

    Args:
        data: the body.
        version: used if the body names none, like `kind`.
        kind: of the object.

    Raises:
        BadRequestError: the body is invalid.
    """
    try:
        named, of_kind, raw = _unwrap(data)
        version, kind = named or version, of_kind or kind
        message = message_of(version, kind)
        if message is None:
            raise refusal.bad_request(
                f'no kind "{kind}" is known in protobuf for version "{version}"'
            )
        value: Object = decode_message(message, raw)
    except DataError as error:
        raise refusal.bad_request(f"the body can't be read as protobuf: {error}") from None
    return {"apiVersion": version, "kind": kind, **value}


def decode_object(data: bytes, resource: APIResource) -> Object:
    """Return the object in a resource's protobuf body, like `decode_body`."""
    return decode_body(data, resource.api_version, resource.kind)


def decode_delete_options(data: bytes) -> Object:
    """Return the options of a delete from a protobuf body.

    Raises:
        ValueError: the body is invalid.
    """
    try:
        _, _, raw = _unwrap(data)
        value: Object = decode_message(META + "DeleteOptions", raw)
    except DataError as error:
        raise ValueError(str(error)) from None
    return value


__all__ = [
    "decode_body",
    "decode_delete_options",
    "decode_object",
    "encode_event",
    "encode_item",
    "encode_json",
    "encode_list",
    "encode_value",
    "put_bytes",
    "put_number",
]
