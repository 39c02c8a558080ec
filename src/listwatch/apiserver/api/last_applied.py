"""Migrates from client-side to server-side apply: fields and owners from kubectl's annotation.

The rules are those of `lastappliedmanager.go` and `lastappliedupdater.go` in
apimachinery/pkg/util/managedfields/internal.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.field_sets import (
    Fields,
    applied_fields,
    difference_of_states,
    minus,
)

Object = dict[str, Any]

#: The only manager to which the annotation applies.
MANAGER = "kubectl"
_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
#: Maximum bytes of all annotations together.
_LIMIT = 256 * 1024
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def applied_before(live: Mapping[str, Any], resource: APIResource) -> Fields:
    """Return the fields that client-side apply set and nobody has changed since.

    They cause no conflicts. Without a valid annotation of the same version there are none.
    """
    text = _annotations(live).get(_ANNOTATION)
    if not text:
        return {}
    try:
        last = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    if not isinstance(last, dict) or last.pop("apiVersion", None) != resource.api_version:
        return {}
    last.pop("kind", None)
    changed, removed = difference_of_states(last, live, resource.schema)
    return minus(minus(applied_fields(last, resource.schema), changed), removed)


def renew(obj: Object, wanted: Mapping[str, Any], resource: APIResource) -> None:
    """Update an object's annotation to the applied configuration, in place, if it has one."""
    annotations = _annotations(obj)
    if not annotations.get(_ANNOTATION):
        return
    metadata = dict(wanted["metadata"])
    if metadata.get("annotations"):
        kept = {key: each for key, each in metadata["annotations"].items() if key != _ANNOTATION}
        metadata["annotations"] = kept
    whole = {"apiVersion": resource.api_version, "kind": resource.kind, **wanted}
    text = _encode_sorted({**whole, "metadata": metadata}).decode() + "\n"
    annotations[_ANNOTATION] = text
    if sum(len(key) + len(each.encode()) for key, each in annotations.items()) > _LIMIT:
        del annotations[_ANNOTATION]


def _annotations(obj: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = (obj.get("metadata") or {}).get("annotations") or {}
    return found
