"""Nodes: created if there are none, their conditions, and the resulting taints."""

from listwatch.apiserver.workloads.failures import Failures
from listwatch.apiserver.workloads.observed import (
    NODES,
    Object,
    Observed,
    Steps,
    Update,
    View,
    condition,
    with_condition,
)

#: Prefix of the nodes' addresses.
_NETWORK = "172.18"
_NOT_READY, _UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
#: The taints that follow from a node's conditions and spec.
_OWN = frozenset((_NOT_READY, _UNREACHABLE, _UNSCHEDULABLE))
_CAPACITY = {
    "cpu": "1k",
    "memory": "1Ti",
    "ephemeral-storage": "1Ti",
    "pods": "1M",
}
_WELL = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


def made_node(number: int) -> Object:
    """Return a node for a cluster without any."""
    name = f"node-{number}"
    return {
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "beta.kubernetes.io/arch": "amd64",
            },
        },
        "spec": {},
        "status": {"capacity": dict(_CAPACITY), "allocatable": dict(_CAPACITY)},
    }


def address_of(node: View) -> str:
    """Return the node's address in the cluster, or ""."""
    for each in (node.get("status") or {}).get("addresses") or ():
        if each.get("type") == "InternalIP":
            return str(each.get("address", ""))
    return ""


def is_node_ready(node: View) -> bool:
    """Return whether a node is ready."""
    ready = condition(node, "Ready")
    return ready is not None and ready.get("status") == "True"


def step_node(observed: Observed, failures: Failures, node: View) -> Steps:
    """Set the status of a node whose kubelet runs, or is lost, and the resulting taints.

    A condition `Ready` set by another client stays.
    """
    status = _status(observed, node, lost=failures.is_lost(node))
    if status != (node.get("status") or {}):
        return [Update(NODES, {**node, "status": status}, "status")]
    taints = _taints(observed, node)
    if taints != (node["spec"].get("taints") or []):
        spec = {key: value for key, value in node["spec"].items() if key != "taints"}
        return [Update(NODES, {**node, "spec": {**spec, "taints": taints} if taints else spec})]
    return []


def _status(observed: Observed, node: View, *, lost: bool) -> Object:
    status = dict(node.get("status") or {})
    conditions = list(status.get("conditions") or ())
    ready = condition(node, "Ready")
    stamp = observed.stamp

    def told(kind: str, value: str, reason: str, message: str) -> Object:
        return {
            "type": kind,
            "status": value,
            "lastHeartbeatTime": stamp,
            "lastTransitionTime": stamp,
            "reason": reason,
            "message": message,
        }

    if lost:
        if ready is None or ready.get("status") != "Unknown":
            for kind in [*(each[0] for each in _WELL), "Ready"]:
                words = "Kubelet stopped posting node status."
                unknown = told(kind, "Unknown", "NodeStatusUnknown", words)
                conditions = with_condition(conditions, unknown)
    elif ready is None or ready.get("status") == "Unknown":
        for kind, reason, message in _WELL:
            conditions = with_condition(conditions, told(kind, "False", reason, message))
        words = "kubelet is posting ready status"
        conditions = with_condition(conditions, told("Ready", "True", "KubeletReady", words))
    status["conditions"] = conditions
    if not status.get("capacity"):
        status["capacity"] = dict(_CAPACITY)
    if not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])
    if not status.get("addresses"):
        number = sum(1 for each in observed.objects(NODES) if address_of(each)) + 2
        status["addresses"] = [
            {"type": "InternalIP", "address": f"{_NETWORK}.{number >> 8}.{number & 255}"},
            {"type": "Hostname", "address": node["metadata"]["name"]},
        ]
    return status


def _taints(observed: Observed, node: View) -> list[View]:
    present = node["spec"].get("taints") or []
    ready = condition(node, "Ready") or {}
    wanted: list[tuple[str, str]] = []
    if node["spec"].get("unschedulable"):
        wanted.append((_UNSCHEDULABLE, "NoSchedule"))
    if ready.get("status") == "Unknown":
        wanted += [(_UNREACHABLE, "NoSchedule"), (_UNREACHABLE, "NoExecute")]
    elif ready.get("status") == "False":
        wanted += [(_NOT_READY, "NoSchedule"), (_NOT_READY, "NoExecute")]
    kept = [
        each
        for each in present
        if each.get("key") not in _OWN or (each["key"], each.get("effect")) in wanted
    ]
    known = {(each.get("key"), each.get("effect")) for each in kept}
    return kept + [
        {"key": key, "effect": effect, "timeAdded": observed.stamp}
        for key, effect in wanted
        if (key, effect) not in known
    ]
