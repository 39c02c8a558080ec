"""Pods as seen by their owners: which count, the order of deletion, how to create one."""

import json
from collections.abc import Iterable

from listwatch.apiserver.workloads.observed import (
    PODS,
    Later,
    Object,
    Observed,
    Steps,
    Update,
    View,
    condition,
    is_true,
    owner_reference,
    with_metadata,
)
from listwatch.schema.copying import copy_of
from listwatch.selector import LabelSelector

#: The characters of hashes in names, as in `apimachinery/pkg/util/rand`.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_FINISHED = frozenset(("Succeeded", "Failed"))
_COST = "controller.kubernetes.io/pod-deletion-cost"


def name_hash(value: object, collisions: int = 0) -> str:
    """Return a hash for names: 32-bit FNV-1a in characters that form no words.

    The form is that of `ComputeHash` (pkg/controller/controller_utils.go); the value differs,
    because Go's depends on its types.
    """
    number = 0x811C9DC5
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    for byte in data + (str(collisions).encode() if collisions else b""):
        number = (number ^ byte) * 0x01000193 & 0xFFFFFFFF
    return "".join(_LETTERS[ord(digit) % len(_LETTERS)] for digit in str(number))


def is_finished(pod: View) -> bool:
    """Return whether a pod's containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in _FINISHED


def is_deleting(obj: View) -> bool:
    """Return whether an object is being deleted."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def is_active(pod: View) -> bool:
    """Return whether a pod counts as one of its owner's replicas."""
    return not is_finished(pod) and not is_deleting(pod)


def is_ready(pod: View) -> bool:
    """Return whether a pod is ready."""
    return is_true(pod, "Ready")


def available_in(observed: Observed, pod: View, min_ready: int) -> float | None:
    """Return the seconds until a pod is available, 0 if it is; None if it is not ready."""
    ready = condition(pod, "Ready")
    if ready is None or ready.get("status") != "True":
        return None
    if not min_ready:
        return 0.0
    return max(0.0, min_ready - observed.since(ready.get("lastTransitionTime")))


class Counts:
    """Counts of ready and available pods, and the time until the next one becomes available."""

    def __init__(self, observed: Observed, pods: Iterable[View], min_ready: int) -> None:
        self.ready = self.available = 0
        self.next: float | None = None
        for pod in pods:
            seconds = available_in(observed, pod, min_ready)
            if seconds is None:
                continue
            self.ready += 1
            if seconds == 0:
                self.available += 1
            elif self.next is None or seconds < self.next:
                self.next = seconds

    def later(self) -> Steps:
        """Return the step to look again when the next pod becomes available."""
        return [] if self.next is None else [Later(self.next)]


def deletion_rank(pod: View) -> tuple[object, ...]:
    """Return the sort key for deletion order, like `ActivePodsWithRanks`."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    ready = condition(pod, "Ready") or {}
    restarts = sum(each.get("restartCount", 0) for each in status.get("containerStatuses") or ())
    cost = (metadata.get("annotations") or {}).get(_COST, "0")
    return (
        bool((pod.get("spec") or {}).get("nodeName")),
        {"Pending": 0, "Unknown": 1}.get(status.get("phase", ""), 2),
        ready.get("status") == "True",
        int(cost) if cost.removeprefix("-").isascii() and cost.removeprefix("-").isdigit() else 0,
        _latest_first(ready.get("lastTransitionTime") or ""),
        -restarts,
        _latest_first(metadata["creationTimestamp"]),
        metadata["name"],
    )


def _latest_first(stamp: str) -> tuple[int, ...]:
    return tuple(-ord(character) for character in stamp)


def pod_of(
    template: View, owner: View, api_version: str, kind: str, *, name: str = "", base: str = ""
) -> Object:
    """Return a new pod from a template.

    Args:
        template: the owner's.
        owner: the pod's controller.
        api_version: of the owner.
        kind: of the owner.
        name: of the pod; "" lets the server complete `base`.
        base: prefix of a generated name; "" for the owner's name.
    """
    given = template.get("metadata") or {}
    metadata: Object = {
        key: copy_of(given[key])
        for key in ("labels", "annotations", "finalizers")
        if given.get(key)
    }
    if name:
        metadata["name"] = name
    else:
        metadata["generateName"] = base or f"{owner['metadata']['name']}-"
    metadata["namespace"] = owner["metadata"]["namespace"]
    metadata["ownerReferences"] = [owner_reference(api_version, kind, owner)]
    return {"metadata": metadata, "spec": copy_of(template.get("spec") or {})}


def claim(
    observed: Observed,
    owner: View,
    selector: LabelSelector,
    api_version: str,
    kind: str,
    resource: str = PODS,
) -> tuple[list[View], Steps]:
    """Return the objects that an owner controls, and the steps to adopt and release others.

    It adopts orphans that match its selector, and releases objects that no longer match, like
    `ControllerRefManager`.
    """
    kept: list[View] = []
    steps: Steps = []
    uid, namespace = owner["metadata"]["uid"], owner["metadata"]["namespace"]
    for obj in observed.controlled(owner, resource):
        if selector.matches(obj["metadata"].get("labels") or {}):
            kept.append(obj)
        elif not is_deleting(owner):
            references = obj["metadata"]["ownerReferences"]
            left = [each for each in references if each.get("uid") != uid]
            steps.append(Update(resource, with_metadata(obj, ownerReferences=left or None)))
    if is_deleting(owner):
        return kept, steps
    for obj in observed.orphans(resource, namespace):
        finished = resource == PODS and is_finished(obj)
        if (
            not finished
            and not is_deleting(obj)
            and selector.matches(obj["metadata"].get("labels") or {})
        ):
            references = [
                *(obj["metadata"].get("ownerReferences") or ()),
                owner_reference(api_version, kind, owner),
            ]
            steps.append(Update(resource, with_metadata(obj, ownerReferences=references)))
    return kept, steps


def status_update(resource: str, obj: View, status: View) -> Steps:
    """Return the write of a status, if it differs from the current one."""
    before = obj.get("status") or {}
    return [] if before == status else [Update(resource, {**obj, "status": dict(status)}, "status")]
