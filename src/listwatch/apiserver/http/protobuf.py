"""The protobuf form of the API: kubectl sends some kinds in no other.

The codec is ours because the types are data here, one table for all kinds, and because their JSON
form differs from protobuf's own in places (inlined structs, quantities, times).
"""

import base64
import functools
import gzip
import importlib.resources
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.schema.facts import facts

Object = dict[str, Any]

_MAGIC = b"k8s\0"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_DEPTH_LIMIT = 64


class _Field(msgspec.Struct, frozen=True):
    number: int
    name: str
    kind: str
    repeated: bool
    message: str
    #: whether the JSON form has this message's fields in its place
    inline: bool = False
    #: whether the messages are the entries of a map
    is_map: bool = False


@functools.cache
def _tables() -> Mapping[str, list[list[Any]]]:
    packed = importlib.resources.files(__package__).joinpath("data/protobuf.json.gz")
    tables: Mapping[str, list[list[Any]]] = msgspec.json.decode(
        gzip.decompress(packed.read_bytes())
    )
    return tables


@functools.cache
def _fields_of(message: str) -> tuple[_Field, ...]:
    rows = _tables().get(message)
    if rows is None:
        raise _DataError(f"no such message: {message}")
    definition = facts().definitions.get(message)
    known = (definition or {}).get("properties")
    # of some fields the tables have Go's spelling, such as Webhooks
    spelling = {name.lower(): name for name in known or ()}
    fields = []
    for number, name, kind, *rest in rows:
        target = rest[0] if rest else ""
        single = kind == "m"
        shown = spelling.get(name.lower(), name)
        inline = single and known is not None and shown not in known and name not in _NOT_INLINE
        # the entries of a map are a message within that which has the map
        is_map = kind == "m*" and target.startswith(f"{message}.")
        fields.append(_Field(number, shown, kind[0], kind.endswith("*"), target, inline, is_map))
    return tuple(fields)


#: Message fields that the schema facts may lack although they are not inlined.
_NOT_INLINE = frozenset(("metadata",))


@functools.cache
def _is_bare_list(message: str) -> bool:
    """Tell whether the JSON form of a message is a list: Go's named types of lists of strings."""
    fields = _fields_of(message)
    unknown = message not in facts().definitions
    return unknown and [(field.name, field.kind, field.repeated) for field in fields] == [
        ("items", "s", True)
    ]


class _DataError(Exception):
    """Bytes that are no message of the expected type."""


# -- reading ---------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _DataError("a number is cut short")
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
            raise _DataError(f"wire type {kind}")
        if at + size > end:
            raise _DataError("a field is cut short")
        yield tag >> 3, data[at : at + size]
        at += size


