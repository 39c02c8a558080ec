"""Pack the field numbers of the protobuf form of Kubernetes' types into the package data.

Usage: python tools/pack_protobuf_facts.py KUBECTL

KUBECTL is a kubectl binary: it carries the descriptors of all types that it can send.
"""

import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_TARGET = _ROOT / "src/listwatch/apiserver/http/data/protobuf.json.gz"
_MAGIC = re.compile(re.escape(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"))
_TYPES = {3: "i", 4: "i", 5: "i", 13: "i", 8: "b", 9: "s", 11: "m", 12: "y", 1: "d"}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
        elif tag & 7 == 2:
            size, at = _varint(data, at)
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {tag & 7} in a descriptor")


def _text(value: int | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _name(proto: str) -> str:
    return proto.lstrip(".").replace("k8s.io.", "io.k8s.", 1)


def _message(data: bytes, package: str, found: dict[str, list[list[object]]], outer: str) -> None:
    name, rows = "", []
    nested = []
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2 and isinstance(value, bytes):
            field = dict(_fields(value))
            kind = _TYPES[int(field[5])]
            row: list[object] = [field[3], _text(field[1]), kind]
            if field[4] == 3:
                row[2] = f"{kind}*"
            if kind == "m":
                row.append(_name(_text(field[6])))
            rows.append(row)
        elif number == 3 and isinstance(value, bytes):
            nested.append(value)
    full = f"{outer}.{name}"
    found[_name(full)] = rows
    for each in nested:
        _message(each, package, found, full)


def main() -> None:
    """Write the package data; the result depends on the binary alone."""
    binary = Path(sys.argv[1]).read_bytes()
    found: dict[str, list[list[object]]] = {}
    for match in _MAGIC.finditer(binary):
        try:
            data = zlib.decompressobj(31).decompress(binary[match.start() : match.start() + 10**6])
        except zlib.error:
            continue
        package, messages = "", []
        for number, value in _fields(data):
            if number == 2:
                package = _text(value)
            elif number == 4 and isinstance(value, bytes):
                messages.append(value)
        stable = re.search(r"\.(v\d+|resource|intstr|runtime)$", package)
        if package.startswith("k8s.io.") and stable and "metrics" not in package:
            for each in messages:
                _message(each, package, found, package)
    text = json.dumps(found, separators=(",", ":"), sort_keys=True)
    _TARGET.write_bytes(gzip.compress(text.encode(), mtime=0))
    size = _TARGET.stat().st_size
    print(f"{_TARGET}: {len(found)} messages, {size} bytes")


if __name__ == "__main__":
    main()
