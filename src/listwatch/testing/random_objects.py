"""Random manifests of a resource type, as hypothesis strategies."""

import base64
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from hypothesis import strategies as st

from listwatch.resources.checking import Checker
from listwatch.resources.custom_resource import custom_resource_of, definition

Node: TypeAlias = Mapping[str, Any]
Values: TypeAlias = st.SearchStrategy[Any]

#: Optional fields of an object at once, so that large types give small objects.
_OPTIONAL: Final = 4
#: Below this depth, objects have only their required fields.
_DEPTH: Final = 6
_INT64: Final = 2**63
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
#: Fields that an embedded object must have.
_NAMED: Final = frozenset({"apiVersion", "kind", "metadata"})


def random_manifests(cls: type) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of the manifests that a server accepts; see `manifests`."""
    known = custom_resource_of(cls)
    checker = Checker(definition(cls))
    properties = known.schema["properties"]
    body = {name: node for name, node in properties.items() if name not in _NAMED}

    def whole(name: str, values: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": name}
        if known.resource.namespaced:
            metadata["namespace"] = "default"
        return {
            "apiVersion": known.resource.api_version,
            "kind": known.resource.kind,
            "metadata": metadata,
            **values,
        }

    names = st.from_regex(r"[a-z]([a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
    values = _object({**known.schema, "properties": body}, 0)
    return st.builds(whole, names, values).filter(lambda value: not checker.check(value))


def _value(node: Node, depth: int) -> Values:
    found = _not_null(node, depth)
    return st.none() | found if node.get("nullable") else found


def _not_null(node: Node, depth: int) -> Values:
    if "enum" in node:
        return st.sampled_from([one for one in node["enum"] if one is not None])
    if node.get("x-kubernetes-int-or-string"):
        return _number(node) | _text(node)
    if node.get("x-kubernetes-embedded-resource"):
        return _embedded(node, depth)
    match node.get("type"):
        case "string":
            return _text(node)
        case "integer" | "number":
            return _number(node)
        case "boolean":
            return st.booleans()
        case "array":
            return _list(node, depth)
        case "object":
            return _object(node, depth)
    return _anything()


def _anything() -> Values:
    scalars = st.booleans() | st.integers(-9, 9) | st.text(_characters(), max_size=3)
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_keys(), inner, max_size=2),
        max_leaves=4,
    )


def _characters() -> Values:
    return st.characters(codec="utf-8")


def _keys() -> Values:
    return st.text(_characters(), min_size=1, max_size=4)


def _embedded(node: Node, depth: int) -> Values:
    named = st.fixed_dictionaries(
        {
            "apiVersion": st.just("v1"),
            "kind": st.just("ConfigMap"),
            "metadata": st.builds(dict, name=st.sampled_from(["a", "b"])),
        }
    )
    rest = {k: v for k, v in node.get("properties", {}).items() if k not in _NAMED}
    return st.builds(
        lambda head, tail: {**tail, **head},
        named,
        _object({**node, "properties": rest}, depth),
    )


def _object(node: Node, depth: int) -> Values:
    properties: Mapping[str, Node] = node.get("properties") or {}
    extra = node.get("additionalProperties")
    if not properties:
        if isinstance(extra, Mapping):
            return st.dictionaries(
                _keys(),
                _value(extra, depth + 1),
                min_size=node.get("minProperties", 0),
                max_size=min(node.get("maxProperties", 3), 3),
            )
        if extra or node.get(_PRESERVE):
            return st.dictionaries(_keys(), _anything(), max_size=2)
        return st.just({})
    required = [name for name in properties if name in node.get("required", ())]
    optional = [name for name in properties if name not in required]

    def of(chosen: list[str]) -> Values:
        return st.fixed_dictionaries(
            {name: _value(properties[name], depth + 1) for name in [*required, *chosen]}
        )

    if depth >= _DEPTH or not optional:
        return of([])
    some = st.lists(st.sampled_from(optional), max_size=_OPTIONAL, unique=True)
    return some.flatmap(of)


def _list(node: Node, depth: int) -> Values:
    least, most = node.get("minItems", 0), node.get("maxItems", 3)
    by: Callable[[Any], Any] | None = None
    keys = node.get("x-kubernetes-list-map-keys")
    if keys:
        defaults = {key: node["items"]["properties"][key].get("default") for key in keys}
        by = lambda item: _json({key: item.get(key, defaults[key]) for key in keys})  # noqa: E731 - as short as it gets
    elif node.get("x-kubernetes-list-type") == "set" or node.get("uniqueItems"):
        by = _json
    return st.lists(
        _value(node.get("items") or {}, depth + 1),
        min_size=least,
        max_size=max(least, min(most, 3)),
        unique_by=by,
    )


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _number(node: Node) -> Values:
    least, most = node.get("minimum"), node.get("maximum")
    step = node.get("multipleOf")
    if node.get("type") == "number" and step is None:
        # Servers keep numbers as 64-bit floats or integers.
        return st.floats(
            min_value=least,
            max_value=most,
            exclude_min=bool(node.get("exclusiveMinimum")) and least is not None,
            exclude_max=bool(node.get("exclusiveMaximum")) and most is not None,
            allow_nan=False,
            allow_infinity=False,
        )
    bound = 2**31 if node.get("format") == "int32" else _INT64
    low = -bound if least is None else int(least) + bool(node.get("exclusiveMinimum"))
    high = bound - 1 if most is None else int(most) - bool(node.get("exclusiveMaximum"))
    if step is None:
        return st.integers(low, high)
    return st.integers(-(-low // int(step) or 0), high // int(step)).map(
        lambda number: number * int(step)
    )


def _text(node: Node) -> Values:
    least, most = node.get("minLength", 0), node.get("maxLength")
    if node.get("pattern"):
        texts = st.from_regex(node["pattern"], alphabet=_characters())
    elif node.get("format") in _FORMATS:
        texts = _FORMATS[node["format"]]
    else:
        return st.text(_characters(), min_size=least, max_size=most or least + 5)
    if most is None:
        most = 253
    return texts.filter(lambda text: least <= len(text) <= most)


def _durations() -> Values:
    return st.builds("{}h{}m{}s".format, st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))


def _times() -> Values:
    return st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1)).map(  # noqa: DTZ001 - the zone is added below
        lambda time: f"{time.replace(microsecond=0).isoformat()}Z"
    )


_FORMATS: Final[Mapping[str, Values]] = {
    "byte": st.binary(max_size=6).map(lambda data: base64.b64encode(data).decode()),
    "date": st.dates(dt.date(1970, 1, 1), dt.date(2100, 1, 1)).map(str),
    "date-time": _times(),
    "duration": _durations(),
    "email": st.just("jane@example.com"),
    "hostname": st.from_regex(r"[a-z]{1,9}(\.[a-z]{1,9})?", fullmatch=True),
    "ipv4": st.ip_addresses(v=4).map(str),
    "ipv6": st.ip_addresses(v=6).map(str),
    "uri": st.from_regex(r"https://[a-z]{1,9}/[a-z]{0,9}", fullmatch=True),
    "uuid": st.uuids().map(str),
}
