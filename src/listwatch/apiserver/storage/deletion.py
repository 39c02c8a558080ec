"""Deletes objects: at once, after a grace period, or when their finalizers are gone."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.admission.budgets import spend
from listwatch.apiserver.admission.chain import Admission
from listwatch.apiserver.kinds.catalog import kind_of
from listwatch.apiserver.kinds.kind import Ending
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.objects import StoredObjects
from listwatch.apiserver.storage.preconditions import check_deletion
from listwatch.apiserver.storage.store import Entry
from listwatch.schema.copying import copy_of
from listwatch.schema.facts import ANY

Object = dict[str, Any]

#: Maximum grace period, thirty years: longer ones could end beyond the last timestamp.
_LONGEST_PERIOD = 10**9


class DeleteOptions(msgspec.Struct, frozen=True):
    """The options of a delete; None means not given.

    Attributes:
        admission: the policies and webhooks to ask, if any.
    """

    grace_period: int | None = None
    propagation: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False
    admission: Admission | None = None


class Deletion(msgspec.Struct, frozen=True):
    """The result of a delete: `entry` is the last state; `gone` whether the object is removed."""

    entry: Entry
    gone: bool


def delete(
    objects: StoredObjects, resource: APIResource, namespace: str, name: str, options: DeleteOptions
) -> Deletion:
    """Delete an object, or start to; 404 if there is none, 409 if a precondition fails."""
    entry = objects.get(resource, namespace, name)
    if name in kind_of(resource).immortal:
        raise refusal.forbidden_object(resource, name, "this namespace may not be deleted")
    check_deletion(resource, entry, options.uid, options.resource_version)
    obj = objects.decode(entry)
    _ask_about(objects, resource, entry, obj, options)
    end = kind_of(resource).end
    ending = Ending.AS_USUAL if end is None else end(obj, objects.now())
    if ending is not Ending.AS_USUAL:
        return _end(objects, resource, entry, obj, ending, options)
    metadata = obj["metadata"]
    before = copy_of(metadata)
    pending = _begin_grace(resource, obj, options, objects.now)
    if pending:
        return Deletion(entry, gone=False)
    finalizers = _finalizers(resource, metadata, options)
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)
    if finalizers and not metadata.get("deletionTimestamp"):
        metadata["deletionTimestamp"] = objects.now()
        metadata["deletionGracePeriodSeconds"] = 0
        if metadata.get("generation"):
            metadata["generation"] += 1
    if metadata != before:
        entry = objects.entry(resource, obj, objects.store.revision + 1)
        if not options.dry_run:
            objects.store.put(objects.bucket(resource), entry)
    if finalizers or metadata.get("deletionGracePeriodSeconds"):
        return Deletion(entry, gone=False)
    if not options.dry_run:
        entry = objects.store.delete(objects.bucket(resource), entry)
    return Deletion(entry, gone=True)


def _ask_about(
    objects: StoredObjects, resource: APIResource, entry: Entry, obj: Object, options: DeleteOptions
) -> None:
    """Raise the refusal of a deletion; an object that can't be converted can't be deleted."""
    if resource.versions is not None:
        resource.versions.mark(obj)
        obj = objects.read(resource, entry)
    if options.admission is not None:
        options.admission.delete(obj)


def evict(
    objects: StoredObjects, resource: APIResource, namespace: str, name: str, options: DeleteOptions
) -> Deletion:
    """Delete a pod if its disruption budget allows that; otherwise 429."""
    pod = objects.decode(objects.get(resource, namespace, name))
    budgets = list(objects.under(_BUDGETS.storage, namespace))
    budget = spend(pod, budgets, objects.now()) if budgets else None
    if budget is not None and not options.dry_run:
        objects.store_as_is(_BUDGETS, budget)
    return delete(objects, resource, namespace, name, options)


def _end(
    objects: StoredObjects,
    resource: APIResource,
    entry: Entry,
    obj: Object,
    ending: Ending,
    options: DeleteOptions,
) -> Deletion:
    """End an object as its kind specifies."""
    if ending is Ending.STAYS:
        return Deletion(entry, gone=False)
    if ending is Ending.MARKED:
        entry = objects.entry(resource, obj, objects.store.revision + 1)
        if not options.dry_run:
            objects.store.put(objects.bucket(resource), entry)
        return Deletion(entry, gone=False)
    if not options.dry_run:
        entry = objects.store.delete(objects.bucket(resource), entry)
    return Deletion(entry, gone=True)


def _begin_grace(
    resource: APIResource, obj: Object, options: DeleteOptions, now: Callable[[float], str]
) -> bool:
    """Set or shorten a pod's grace period; return True if a running one stays as it is."""
    metadata = obj["metadata"]
    running = metadata.get("deletionGracePeriodSeconds")
    asked = None if options.grace_period is None else _period(options.grace_period)
    if metadata.get("deletionTimestamp"):
        if not kind_of(resource).graceful:
            return False
        if running is None or asked is None or asked >= running:
            # nothing is left to wait for: a second delete may finish the first
            return not (running == 0 and not metadata.get("finalizers"))
        begun = datetime.fromisoformat(metadata["deletionTimestamp"]).timestamp() - running
        metadata["deletionTimestamp"] = datetime.fromtimestamp(begun + asked, UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        metadata["deletionGracePeriodSeconds"] = asked
        return False
    if kind_of(resource).graceful:
        spec = obj.get("spec") or {}
        wanted = spec.get("terminationGracePeriodSeconds", 30)
        period = _period(wanted) if asked is None else asked
        if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in {
            "Succeeded",
            "Failed",
        }:
            period = 0
        metadata["deletionTimestamp"] = now(period)
        metadata["deletionGracePeriodSeconds"] = period
        if metadata.get("generation"):
            metadata["generation"] += 1
    return False


def _finalizers(resource: APIResource, metadata: Object, options: DeleteOptions) -> list[str]:
    """Return the finalizers of an object after a delete."""
    finalizers = list(metadata.get("finalizers") or ())
    policy = options.propagation
    orphan = "orphan" in finalizers
    foreground = "foregroundDeletion" in finalizers
    if policy is not None:
        orphan, foreground = policy == "Orphan", policy == "Foreground"
    elif not orphan and not foreground:
        orphan = kind_of(resource).orphan_by_default
    kept = [name for name in finalizers if name not in {"orphan", "foregroundDeletion"}]
    if orphan:
        kept.append("orphan")
    if foreground:
        kept.append("foregroundDeletion")
    return kept


def _period(seconds: int) -> int:
    # a negative period means one second, as in `BeforeDelete` (apiserver/pkg/registry/rest)
    return 1 if seconds < 0 else min(seconds, _LONGEST_PERIOD)


_BUDGETS = APIResource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", schema=ANY)
