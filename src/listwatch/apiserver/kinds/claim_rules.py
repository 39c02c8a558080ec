"""The rules of claim specs, also in claim templates.

They are those of `ValidatePersistentVolumeClaimSpec` in `pkg/apis/core/validation`.
"""

from collections.abc import Iterable

from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.rules import (
    label,
    label_selector,
    quantity,
    subdomain,
    validate_annotations,
    validate_labels,
)
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required

#: Access modes, with their short forms in tables.
MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_OWN_GROUP = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"


def check_claim_spec(spec: View, path: str, *, old_group: bool = False) -> list[Cause]:
    """Return the rules that a claim's spec violates.

    Args:
        spec: the spec.
        path: its path.
        old_group: the claim had an API group before, so any group is allowed.
    """
    causes = check_modes(spec.get("accessModes") or (), f"{path}.accessModes", claim=True)
    causes += label_selector(spec.get("selector"), f"{path}.selector")
    requests = (spec.get("resources") or {}).get("requests") or {}
    where, storage = f"{path}.resources[storage]", requests.get("storage")
    if storage is None:
        causes.append(required(where))
    elif quantity(storage) <= 0:
        causes.append(invalid_value(where, storage, "must be greater than zero"))
    for key in ("storageClassName", "volumeAttributesClassName"):
        if spec.get(key):
            causes += subdomain(f"{path}.{key}", spec[key])
    source, newer = spec.get("dataSource"), spec.get("dataSourceRef")
    if source is not None:
        causes += _check_source(source, f"{path}.dataSource", old_group=old_group)
    if newer is not None:
        causes += _check_source(newer, f"{path}.dataSourceRef", old_group=old_group)
        if newer.get("namespace"):
            causes += label(f"{path}.dataSourceRef.namespace", newer["namespace"])
    if source is not None and newer is not None:
        if newer.get("namespace"):
            why = "may not be specified when dataSourceRef.namespace is specified"
            causes.append(invalid_value(path, f"{path}.dataSource", why))
        elif any(source.get(key) != newer.get(key) for key in ("apiGroup", "kind", "name")):
            causes.append(invalid_value(path, f"{path}.dataSource", "must match dataSourceRef"))
    return causes


def check_modes(modes: Iterable[str], path: str, *, claim: bool = False) -> list[Cause]:
    """Return the rules that access modes violate."""
    modes = list(modes)
    causes = []
    if not modes:
        causes.append(required(path, "at least 1 access mode is required" if claim else ""))
    causes += [not_supported(path, mode, sorted(MODES)) for mode in modes if mode not in MODES]
    known = {mode for mode in modes if mode in MODES}
    if "ReadWriteOncePod" in known and len(known) > 1:
        why = "may not use ReadWriteOncePod with other access modes"
        causes.append(forbidden_value(path, why))
    return causes


def _check_source(source: View, path: str, *, old_group: bool) -> list[Cause]:
    causes = [required(f"{path}.{key}") for key in ("name", "kind") if not source.get(key)]
    group, kind = source.get("apiGroup") or "", source.get("kind", "")
    if not group and kind != "PersistentVolumeClaim":
        causes.append(invalid_value(path, kind, _OWN_GROUP))
    if group and not old_group:
        causes += subdomain(f"{path}.apiGroup", group)
    return causes


_TEMPLATE_METADATA = frozenset(("annotations", "labels"))


def check_claim_template(template: View, path: str) -> list[Cause]:
    """Return the rules that a claim template in a pod violates."""
    metadata, where = template.get("metadata") or {}, f"{path}.metadata"
    causes = validate_annotations(metadata.get("annotations"), f"{where}.annotations")
    causes += validate_labels(metadata.get("labels"), f"{where}.labels")
    causes += [
        forbidden_value(f"{where}.{key}", "cannot be set")
        for key, value in metadata.items()
        if key not in _TEMPLATE_METADATA and value
    ]
    return causes + check_claim_spec(template.get("spec") or {}, f"{path}.spec")
