"""Pack the field numbers of the protobuf form of Kubernetes' types into the package data.

Usage: python tools/pack_protobuf_facts.py DIRECTORY...

Each DIRECTORY is a checkout of a repository with `generated.proto` files of stable versions:
kubernetes/api, kubernetes/apimachinery, kubernetes/apiextensions-apiserver and
kubernetes/kube-aggregator.
"""

import gzip
import json
import re
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_TARGET = _ROOT / "src/listwatch/apiserver/http/data/protobuf.json.gz"
_SCALARS = {
    "string": "s",
    "int32": "i",
    "int64": "i",
    "uint32": "i",
    "uint64": "i",
    "bool": "b",
    "bytes": "y",
    "double": "d",
}
_STABLE = re.compile(r"\.(v\d+|resource|intstr|runtime)$")
_PACKAGE = re.compile(r"^package (\S+);", re.MULTILINE)
_MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(
    r"^\s*(?:(optional|repeated)\s+([.\w]+)|map<string, ([.\w]+)>)\s+(\w+)\s*=\s*(\d+)",
    re.MULTILINE,
)


def _name(proto: str) -> str:
    """Return the OpenAPI name of a message."""
    return proto.lstrip(".").replace("k8s.io.", "io.k8s.", 1).replace("_", "-")


def _kind(word: str, package: str) -> tuple[str, str]:
    """Return the letter of a field's type, and its message."""
    if word in _SCALARS:
        return _SCALARS[word], ""
    full = word if word.startswith(".") else f"{package}.{word}"
    return "m", _name(full)


def _row(number: str, name: str, word: str, package: str) -> list[object]:
    kind, target = _kind(word, package)
    return [int(number), name, kind, *([target] if target else [])]


def _messages(text: str, package: str) -> dict[str, list[list[object]]]:
    """Return the fields of each message in a file; a map is a list of entries."""
    found: dict[str, list[list[object]]] = {}
    for message, body in _MESSAGE.findall(text):
        full = _name(f"{package}.{message}")
        rows: list[list[object]] = []
        for label, word, value, name, number in _FIELD.findall(body):
            if value:
                entry = f"{full}.{name[0].upper()}{name[1:]}Entry"
                found[entry] = [[1, "key", "s"], _row("2", "value", value, package)]
                rows.append([int(number), name, "m*", entry])
                continue
            row = _row(number, name, word, package)
            if label == "repeated":
                row[2] = f"{row[2]}*"
            rows.append(row)
        found[full] = sorted(rows, key=lambda row: int(str(row[0])))
    return found


def main() -> None:
    """Write the package data; the result depends only on the files."""
    found: dict[str, list[list[object]]] = {}
    for directory in sys.argv[1:]:
        for path in sorted(Path(directory).rglob("generated.proto")):
            text = re.sub(r"//.*", "", path.read_text())
            package = _PACKAGE.findall(text)
            if package and _STABLE.search(package[0]) and package[0].startswith("k8s.io."):
                found |= _messages(text, package[0])
    packed = json.dumps(found, separators=(",", ":"), sort_keys=True)
    _TARGET.write_bytes(gzip.compress(packed.encode(), mtime=0))
    size = _TARGET.stat().st_size
    print(f"{_TARGET}: {len(found)} messages, {size} bytes")


if __name__ == "__main__":
    main()
