"""Keeps parts of the previous state that a write does not change."""

from typing import Any

from listwatch.apiserver.kinds.catalog import kind_of
from listwatch.apiserver.kinds.kind import carry
from listwatch.apiserver.kinds.resources import APIResource

Object = dict[str, Any]


def carry_metadata(metadata: Object, before: Object) -> None:
    """Keep metadata that only the server writes, or that an update omits."""
    metadata["resourceVersion"] = before["resourceVersion"]
    metadata.pop("selfLink", None)
    for key in ("uid", "creationTimestamp"):
        if not metadata.get(key):
            metadata[key] = before[key]
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        if key in before and metadata.get(key) is None:
            metadata[key] = before[key]
    for key in ("namespace", "generation", "generateName"):
        if key in before and (key != "generateName" or not metadata.get(key)):
            metadata[key] = before[key]
        elif key == "generation":
            metadata.pop(key, None)


def keep_status_only(resource: APIResource, new: Object, old: Object) -> None:
    """Keep everything except the status and some metadata, for a write to the status."""
    for key in (new.keys() | old.keys()) - {"status", "metadata"}:
        carry(new, old, key)
    metadata, before = new["metadata"], old["metadata"]
    if resource.custom is not None:
        kept = dict(before)
        managed = metadata.get("managedFields")
        if managed is not None:
            kept["managedFields"] = managed
        new["metadata"] = kept
    else:
        left = kind_of(resource).status_leaves
        if left:
            carry(metadata, before, left)


def reset_fields(resource: APIResource, subresource: str) -> tuple[tuple[str, ...], ...]:
    """Return the fields that this subresource cannot own."""
    if subresource == "status":
        if resource.custom is not None:
            return (
                *((key,) for key in ("spec", "data")),
                ("metadata", "labels"),
                ("metadata", "annotations"),
                ("metadata", "finalizers"),
                ("metadata", "ownerReferences"),
            )
        left = kind_of(resource).status_leaves
        return (("spec",), ("metadata", left)) if left == "labels" else (("spec",),)
    if subresource == "" and "status" in resource.subresources:
        return (("status",),)
    return ()