def _signed(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise _DataError("a number was expected")
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(value: int | bytes) -> str:
    if not isinstance(value, bytes):
        raise _DataError("a string was expected")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _DataError("a string is not UTF-8") from None


def decode_message(message: str, data: bytes, depth: int = 0) -> Any:
    """Return the JSON value of a message.

    Raises:
        _DataError: not such a message.
    """
    if depth > _DEPTH_LIMIT:
        raise _DataError("nested too deeply")
    special = _SPECIAL_READERS.get(message)
    if special is not None:
        return special(data)
    if _is_bare_list(message):
        return [_text(value) for _, value in _wire(data)]
    fields = {field.number: field for field in _fields_of(message)}
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


def _value(field: _Field, raw: int | bytes, depth: int) -> Any:
    match field.kind:
        case "s":
            return _text(raw)
        case "i":
            return _signed(raw)
        case "b":
            return bool(_signed(raw))
        case "y":
            return base64.b64encode(raw if isinstance(raw, bytes) else b"").decode()
        case "m" if isinstance(raw, bytes):
            return decode_message(field.message, raw, depth + 1)
    raise _DataError(f"{field.name} has another wire type")


def _entry(message: str, raw: int | bytes, depth: int) -> tuple[str, Any]:
    if not isinstance(raw, bytes):
        raise _DataError("a map's entry was expected")
    parts = dict(_wire(raw))
    key_field, value_field = sorted(_fields_of(message), key=lambda field: field.number)
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
        raise _DataError("a time is out of range") from None
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
    except msgspec.DecodeError:
        raise _DataError("embedded JSON can't be read") from None


_SPECIAL_READERS = {
    _META + "Time": _read_time,
    _META + "MicroTime": _read_micro_time,
    "io.k8s.apimachinery.pkg.api.resource.Quantity": lambda data: _text(
        dict(_wire(data)).get(1, b"")
    ),
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _read_int_or_string,
    _META + "FieldsV1": _read_json,
    "io.k8s.apimachinery.pkg.runtime.RawExtension": _read_json,
}


# -- writing ---------------------------------------------------------------------------------


def _number(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_number(number: int, value: int) -> bytes:
    """Return a field of a message that is a whole number or a truth value."""
    return _number(number << 3) + _number(value)


def put_bytes(number: int, value: bytes) -> bytes:
    """Return a field of a message that is text, bytes or a message."""
    return _number(number << 3 | 2) + _number(len(value)) + value


def encode_message(message: str, value: Any) -> bytes:
    """Return the bytes of a JSON value as a message; fields that it has not are left out."""
    special = _SPECIAL_WRITERS.get(message)
    if special is not None:
        return special(value)
    if _is_bare_list(message):
        return b"".join(put_bytes(1, each.encode()) for each in value)
    parts = []
    for field in _fields_of(message):
        if field.inline:
            inner = encode_message(field.message, value)
            if inner:
                parts.append(put_bytes(field.number, inner))
            continue
        each = value.get(field.name)
        if each is None:
            continue
        if field.is_map:
            key_field, value_field = sorted(_fields_of(field.message), key=lambda f: f.number)
            for key, part in sorted(each.items()):
                body = _encode(key_field, key) + _encode(value_field, part)
                parts.append(put_bytes(field.number, body))
        elif field.repeated:
            parts += [_encode(field, part) for part in each]
        else:
            parts.append(_encode(field, each))
    return b"".join(parts)


def _encode(field: _Field, value: Any) -> bytes:
    match field.kind:
        case "s":
            return put_bytes(field.number, str(value).encode())
        case "i" | "b":
            return put_number(field.number, int(value))
        case "y":
            return put_bytes(field.number, base64.b64decode(value))
    return put_bytes(field.number, encode_message(field.message, value))


def _write_time(value: str) -> bytes:
    moment = datetime.fromisoformat(value)
    body = put_number(1, int(moment.timestamp()))
    return body + (put_number(2, moment.microsecond * 1000) if moment.microsecond else b"")


def _write_int_or_string(value: int | str) -> bytes:
    if isinstance(value, str):
        return put_number(1, 1) + put_bytes(3, value.encode())
    return put_number(1, 0) + put_number(2, value)


def _write_json(value: Any) -> bytes:
    return put_bytes(1, msgspec.json.encode(value))


_SPECIAL_WRITERS = {
    _META + "Time": _write_time,
    _META + "MicroTime": _write_time,
    "io.k8s.apimachinery.pkg.api.resource.Quantity": lambda value: put_bytes(
        1, str(value).encode()
    ),
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _write_int_or_string,
    _META + "FieldsV1": _write_json,
    "io.k8s.apimachinery.pkg.runtime.RawExtension": _write_json,
}


# -- whole bodies ----------------------------------------------------------------------------


def _message_of(version: str, kind: str) -> str | None:
    if kind == "Status":
        return _META + "Status"
    group, _, short = version.rpartition("/")
    name = facts().definition_name(group, short, kind)
    return name if name in _tables() else None


def can_write(resource: APIResource) -> bool:
    """Tell whether answers of this resource can be written in protobuf."""
    return resource.custom is None and _message_of(resource.api_version, resource.kind) is not None


def encode_json(body: bytes) -> bytes:
    """Return a JSON answer in protobuf.

    Raises:
        NotAcceptableError: 406, its kind has no such form here.
    """
    value = msgspec.json.decode(body)
    version, kind = value.get("apiVersion", ""), value.get("kind", "")
    message = _message_of(version, kind)
    if message is None:
        raise refusal.not_acceptable(f"this server has no protobuf form of {kind}")
    type_meta = put_bytes(1, version.encode()) + put_bytes(2, kind.encode())
    return (
        _MAGIC
        + put_bytes(1, type_meta)
        + put_bytes(2, encode_message(message, value))
        + put_bytes(3, b"")
        + put_bytes(4, b"")
    )


def _unwrap(data: bytes) -> tuple[str, str, bytes]:
    if not data.startswith(_MAGIC):
        raise _DataError("the body does not begin as a protobuf body does")
    version, kind, raw = "", "", b""
    for number, value in _wire(data[len(_MAGIC) :]):
        if number == 1 and isinstance(value, bytes):
            parts = dict(_wire(value))
            version, kind = _text(parts.get(1, b"")), _text(parts.get(2, b""))
        elif number == 2 and isinstance(value, bytes):
            raw = value
    return version, kind, raw


def decode_object(data: bytes, resource: APIResource) -> Object:
    """Return the object of a protobuf body, with kind and apiVersion.

    Raises:
        BadRequestError: not such a body.
    """
    try:
        version, kind, raw = _unwrap(data)
        version, kind = version or resource.api_version, kind or resource.kind
        message = _message_of(version, kind)
        if message is None:
            raise refusal.bad_request(
                f'no kind "{kind}" is known in protobuf for version "{version}"'
            )
        value: Object = decode_message(message, raw)
    except _DataError as error:
        raise refusal.bad_request(f"the body can't be read as protobuf: {error}") from None
    return {"apiVersion": version, "kind": kind, **value}


def decode_delete_options(data: bytes) -> Object:
    """Return the options of a delete from a protobuf body.

    Raises:
        ValueError: not such a body.
    """
    try:
        _, _, raw = _unwrap(data)
        value: Object = decode_message(_META + "DeleteOptions", raw)
    except _DataError as error:
        raise ValueError(str(error)) from None
    return value


__all__ = [
    "can_write",
    "decode_delete_options",
    "decode_object",
    "encode_json",
    "put_bytes",
    "put_number",
]
