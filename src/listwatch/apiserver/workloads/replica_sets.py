"""ReplicaSet and ReplicationController: keep the requested number of pods."""

from listwatch.apiserver.workloads.observed import (
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    Create,
    Delete,
    Object,
    Observed,
    Steps,
    View,
    with_condition,
)
from listwatch.apiserver.workloads.pods import (
    Counts,
    claim,
    deletion_rank,
    is_active,
    is_deleting,
    pod_of,
    status_update,
)
from listwatch.selector import LabelSelector

#: Maximum pods created or deleted in one step, like `BurstReplicas` in pkg/controller/replicaset.
_BURST = 500


def step_replica_set(observed: Observed, replica_set: View) -> Steps:
    """Bring the pods of a ReplicaSet closer to its spec, and its status up to date."""
    selector = LabelSelector.from_dict(replica_set["spec"].get("selector"))
    return _step(observed, replica_set, selector, REPLICA_SETS, "apps/v1", "ReplicaSet")


def step_replication_controller(observed: Observed, controller: View) -> Steps:
    """Bring a ReplicationController's pods closer to its spec, and its status up to date."""
    selector = LabelSelector.from_dict({"matchLabels": controller["spec"].get("selector") or {}})
    if selector.is_everything or "template" not in controller["spec"]:
        return []
    kind = "ReplicationController"
    return _step(observed, controller, selector, REPLICATION_CONTROLLERS, "v1", kind)


def _step(
    observed: Observed,
    obj: View,
    selector: LabelSelector,
    resource: str,
    api_version: str,
    kind: str,
) -> Steps:
    pods, steps = claim(observed, obj, selector, api_version, kind)
    active = [pod for pod in pods if is_active(pod)]
    wanted = obj["spec"].get("replicas", 1)
    if not is_deleting(obj) and not steps:
        steps += _scale(obj, active, wanted, api_version, kind)
    counts = Counts(observed, active, obj["spec"].get("minReadySeconds") or 0)
    status: Object = {
        "replicas": len(active),
        "fullyLabeledReplicas": _labelled(obj, active),
        "readyReplicas": counts.ready,
        "availableReplicas": counts.available,
        "terminatingReplicas": sum(is_deleting(pod) for pod in pods),
        "observedGeneration": obj["metadata"].get("generation", 0),
    }
    if resource == REPLICATION_CONTROLLERS:
        del status["terminatingReplicas"]
    status = {key: value for key, value in status.items() if value or key in _SHOWN}
    conditions = _conditions(observed, obj, len(active) - wanted)
    if conditions:
        status["conditions"] = conditions
    return [*steps, *status_update(resource, obj, status), *counts.later()]


_SHOWN = frozenset(("replicas", "terminatingReplicas"))


def _scale(obj: View, active: list[View], wanted: int, api_version: str, kind: str) -> Steps:
    difference = len(active) - wanted
    if difference < 0:
        template = obj["spec"]["template"]
        return [
            Create(PODS, pod_of(template, obj, api_version, kind))
            for _ in range(min(-difference, _BURST))
        ]
    doomed = sorted(active, key=deletion_rank)[: min(difference, _BURST)]
    return [Delete(PODS, pod) for pod in doomed]


def _labelled(obj: View, pods: list[View]) -> int:
    labels = (obj["spec"]["template"].get("metadata") or {}).get("labels") or {}
    return sum(labels.items() <= (pod["metadata"].get("labels") or {}).items() for pod in pods)


def _conditions(observed: Observed, obj: View, difference: int) -> list[View]:
    """Return the status conditions: pods could not be created or deleted."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    why = observed.refusals.get(obj["metadata"]["uid"])
    if why is None or difference == 0:
        return [each for each in conditions if each.get("type") != "ReplicaFailure"]
    failure: Object = {
        "type": "ReplicaFailure",
        "status": "True",
        "lastTransitionTime": observed.stamp,
        "reason": "FailedCreate" if difference < 0 else "FailedDelete",
        "message": why,
    }
    return with_condition(conditions, failure)
