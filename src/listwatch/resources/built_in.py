"""The structural schemas of Kubernetes' own types, from the packed facts."""

from collections.abc import Mapping
from typing import Any

from listwatch.resources.errors import ResourceTypeError
from listwatch.schema.facts import facts


class UnknownTypeError(ResourceTypeError):
    """Kubernetes has no type of this name, or several."""


# If several groups have a type, prefer the one that other types refer to.
_FIRST = ("io.k8s.api.core.v1.", "io.k8s.apimachinery.pkg.apis.meta.v1.", "io.k8s.api.apps.v1.")
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_EITHER: Mapping[str, Any] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
# The format that `resource.Quantity` accepts (apimachinery, pkg/api/resource/quantity.go).
_QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|"
    r"([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_KEPT = (
    "enum",
    "format",
    "maximum",
    "minimum",
    "pattern",
    "required",
    "type",
    "x-kubernetes-map-type",
)
_FREE_FORM: Mapping[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}


def built_in_schema(name: str) -> dict[str, Any]:
    """Return the structural schema of a type, without descriptions.

    Args:
        name: the last part of its name, such as "PodSpec", or the full name, such as
            "io.k8s.api.core.v1.PodSpec".

    Raises:
        UnknownTypeError: there is no such type, several have the name, or it is recursive.
    """
    return _schema(_full_name(name), ())


def _full_name(name: str) -> str:
    definitions = facts().definitions
    if name in definitions:
        return name
    found = [full for full in definitions if full.rpartition(".")[2] == name]
    for prefix in _FIRST:
        if prefix + name in found:
            return prefix + name
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownTypeError(f"several types are named {name}: write {' or '.join(found)}")
    raise UnknownTypeError(f"Kubernetes has no type {name!r}")


def _schema(name: str, above: tuple[str, ...]) -> dict[str, Any]:
    if name == _QUANTITY:
        return {**_EITHER, "pattern": _QUANTITY_PATTERN}
    if name == _INT_OR_STRING:
        return dict(_EITHER)
    if name in above:
        raise UnknownTypeError(f"{name} is recursive, which a schema can't express")
    known = facts()
    return _node(known.definitions[name], known.defaults.get(name, {}), (*above, name))


def _node(
    raw: Mapping[str, Any], defaults: Mapping[str, Any], above: tuple[str, ...]
) -> dict[str, Any]:
    if "$ref" in raw:
        return {**_schema(raw["$ref"], above), **{k: raw[k] for k in _KEPT if k in raw}}
    made = {key: raw[key] for key in _KEPT if key in raw}
    if isinstance(raw.get("properties"), Mapping):
        made["properties"] = {
            field: _node(part, {}, above) for field, part in raw["properties"].items()
        }
        for field, default in defaults.items():
            # An empty default only describes how Go encodes an unset field.
            if default and field in made["properties"]:
                made["properties"][field]["default"] = default
    elif isinstance(raw.get("additionalProperties"), Mapping):
        made["additionalProperties"] = _node(raw["additionalProperties"], {}, above)
    elif raw.get("type") == "object" or "type" not in raw:
        return {**made, **_FREE_FORM}
    if "items" in raw:
        made["items"] = _node(raw["items"], {}, above)
        made |= _list_type(raw, made["items"])
    return made


def _list_type(raw: Mapping[str, Any], items: Mapping[str, Any]) -> dict[str, Any]:
    kind = raw.get("x-kubernetes-list-type")
    if kind != "map":
        return {} if kind is None else {"x-kubernetes-list-type": kind}
    keys = raw["x-kubernetes-list-map-keys"]
    fields = items.get("properties", {})
    if all(k in items.get("required", ()) or "default" in fields.get(k, {}) for k in keys):
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    return {}  # in a definition, keys must be required or have a default; here some are not
