"""Finds values that are outside their type's enumeration, from the facts."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from listwatch.schema.causes import Cause, not_supported, required
from listwatch.schema.facts import Form, Schema, facts

_Check = Callable[[Any, str, list[Cause]], None]

#: Fields whose values have other rules, or are not checked, by their type.
_OTHERWISE = frozenset(
    (
        ("DaemonSetUpdateStrategy", "type"),
        ("DeploymentStrategy", "type"),
        ("EndpointSlice", "addressType"),
        ("HTTPIngressPath", "pathType"),
        ("JobSpec", "podReplacementPolicy"),
        ("NetworkPolicySpec", "policyTypes"),
        ("NodeSelectorRequirement", "operator"),
        ("PersistentVolumeClaimSpec", "accessModes"),
        ("PersistentVolumeSpec", "accessModes"),
        ("ResourceQuotaSpec", "scopes"),
        ("ScopedResourceSelectorRequirement", "operator"),
        ("ScopedResourceSelectorRequirement", "scopeName"),
        ("ServiceSpec", "externalTrafficPolicy"),
        ("ServiceSpec", "internalTrafficPolicy"),
        ("ServiceSpec", "ipFamilies"),
        ("ServiceSpec", "ipFamilyPolicy"),
        ("StatefulSetSpec", "podManagementPolicy"),
        ("StatefulSetUpdateStrategy", "type"),
        ("StorageClass", "reclaimPolicy"),
        ("Taint", "effect"),
        ("Toleration", "effect"),
        ("Toleration", "operator"),
        ("VolumeMount", "mountPropagation"),
    )
)
#: Fields for which an empty value counts as missing.
_WANTED = frozenset(("preemptionPolicy",))
#: The server's order of the values, if it is not alphabetical.
_ORDER: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("Container", "terminationMessagePolicy"): ("File", "FallbackToLogsOnError"),
}


def unsupported_values(value: Mapping[str, Any], definition: str) -> list[Cause]:
    """Return the values within an object that are outside their type's enumeration.

    Args:
        value: the object; its status is not checked.
        definition: the name of its type, such as `io.k8s.api.core.v1.Pod`.
    """
    causes: list[Cause] = []
    check = _check_of(definition)
    if check is not None:
        check(value, "", causes)
    return causes


@functools.lru_cache(maxsize=256)
def _check_of(definition: str) -> _Check | None:
    return _struct(facts().definition(definition), ())


def _struct(schema: Schema, above: tuple[str, ...]) -> _Check | None:
    """Return the check of a type's fields; recursive types are checked once."""
    if schema.go_name in above:
        return None
    inside = (*above, schema.go_name)
    fields: list[tuple[str, _Check]] = []
    for name, field in schema.fields.items():
        if (schema.go_name, name) in _OTHERWISE or (not above and name == "status"):
            continue
        check = _field(schema, name, field, inside)
        if check is not None:
            fields.append((name, check))
    if not fields:
        return None

    def check_struct(value: Any, path: str, causes: list[Cause]) -> None:
        for name, check in fields:
            if name in value:
                check(value[name], f"{path}.{name}" if path else name, causes)

    return check_struct


def _field(owner: Schema, name: str, field: Schema, above: tuple[str, ...]) -> _Check | None:
    if field.form is Form.STRUCT:
        return _struct(field, above)
    if (field.form is Form.LIST or field.form is Form.MAP) and field.item is not None:
        item = _field(owner, name, field.item, above)
        if item is None:
            return None
        return _each(item) if field.form is Form.LIST else None
    if not field.enum:
        return None
    known = _ORDER.get((owner.go_name, name), field.enum)
    # a separate rule checks that a value is present
    needed = name in owner.required

    def check_value(value: Any, path: str, causes: list[Cause]) -> None:
        if value in known:
            return
        if value or (name not in _WANTED and not needed):
            causes.append(not_supported(path, value, known))
        elif not needed:
            causes.append(required(path))

    return check_value


def _each(item: _Check) -> _Check:
    def check_list(value: Any, path: str, causes: list[Cause]) -> None:
        for index, each in enumerate(value or ()):
            item(each, f"{path}[{index}]", causes)

    return check_list
