"""ControllerRevisions: the templates that a StatefulSet or DaemonSet has had."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from listwatch.apiserver.workloads.observed import (
    REVISIONS,
    Create,
    Delete,
    Object,
    Observed,
    Steps,
    Update,
    View,
    owner_reference,
)
from listwatch.apiserver.workloads.pods import claim, is_deleting, name_hash, status_update
from listwatch.schema.copying import copy_of
from listwatch.selector import LabelSelector

#: The label of pods that names their revision.
HASH = "controller-revision-hash"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class _Revisions(NamedTuple):
    """The revisions of an owner, oldest first."""

    all: list[View]
    #: the one for the current template; None before it is created
    update: View | None
    #: how often a name was taken, if that has increased
    collisions: int | None
    #: the steps that make the current template's revision the newest
    steps: Steps


def number_of(revision: View) -> int:
    """Return the number of a revision."""
    return int(revision.get("revision", 0))


def template_of(revision: View) -> Object:
    """Return the template in a revision."""
    template = dict(revision["data"]["spec"]["template"])
    template.pop("$patch", None)
    return template


def step_owner(
    observed: Observed,
    owner: View,
    resource: str,
    kind: str,
    label: str,
    step: Callable[[list[View], list[View], View], Steps],
) -> Steps:
    """Record an owner's template and claim its pods; if nothing is left to do there, step.

    Args:
        observed: the current objects.
        owner: a StatefulSet or DaemonSet.
        resource: the owner's.
        kind: the owner's.
        label: the label of a revision whose value is its hash.
        step: returns the steps for the owner's pods, its revisions, oldest first, and the one for
            the current template.
    """
    selector = LabelSelector.from_dict(owner["spec"].get("selector"))
    if selector.is_everything or is_deleting(owner):
        return []
    revisions = _revisions_of(observed, owner, selector, kind, label)
    if revisions.collisions is not None:
        status = {**(owner.get("status") or {}), "collisionCount": revisions.collisions}
        return status_update(resource, owner, status)
    if revisions.update is None or revisions.steps:
        return revisions.steps
    pods, steps = claim(observed, owner, selector, "apps/v1", kind)
    return steps or step(pods, revisions.all, revisions.update)


def _revisions_of(
    observed: Observed, owner: View, selector: LabelSelector, kind: str, label: str
) -> _Revisions:
    """Return an owner's revisions, and the writes that record its current template."""
    found, steps = claim(observed, owner, selector, "apps/v1", kind, resource=REVISIONS)
    found.sort(key=lambda each: (number_of(each), each["metadata"]["name"]))
    data = {"spec": {"template": {**owner["spec"]["template"], "$patch": "replace"}}}
    latest = number_of(found[-1]) if found else 0
    same = [each for each in found if each["data"] == data]
    if same:
        update = same[-1]
        if number_of(update) < latest:  # a rollback: the old revision becomes the newest
            steps.append(Update(REVISIONS, {**update, "revision": latest + 1}))
        return _Revisions(found, update, None, steps)
    collisions = (owner.get("status") or {}).get("collisionCount") or 0
    digest = name_hash(data, collisions)
    metadata = owner["metadata"]
    name = f"{metadata['name']}-{digest}"
    if observed.find(REVISIONS, metadata["namespace"], name) is not None:
        return _Revisions(found, None, collisions + 1, steps)
    labels = (owner["spec"]["template"].get("metadata") or {}).get("labels") or {}
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key != _LAST_APPLIED
    }
    made: Object = {
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {**labels, label: digest},
            "annotations": annotations,
            "ownerReferences": [owner_reference("apps/v1", kind, owner)],
        },
        "data": copy_of(data),
        "revision": latest + 1,
    }
    if not annotations:
        del made["metadata"]["annotations"]
    steps.append(Create(REVISIONS, made))
    return _Revisions(found, None, None, steps)


def forget_old(
    revisions: Iterable[View], live: Iterable[str], limit: int, names: str = "name"
) -> Steps:
    """Return the steps that delete the oldest unused revisions beyond a limit.

    Args:
        revisions: all, oldest first.
        live: the names of those in use, or their values of the label.
        limit: how many others to keep; a negative limit keeps all.
        names: the label, or "name".
    """
    if limit < 0:
        return []
    needed = set(live)
    idle = [
        each
        for each in revisions
        if (
            each["metadata"]["name"]
            if names == "name"
            else (each["metadata"].get("labels") or {}).get(names)
        )
        not in needed
    ]
    return [Delete(REVISIONS, each) for each in idle[: max(0, len(idle) - limit)]]
