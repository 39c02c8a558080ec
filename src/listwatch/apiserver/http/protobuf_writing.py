"""Encodes JSON values as protobuf messages.

Builds the encoder of each message once, because lists contain many objects of one type.
"""

import base64
import functools
import struct
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from listwatch.apiserver.http.protobuf_types import (
    EXTENSIONS,
    INTSTR,
    META,
    RESOURCE,
    RUNTIME,
    Field,
    fields_of,
    is_bare_list,
)

Writer = Callable[[Any], bytes]


def _long_number(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT = tuple(map(_long_number, range(4096)))


def _number(value: int) -> bytes:
    return _SHORT[value] if 0 <= value < 4096 else _long_number(value)


def put_number(number: int, value: int) -> bytes:
    """Return a message field with an integer or boolean."""
    return _number(number << 3) + _number(value)


def put_bytes(number: int, value: bytes) -> bytes:
    """Return a message field with a string, bytes or a message."""
    return _number(number << 3 | 2) + _number(len(value)) + value


@functools.cache
def writer_of(message: str) -> Writer:
    """Return the encoder of a message; it omits absent fields."""
    special = _SPECIAL.get(message)
    if special is not None:
        return special
    if is_bare_list(message):
        return lambda value: b"".join([put_bytes(1, each.encode()) for each in value])
    fields = fields_of(message)
    inline = [(field.number, _later(field.message)) for field in fields if field.inline]
    parts = {field.name: _part(field) for field in fields if not field.inline}

    def write(value: Mapping[str, Any]) -> bytes:
        out = []
        for name, each in value.items():
            part = parts.get(name)
            if part is not None and each is not None:
                out.append(part(each))
        for number, writer in inline:
            inner = writer(value)
            if inner:
                out.append(put_bytes(number, inner))
        return b"".join(out)

    return write


def _later(message: str) -> Writer:
    """Return an encoder that looks up a message's fields on first use: types may be recursive."""
    found: Writer | None = None

    def write(value: Any) -> bytes:
        nonlocal found
        if found is None:
            found = writer_of(message)
        return found(value)

    return write


def _part(field: Field) -> Writer:
    """Return the encoder of all values of a field."""
    if field.is_map:
        key, value = (_single(each) for each in sorted(fields_of(field.message), key=_by_number))
        tag = _number(field.number << 3 | 2)

        def write_entries(entries: Mapping[str, Any]) -> bytes:
            out: list[bytes] = []
            for name in sorted(entries):
                body = key(name) + value(entries[name])
                out += (tag, _number(len(body)), body)
            return b"".join(out)

        return write_entries
    single = _single(field)
    return (lambda values: b"".join(map(single, values))) if field.repeated else single


def _by_number(field: Field) -> int:
    return field.number


def _single(field: Field) -> Writer:
    """Return the encoder of one value of a field."""
    if field.kind in "ib":
        tag = _number(field.number << 3)
        return lambda value: tag + _number(int(value))
    if field.kind == "d":
        tag = _number(field.number << 3 | 1)
        return lambda value: tag + struct.pack("<d", value)
    tag = _number(field.number << 3 | 2)
    content: Writer
    if field.kind == "s":
        content = _text
    elif field.kind == "y":
        content = base64.b64decode
    else:
        content = _later(field.message)

    def write(value: Any) -> bytes:
        body = content(value)
        return tag + _number(len(body)) + body

    return write


def _text(value: object) -> bytes:
    return str(value).encode()


def _time(value: str) -> bytes:
    moment = datetime.fromisoformat(value)
    body = put_number(1, int(moment.timestamp()))
    return body + (put_number(2, moment.microsecond * 1000) if moment.microsecond else b"")


def _int_or_string(value: int | str) -> bytes:
    if isinstance(value, str):
        return put_number(1, 1) + put_bytes(3, value.encode())
    return put_number(1, 0) + put_number(2, value)


def _json(value: Any) -> bytes:
    return put_bytes(1, msgspec.json.encode(value))


def _schema(value: Any) -> bytes:
    return writer_of(EXTENSIONS + "JSONSchemaProps")(value)


def _schema_or_list(value: Any) -> bytes:
    if isinstance(value, list):
        return b"".join([put_bytes(2, _schema(each)) for each in value])
    return put_bytes(1, _schema(value))


def _schema_or_bool(value: Any) -> bytes:
    if isinstance(value, bool):
        return put_number(1, value)
    return put_number(1, 1) + put_bytes(2, _schema(value))


def _schema_or_texts(value: Any) -> bytes:
    if isinstance(value, list):
        return b"".join([put_bytes(2, each.encode()) for each in value])
    return put_bytes(1, _schema(value))


_SPECIAL: Mapping[str, Writer] = {
    META + "Time": _time,
    META + "MicroTime": _time,
    META + "FieldsV1": _json,
    RESOURCE + "Quantity": lambda value: put_bytes(1, _text(value)),
    INTSTR + "IntOrString": _int_or_string,
    RUNTIME + "RawExtension": _json,
    EXTENSIONS + "JSON": _json,
    EXTENSIONS + "JSONSchemaPropsOrArray": _schema_or_list,
    EXTENSIONS + "JSONSchemaPropsOrBool": _schema_or_bool,
    EXTENSIONS + "JSONSchemaPropsOrStringArray": _schema_or_texts,
}
