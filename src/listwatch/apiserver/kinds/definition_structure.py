"""The conditions for a structural schema of a custom resource definition (KEP-1111).

The rules are those of `apiextensions-apiserver/pkg/apiserver/schema`, `validation.go` and
`complete.go`: every value has a type, and schemas under allOf, anyOf, oneOf and not only restrict
values that are described outside of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from listwatch.cel.errors import EvaluationError
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, required

Raw = Mapping[str, Any]

OPEN = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
_EITHER = "x-kubernetes-int-or-string"
_JUNCTORS = ("allOf", "anyOf", "oneOf")
_EITHER_TYPES = [{"type": "integer"}, {"type": "string"}]
#: Keywords that only a schema outside of allOf, anyOf, oneOf and not may have, with the message.
_DESCRIBING: Mapping[str, str] = {
    "type": "must be empty to be structural",
    "additionalProperties": "must be undefined to be structural",
    "default": "must be undefined to be structural",
    "title": "must be empty to be structural",
    "description": "must be empty to be structural",
    "nullable": "must be false to be structural",
    OPEN: "must be false to be structural",
    EMBEDDED: "must be false to be structural",
    _EITHER: "must be false to be structural",
    "x-kubernetes-list-map-keys": "must be empty to be structural",
    "x-kubernetes-list-type": "must be undefined to be structural",
    "x-kubernetes-map-type": "must be undefined to be structural",
    "x-kubernetes-validations": "must be empty to be structural",
}
#: Keywords that no structural schema can have; a schema with them is not converted.
UNSUPPORTED = (
    "id",
    "additionalItems",
    "patternProperties",
    "definitions",
    "dependencies",
    "$ref",
)


def inner(raw: Raw, key: str) -> Raw | None:
    """Return the schema under a key of a schema; None if there is none."""
    found = raw.get(key)
    return found if isinstance(found, Mapping) else None


def named(raw: Raw) -> Iterator[tuple[str, Raw]]:
    """Yield the names and schemas of the properties of a schema."""
    for name, part in (inner(raw, "properties") or {}).items():
        if isinstance(part, Mapping):
            yield name, part


def junctions(raw: Raw) -> Iterator[tuple[str, Raw]]:
    """Yield the schemas that a schema combines, each with its path below it."""
    for key in _JUNCTORS:
        found = raw.get(key)
        for index, part in enumerate(found if isinstance(found, list) else ()):
            if isinstance(part, Mapping):
                yield f"{key}[{index}]", part
    part = inner(raw, "not")
    if part is not None:
        yield "not", part


def can_be_structural(raw: Raw) -> bool:
    """Return whether a schema has only keywords that a structural one can have."""
    if any(raw.get(key) for key in UNSUPPORTED) or isinstance(raw.get("items"), list):
        return False
    within = [inner(raw, "items"), inner(raw, "additionalProperties")]
    within += [part for _, part in (*named(raw), *junctions(raw))]
    return all(can_be_structural(part) for part in within if part is not None)


def structure_causes(raw: Raw, path: str) -> list[Cause]:
    """Return why a schema and those within it are not structural."""
    return [*_invariants(raw, path, "root"), *_completeness(raw, raw, path, path)]


_TYPELESS = {
    "root": "must not be empty at the root",
    "items": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}


def _invariants(raw: Raw, path: str, level: str) -> Iterator[Cause]:
    kind = raw.get("type")
    items, extra = inner(raw, "items"), raw.get("additionalProperties")
    if kind == "array" and items is None:
        yield required(f"{path}.items", "must be specified")
    if items is not None:
        yield from _invariants(items, f"{path}.items", "items")
    for name, part in named(raw):
        yield from _invariants(part, f"{path}.properties[{name}]", "field")
    if extra is not None and level == "root":
        yield forbidden_value(f"{path}.additionalProperties", "must not be used at the root")
    if isinstance(extra, Mapping):
        yield from _invariants(extra, f"{path}.additionalProperties", "field")
    if raw.get(_EITHER):
        for key in (OPEN, EMBEDDED):
            if raw.get(key):
                why = f"must be false if {_EITHER} is true"
                yield invalid_value(f"{path}.{key}", True, why)
    yield from _restrictions(raw, path)
    yield from _kind(raw, path, level)
    yield from _metadata(raw, path, level)


def _kind(raw: Raw, path: str, level: str) -> Iterator[Cause]:
    kind, where = raw.get("type"), f"{path}.type"
    if raw.get(EMBEDDED):
        why = f"must be object if {EMBEDDED} is true"
        if kind != "object":
            yield invalid_value(where, kind, why) if kind else required(where, why)
        if raw.get("additionalProperties") is not None:
            why = f"must not be used if {EMBEDDED} is set"
            yield forbidden_value(f"{path}.additionalProperties", why)
        if not raw.get(OPEN) and not raw.get("properties"):
            why = f"must not be empty if {EMBEDDED} is true without {OPEN}"
            yield required(f"{path}.properties", why)
    elif not kind and not raw.get(_EITHER) and not raw.get(OPEN):
        yield required(where, _TYPELESS[level])
    if level == "root" and kind and kind != "object":
        yield invalid_value(where, kind, "must be object at the root")


def _metadata(raw: Raw, path: str, level: str) -> Iterator[Cause]:
    if level != "root" and not raw.get(EMBEDDED):
        return
    for name, part in named(raw):
        where = f"{path}.properties[{name}]"
        wanted = {"kind": "string", "apiVersion": "string", "metadata": "object"}.get(name)
        if wanted is not None and part.get("type") != wanted:
            yield invalid_value(f"{where}.type", part.get("type", ""), f"must be {wanted}")
        if name == "metadata" and level == "root":
            fields = frozenset(inner(part, "properties") or ())
            others = {key for key, value in part.items() if value} - {"type", "default"}
            if not fields <= {"name", "generateName"} or others - {"properties"}:
                why = (
                    "must not specify anything other than name and generateName, but metadata is "
                    "implicitly specified"
                )
                yield forbidden_value(where, why)


def _restrictions(raw: Raw, path: str, *, either: bool = True) -> Iterator[Cause]:
    """Yield the violations in combined schemas; `either` allows a choice between two types."""
    for key, part in junctions(raw):
        if either and key.startswith("anyOf") and raw.get("anyOf") == _EITHER_TYPES:
            continue
        yield from _nested(part, f"{path}.{key}", either=either and key == "allOf[0]")
    pattern = raw.get("pattern")
    if pattern:
        from listwatch.cel.patterns import compile_pattern  # noqa: PLC0415 - as in schema.structural

        try:
            compile_pattern(pattern)
        except EvaluationError as error:
            why = f"must be a valid regular expression, but isn't: {error}"
            yield invalid_value(f"{path}.pattern", pattern, why)


def _nested(raw: Raw, path: str, *, either: bool = False) -> Iterator[Cause]:
    yield from _restrictions(raw, path, either=either)
    items = inner(raw, "items")
    if items is not None:
        yield from _nested(items, f"{path}.items")
    for name, part in named(raw):
        where = f"{path}.properties[{name}]"
        yield from _nested(part, where)
        if name == "metadata":
            yield forbidden_value(where, "must not be specified in a nested context")
    for key, why in _DESCRIBING.items():
        if raw.get(key) or (
            key in {"additionalProperties", "default"} and raw.get(key) is not None
        ):
            yield forbidden_value(f"{path}.{key}", why)


def _completeness(
    raw: Raw, described: Raw | None, path: str, place: str, *, nested: bool = False
) -> Iterator[Cause]:
    """Yield the restricted places that no schema outside describes."""
    if described is None:
        yield required(path, f"because it is defined in {place}")
        return
    for key, part in junctions(raw):
        yield from _completeness(part, described, path, f"{place}.{key}", nested=True)
    items = inner(raw, "items")
    if items is not None:
        described_items = inner(described, "items")
        yield from _completeness(
            items, described_items, f"{path}.items", f"{place}.items", nested=nested
        )
    known = dict(named(described))
    for name, part in named(raw):
        here = f"properties[{name}]"
        yield from _completeness(
            part, known.get(name), f"{path}.{here}", f"{place}.{here}", nested=nested
        )
    extra = None if nested else inner(raw, "additionalProperties")
    if extra is not None:
        here = "additionalProperties"
        yield from _completeness(extra, extra, f"{path}.{here}", f"{place}.{here}")
