"""Options of a delete, and the first step of a deletion that waits."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from listwatch.apiserver.admission.chain import Admission
from listwatch.apiserver.kinds.catalog import kind_of
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.store import Entry

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


def begin_grace(
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


def deletion_finalizers(
    resource: APIResource, metadata: Object, options: DeleteOptions
) -> list[str]:
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
