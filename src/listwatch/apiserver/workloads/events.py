"""What controllers, the scheduler and kubelets tell in Events of the writes that they made."""

from collections.abc import Iterator
from typing import NamedTuple

from listwatch.apiserver.workloads.failures import CRASH_LOOP, EVICTED, IMAGE_PULL
from listwatch.apiserver.workloads.observed import (
    JOBS,
    NODES,
    PODS,
    REPLICA_SETS,
    Bind,
    Create,
    Delete,
    Object,
    Update,
    View,
    condition,
    controller_of,
    is_true,
)


class Told(NamedTuple):
    """One event.

    Attributes:
        about: a reference to the object.
        reason: a word, such as "Scheduled".
        message: a sentence.
        is_warning: whether something went wrong.
    """

    about: Object
    reason: str
    message: str
    is_warning: bool = False


#: The component of a controller's events where it is not its service account's name.
COMPONENTS = {
    "daemon-set-controller": "daemonset-controller",
    "endpointslice-controller": "endpoint-slice-controller",
}
_API_VERSIONS = {PODS: ("v1", "Pod"), NODES: ("v1", "Node"), JOBS: ("batch/v1", "Job")}
#: The owners whose controllers tell of the objects that they create and delete.
_TELLING = frozenset(
    ("ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job", "CronJob")
)


def events_of(
    step: Create | Update | Delete | Bind, made: str, before: View | None, manager: str
) -> list[Told]:
    """Return the events that tell of a write.

    Args:
        step: the write.
        made: the name of an object that it created.
        before: the object before an update.
        manager: the program that wrote.
    """
    if isinstance(step, Bind):
        metadata = step.obj["metadata"]
        named = f"{metadata['namespace']}/{metadata['name']}"
        words = f"Successfully assigned {named} to {step.node}"
        return [Told(_about(PODS, step.obj), "Scheduled", words)]
    if isinstance(step, Create):
        return list(_after_create(step, made))
    if isinstance(step, Delete):
        return list(_after_delete(step, manager))
    if step.resource == REPLICA_SETS and not step.subresource and before is not None:
        return list(_after_scale(step.obj, before))
    if step.subresource != "status" or before is None:
        return []
    if step.resource == PODS:
        after = _after_scheduling if manager == "kube-scheduler" else _after_pod_status
        return list(after(step.obj, before))
    if step.resource == JOBS:
        return list(_after_job_status(step.obj, before))
    if step.resource == NODES:
        return list(_after_node_status(step.obj, before))
    return []


def refusal_of(step: Create | Update | Delete | Bind, why: str) -> list[Told]:
    """Return the events that tell of a refused creation or deletion of an owned object."""
    owner = _telling(step.obj)
    if owner is None or not isinstance(step, Create | Delete):
        return []
    deed = "Create" if isinstance(step, Create) else "Delete"
    words = f"Error {'creating' if deed == 'Create' else 'deleting'}: {why}"
    if owner["kind"] == "StatefulSet":
        name = step.obj["metadata"].get("name", "")
        words = f"{deed.lower()} Pod {name} in StatefulSet {owner['name']} failed error: {why}"
    return [Told(owner, f"Failed{deed}", words, is_warning=True)]


def _about(resource: str, obj: View, path: str = "") -> Object:
    api_version, kind = _API_VERSIONS[resource]
    metadata = obj["metadata"]
    about = {
        "kind": kind,
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "uid": metadata["uid"],
        "apiVersion": api_version,
        "resourceVersion": metadata.get("resourceVersion", ""),
        "fieldPath": path,
    }
    return {key: value for key, value in about.items() if value}


def _telling(obj: View) -> Object | None:
    """Return a reference to an object's owner, if its controller tells of what it does."""
    owner = controller_of(obj)
    return _owner(obj, owner) if owner is not None and owner.get("kind") in _TELLING else None


def _owner(obj: View, reference: View) -> Object:
    return {
        "kind": reference["kind"],
        "namespace": obj["metadata"].get("namespace", ""),
        "name": reference["name"],
        "uid": reference.get("uid", ""),
        "apiVersion": reference.get("apiVersion", ""),
    }


def _after_create(step: Create, made: str) -> Iterator[Told]:
    owner = controller_of(step.obj)
    if step.resource == REPLICA_SETS and owner is not None:
        replicas = step.obj["spec"].get("replicas", 1)
        if replicas:
            words = f"Scaled up replica set {made} from 0 to {replicas}"
            yield Told(_owner(step.obj, owner), "ScalingReplicaSet", words)
    elif (telling := _telling(step.obj)) is not None and step.resource in {PODS, JOBS}:
        yield Told(telling, "SuccessfulCreate", _deed("create", step, telling, made))


