"""Node, Lease and RuntimeClass."""

from collections.abc import Mapping

from listwatch.apiserver.kinds.cells import NONE, UNKNOWN, Cell, at, field, join, text
from listwatch.apiserver.kinds.container_rules import check_resources
from listwatch.apiserver.kinds.kind import Kind, Object, View, paths, status_of
from listwatch.apiserver.kinds.pod_rules import check_taints, check_tolerations
from listwatch.apiserver.kinds.rules import address_range, label, not_negative, validate_labels
from listwatch.apiserver.kinds.statuses import check_node_resources, check_node_status
from listwatch.schema.causes import Cause, duplicate, forbidden_value, invalid_value, required


def _default_node(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    # podCIDR equals the first of podCIDRs, whichever of them a client sets
    first = spec.get("podCIDR")
    if first and (spec.get("podCIDRs") or [None])[0] != first:
        spec["podCIDRs"] = [first]
    elif spec.get("podCIDRs"):
        spec["podCIDR"] = spec["podCIDRs"][0]
    status = status_of(obj)
    if "allocatable" not in status and "capacity" in status:
        status["allocatable"] = dict(status["capacity"])
    for condition in status.get("conditions") or ():
        condition.setdefault("lastHeartbeatTime", None)
        condition.setdefault("lastTransitionTime", None)
    status.setdefault("daemonEndpoints", {}).setdefault("kubeletEndpoint", {}).setdefault("Port", 0)
    info = status.setdefault("nodeInfo", {})
    for name in (
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ):
        info.setdefault(name, "")


def _default_with_spec(obj: Object) -> None:
    obj.setdefault("spec", {})


def _check_lease(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    seconds = spec.get("leaseDurationSeconds")
    if isinstance(seconds, int) and seconds <= 0:
        causes.append(invalid_value("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    causes += not_negative(spec, "spec", "leaseTransitions")
    return causes


def _check_runtime_class(obj: View) -> list[Cause]:
    handler = obj.get("handler", "")
    causes = label("handler", handler) if handler else [required("handler")]
    limits = (obj.get("overhead") or {}).get("podFixed") or {}
    causes += check_resources({"limits": limits}, "overhead")
    scheduling = obj.get("scheduling") or {}
    causes += validate_labels(scheduling.get("nodeSelector"), "scheduling.nodeSelector")
    where = "scheduling.tolerations"
    return causes + check_tolerations(scheduling.get("tolerations") or (), where)


def _check_node(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = check_taints(spec.get("taints") or (), "metadata.taints")
    causes += check_node_resources(obj)
    ranges, where = spec.get("podCIDRs") or [], "spec.podCIDRs"
    for index, each in enumerate(ranges):
        causes += address_range(f"{where}[{index}]", each)
        if each in ranges[:index]:
            causes.append(duplicate(f"{where}[{index}]", each))
    if len(ranges) > 2 or len({":" in each for each in ranges}) < min(len(ranges), 2):
        why = "may specify no more than one CIDR for each IP family"
        causes.append(invalid_value(where, ranges, why))
    return causes


def _check_node_update(new: View, old: View) -> list[Cause]:
    after, before = new.get("spec") or {}, old.get("spec") or {}
    # the server checks taints once with the node and once with its change
    causes = [
        *check_node_status(new, old),
        *check_taints(after.get("taints") or (), "metadata.taints"),
    ]
    had, has = before.get("podCIDRs") or [], after.get("podCIDRs") or []
    moved = sum(first != second for first, second in zip(had, has, strict=False))
    if had and len(had) != len(has):
        moved = 1
    told = 'except from "" to valid'
    causes += [
        forbidden_value("spec.podCIDRs", f"node updates may not change podCIDR {told}")
        for _ in range(moved)
    ]
    if before.get("providerID") and after.get("providerID") != before["providerID"]:
        why = f"node updates may not change providerID {told}"
        causes.append(forbidden_value("spec.providerID", why))
    if after.get("externalID") != before.get("externalID"):
        causes.append(forbidden_value("spec.externalID", "may not be updated"))
    return causes


_ROLE = "node-role.kubernetes.io/"


def _node_status(node: View, _: float) -> str:
    words = [
        "Ready" if each.get("status") == "True" else "NotReady"
        for each in at(node, "status.conditions") or ()
        if each.get("type") == "Ready"
    ] or ["Unknown"]
    if at(node, "spec.unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: View, _: float) -> str:
    labels = node["metadata"].get("labels") or {}
    roles = {key[len(_ROLE) :] for key in labels if key.startswith(_ROLE) and key != _ROLE}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    return join(sorted(roles))


def _node_address(kind: str) -> Cell:
    def cell(node: View, _: float) -> str:
        for each in at(node, "status.addresses") or ():
            if each.get("type") == kind:
                return str(each.get("address"))
        return NONE

    return cell


def _kernel(node: View, _: float) -> str:
    info = at(node, "status.nodeInfo") or {}
    version, machine = info.get("kernelVersion"), info.get("architecture")
    if not version:
        return UNKNOWN
    return f"{version} ({machine})" if machine else str(version)


def _admit_node(obj: Object) -> None:
    taints = obj["spec"].setdefault("taints", [])
    if not any(taint.get("key") == "node.kubernetes.io/not-ready" for taint in taints):
        taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "nodes": Kind(
        checks_whole=True,
        status_leaves="ownerReferences",
        fields=paths("spec.unschedulable", unschedulable="false"),
        defaults=_default_node,
        admit=_admit_node,
        rule=_check_node,
        update_rule=_check_node_update,
        keeps_status=True,
        cells={
            "Status": _node_status,
            "Roles": _node_roles,
            "Version": field("status.nodeInfo.kubeletVersion"),
            "Internal-IP": _node_address("InternalIP"),
            "External-IP": _node_address("ExternalIP"),
            "OS-Image": text("status.nodeInfo.osImage", UNKNOWN),
            "Kernel-Version": _kernel,
            "Container-Runtime": text("status.nodeInfo.containerRuntimeVersion", UNKNOWN),
        },
    ),
    "coordination.k8s.io/leases": Kind(
        create_on_update=True,
        unconditional_update=False,
        defaults=_default_with_spec,
        rule=_check_lease,
        cells={"Holder": field("spec.holderIdentity")},
    ),
    "node.k8s.io/runtimeclasses": Kind(
        immutable=("handler",),
        unconditional_update=False,
        rule=_check_runtime_class,
        cells={"Handler": field("handler")},
    ),
}
