"""PodDisruptionBudget: its status, which says how many pods may be evicted now."""

from typing import NamedTuple

from listwatch.apiserver.workloads.observed import (
    BUDGETS,
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    Later,
    Object,
    Observed,
    Steps,
    View,
    condition,
    controller_of,
    with_condition,
)
from listwatch.apiserver.workloads.pods import is_deleting, is_ready, status_update
from listwatch.selector import LabelSelector

#: Seconds for which an evicted pod that still exists counts as disrupted (`DeletionTimeout`).
_DELETION_SECONDS = 120.0
#: Resources whose objects scale, by kind.
_SCALED = {
    "ReplicaSet": REPLICA_SETS,
    "ReplicationController": REPLICATION_CONTROLLERS,
    "StatefulSet": STATEFUL_SETS,
    "Deployment": DEPLOYMENTS,
}


class _Counts(NamedTuple):
    expected: int
    desired: int


class _Unknown(Exception):  # noqa: N818 - why nothing is known, not an error of the program
    """The number of expected pods is unknown."""


def step_budget(observed: Observed, budget: View) -> Steps:
    """Bring the status of a budget up to date (`pkg/controller/disruption/disruption.go`)."""
    if is_deleting(budget):
        return []
    before: View = budget.get("status") or {}
    pods = _pods(observed, budget)
    try:
        counts = _counts(observed, budget["spec"], pods)
    except _Unknown as why:
        return status_update(BUDGETS, budget, _failed(observed, budget, str(why)))
    disrupted, later = _disrupted(observed, before.get("disruptedPods") or {}, pods)
    healthy = sum(
        is_ready(pod) and not is_deleting(pod) and pod["metadata"]["name"] not in disrupted
        for pod in pods
    )
    allowed = max(0, healthy - counts.desired) if counts.expected > 0 else 0
    status: Object = {
        **before,
        "currentHealthy": healthy,
        "desiredHealthy": counts.desired,
        "expectedPods": counts.expected,
        "disruptionsAllowed": allowed,
        "observedGeneration": budget["metadata"].get("generation", 0),
        "disruptedPods": disrupted,
    }
    if not disrupted:
        del status["disruptedPods"]
    reason = "SufficientPods" if allowed else "InsufficientPods"
    status["conditions"] = _told(observed, budget, allowed=bool(allowed), reason=reason)
    return [*status_update(BUDGETS, budget, status), *later]


def _pods(observed: Observed, budget: View) -> list[View]:
    given = budget["spec"].get("selector")
    if given is None:
        return []
    selector = LabelSelector.from_dict(given)
    namespace = budget["metadata"]["namespace"]
    entries = observed.entries(PODS, namespace)
    return [observed.view(PODS, entry) for entry in entries if selector.matches(entry.labels)]


def _counts(observed: Observed, spec: View, pods: list[View]) -> _Counts:
    """Return the expected number of pods, and how many of them must be healthy.

    Raises:
        _Unknown: a pod's controller has no scale.
    """
    most, least = spec.get("maxUnavailable"), spec.get("minAvailable")
    if most is None and isinstance(least, int):
        return _Counts(len(pods), least)
    expected = _expected(observed, pods)
    if most is not None:
        return _Counts(expected, max(0, expected - _share(most, expected)))
    return _Counts(expected, _share(0 if least is None else least, expected))


def _share(value: int | str, of: int) -> int:
    """Return a number, or a percentage of another, rounded up."""
    if isinstance(value, int):
        return value
    return -(-int(value.removesuffix("%")) * of // 100)


def _expected(observed: Observed, pods: list[View]) -> int:
    """Return the replicas that the pods' controllers are to have; pods without one don't count."""
    scales: dict[str, int] = {}
    for pod in pods:
        namespace = pod["metadata"]["namespace"]
        reference = controller_of(pod)
        if reference is None:
            continue
        owner = _scaled(observed, namespace, reference)
        above = controller_of(owner)
        if above is not None and above.get("kind") == "Deployment":
            owner = _scaled(observed, namespace, above)
        scales[owner["metadata"]["uid"]] = owner["spec"].get("replicas", 1)
    return sum(scales.values())


def _scaled(observed: Observed, namespace: str, reference: View) -> View:
    kind, name = reference["kind"], reference["name"]
    resource = _SCALED.get(kind)
    if resource is None:
        plural = f"{kind.lower()}s.{str(reference['apiVersion']).rpartition('/')[0]}"
        raise _Unknown(f"{plural} does not implement the scale subresource")
    owner = observed.find(resource, namespace, name)
    if owner is None or owner["metadata"]["uid"] != reference.get("uid"):
        raise _Unknown(f'found no controllers for pod controlled by {kind} "{name}"')
    return owner


def _disrupted(
    observed: Observed, before: View, pods: list[View]
) -> tuple[dict[str, str], list[Later]]:
    """Return the evicted pods that still exist, and when the first no longer counts."""
    there = {pod["metadata"]["name"]: pod for pod in pods}
    left = {
        name: _DELETION_SECONDS - observed.since(stamp)
        for name, stamp in before.items()
        if name in there and not is_deleting(there[name])
    }
    waiting = {name: seconds for name, seconds in left.items() if seconds > 0}
    later = [Later(min(waiting.values()))] if waiting else []
    return {name: before[name] for name in waiting}, later


def _told(
    observed: Observed, budget: View, *, allowed: bool, reason: str, message: str = ""
) -> list[View]:
    told: Object = {
        "type": "DisruptionAllowed",
        "status": "True" if allowed else "False",
        "observedGeneration": budget["metadata"].get("generation", 0),
        "lastTransitionTime": observed.stamp,
        "reason": reason,
        "message": message,
    }
    known = (budget.get("status") or {}).get("conditions") or []
    return with_condition(known, told)


def _failed(observed: Observed, budget: View, why: str) -> Object:
    status = dict(budget.get("status") or {})
    known = condition(budget, "DisruptionAllowed") or {}
    if known.get("reason") != "SyncFailed" or known.get("message") != why:
        status["conditions"] = _told(
            observed, budget, allowed=False, reason="SyncFailed", message=why
        )
    for name in ("currentHealthy", "desiredHealthy", "expectedPods"):
        status.setdefault(name, 0)
    return {**status, "disruptionsAllowed": 0}