def _after_delete(step: Delete, manager: str) -> Iterator[Told]:
    if manager == "kubelet" and step.resource == PODS:
        for state in (step.obj.get("status") or {}).get("containerStatuses") or ():
            if "running" in (state.get("state") or {}):
                path = f"spec.containers{{{state['name']}}}"
                words = f"Stopping container {state['name']}"
                yield Told(_about(PODS, step.obj, path), "Killing", words)
    elif (telling := _telling(step.obj)) is not None and step.resource in {PODS, JOBS}:
        name = step.obj["metadata"]["name"]
        yield Told(telling, "SuccessfulDelete", _deed("delete", step, telling, name))


def _deed(deed: str, step: Create | Delete, owner: View, name: str) -> str:
    if owner["kind"] == "StatefulSet":
        return f"{deed} Pod {name} in StatefulSet {owner['name']} successful"
    what = "job " if step.resource == JOBS else "pod: "
    return f"{deed.capitalize()}d {what}{name}"


def _after_scale(obj: View, before: View) -> Iterator[Told]:
    owner = controller_of(obj)
    old, new = (each["spec"].get("replicas", 1) for each in (before, obj))
    if owner is not None and old != new:
        direction = "up" if new > old else "down"
        name = obj["metadata"]["name"]
        words = f"Scaled {direction} replica set {name} from {old} to {new}"
        yield Told(_owner(obj, owner), "ScalingReplicaSet", words)


def _after_scheduling(pod: View, before: View) -> Iterator[Told]:
    told, known = (condition(each, "PodScheduled") or {} for each in (pod, before))
    if told.get("reason") == "Unschedulable" and told.get("message") != known.get("message"):
        yield Told(_about(PODS, pod), "FailedScheduling", told["message"], is_warning=True)


def _after_job_status(job: View, before: View) -> Iterator[Told]:
    about = _about(JOBS, job)
    if _has_become(job, before, "Complete"):
        yield Told(about, "Completed", "Job completed")
    if _has_become(job, before, "Failed"):
        failed = condition(job, "Failed") or {}
        yield Told(about, failed.get("reason", ""), failed.get("message", ""), is_warning=True)
    if _has_become(job, before, "Suspended"):
        yield Told(about, "Suspended", "Job suspended")
    elif _has_become(before, job, "Suspended"):
        yield Told(about, "Resumed", "Job resumed")


def _has_become(obj: View, before: View, kind: str) -> bool:
    return is_true(obj, kind) and not is_true(before, kind)


def _after_node_status(node: View, before: View) -> Iterator[Told]:
    ready, was_ready = is_true(node, "Ready"), is_true(before, "Ready")
    if was_ready and not ready:
        words = f"Node {node['metadata']['name']} status is now: NodeNotReady"
        yield Told(_about(NODES, node), "NodeNotReady", words)


def _after_pod_status(pod: View, before: View) -> Iterator[Told]:
    status, known = pod.get("status") or {}, before.get("status") or {}
    for group in ("initContainers", "containers"):
        states, old = (
            {state["name"]: state for state in each.get(f"{group[:-1]}Statuses") or ()}
            for each in (status, known)
        )
        for spec in pod["spec"].get(group) or ():
            name = spec["name"]
            if name in states:
                about = _about(PODS, pod, f"spec.{group}{{{name}}}")
                image = spec.get("image", "")
                yield from _after_container(about, image, states[name], old.get(name) or {})
    if status.get("reason") == EVICTED != known.get("reason"):
        message = status.get("message", "")
        yield Told(_about(PODS, pod), "Evicted", message, is_warning=True)


def _after_container(about: Object, image: str, new: View, old: View) -> Iterator[Told]:
    name = new["name"]
    kind, detail = _state(new)
    before, known = _state(old)
    ran = kind == "terminated" and before == "waiting" and detail.get("reason") == "Completed"
    if kind == "running" != before or ran:
        pulled = f'Container image "{image}" already present on machine'
        yield Told(about, "Pulled", pulled)
        yield Told(about, "Created", f"Created container: {name}")
        yield Told(about, "Started", f"Started container {name}")
    if kind != "waiting" or detail.get("reason") == known.get("reason"):
        return
    if detail.get("reason") == CRASH_LOOP:
        place = detail.get("message", "").rpartition("pod=")[2]
        words = f"Back-off restarting failed container {name} in pod {place}"
        yield Told(about, "BackOff", words, is_warning=True)
    elif detail.get("reason") == IMAGE_PULL:
        why = detail.get("message", "").partition("ErrImagePull: ")[2]
        yield Told(about, "Pulling", f'Pulling image "{image}"')
        yield Told(about, "Failed", f'Failed to pull image "{image}": {why}', is_warning=True)
        yield Told(about, "Failed", "Error: ErrImagePull", is_warning=True)
        yield Told(about, "BackOff", f'Back-off pulling image "{image}"')
        yield Told(about, "Failed", f"Error: {IMAGE_PULL}", is_warning=True)


def _state(container: View) -> tuple[str, View]:
    state: View = container.get("state") or {}
    kind = next(iter(state), "waiting")
    return kind, state.get(kind) or {}
