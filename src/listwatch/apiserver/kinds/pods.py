"""Pods: their defaults, rules, and status in tables."""

from collections.abc import Mapping

from listwatch.apiserver.kinds.cells import NONE, age, at, text
from listwatch.apiserver.kinds.kind import Kind, Object, View, carry, paths, status_of
from listwatch.apiserver.kinds.pod_change_rules import (
    check_ephemeral,
    check_pod_update,
    check_resize,
    qos_class,
)
from listwatch.apiserver.kinds.pod_rules import check_pod_spec
from listwatch.apiserver.kinds.pod_templates import default_pod_spec
from listwatch.schema.causes import Cause, forbidden_value
from listwatch.schema.copying import copy_of


def _init_status(pod: View, states: list[View]) -> str | None:
    """Return the pod's status during its init containers; None when they are done."""
    specs = {each.get("name"): each for each in at(pod, "spec.initContainers") or ()}
    for index, status in enumerate(states):
        state = status.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        sidecar = (specs.get(status.get("name")) or {}).get("restartPolicy") == "Always"
        if sidecar and status.get("started"):
            continue
        if ended is not None:
            return "Init:" + _ended_words(ended)
        reason = (waiting or {}).get("reason")
        if reason and reason != "PodInitializing":
            return f"Init:{reason}"
        return f"Init:{index}/{len(specs)}"
    return None


def _ended_words(ended: View) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


def _pod_status(pod: View, _: float) -> str:
    status = pod.get("status") or {}
    reason = str(status.get("reason") or status.get("phase") or "")
    conditions = status.get("conditions") or ()
    if any(
        each.get("type") == "PodScheduled" and each.get("reason") == "SchedulingGated"
        for each in conditions
    ):
        reason = "SchedulingGated"
    init = _init_status(pod, status.get("initContainerStatuses") or [])
    if init is not None:
        reason = init
    else:
        running = False
        for each in reversed(status.get("containerStatuses") or []):
            state = each.get("state") or {}
            waiting, ended = state.get("waiting") or {}, state.get("terminated")
            if waiting.get("reason"):
                reason = waiting["reason"]
            elif ended is not None:
                reason = _ended_words(ended)
            elif each.get("ready") and state.get("running") is not None:
                running = True
        if reason == "Completed" and running:
            ready = any(
                each.get("type") == "Ready" and each.get("status") == "True" for each in conditions
            )
            reason = "Running" if ready else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in {"Succeeded", "Failed"}:
            return "Terminating"
    return reason


def _pod_ready(pod: View, _: float) -> str:
    states = at(pod, "status.containerStatuses") or ()
    ready = sum(
        bool(each.get("ready")) and (each.get("state") or {}).get("running") is not None
        for each in states
    )
    return f"{ready}/{len(at(pod, 'spec.containers') or ())}"


def _pod_restarts(pod: View, now: float) -> str:
    states = at(pod, "status.containerStatuses") or ()
    count = sum(each.get("restartCount", 0) for each in states)
    ends = [
        finished
        for each in states
        if (finished := at(each, "lastState.terminated.finishedAt")) is not None
    ]
    return f"{count} ({age(max(ends), now)} ago)" if count and ends else str(count)


def _pod_gates(pod: View, _: float) -> str:
    gates = at(pod, "spec.readinessGates") or ()
    if not gates:
        return NONE
    met = {
        each.get("type")
        for each in at(pod, "status.conditions") or ()
        if each.get("status") == "True"
    }
    return f"{sum(gate.get('conditionType') in met for gate in gates)}/{len(gates)}"


def _default_pod(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    default_pod_spec(spec)
    # for pods only: the limits of templates may still change (`SetDefaults_Pod`)
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or ():
            limits = container["resources"].get("limits")
            if limits:
                requests = container["resources"].setdefault("requests", {})
                for name, amount in limits.items():
                    requests.setdefault(name, amount)
    obj["spec"].setdefault("enableServiceLinks", True)
    obj.setdefault("status", {})
    obj["status"].setdefault("phase", "Pending")


def _check_pod(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = check_pod_spec(spec, "spec", obj["metadata"])
    if spec.get("serviceAccountName"):
        return causes
    why = "must not be specified when serviceAccountName is not set"
    return causes + [
        forbidden_value(
            f"spec.volumes[{index}].projected.sources[{number}].serviceAccountToken", why
        )
        for index, volume in enumerate(spec.get("volumes") or ())
        for number, source in enumerate((volume.get("projected") or {}).get("sources") or ())
        if "serviceAccountToken" in source
    ]


def _check_new_pod(obj: View) -> list[Cause]:
    spec, causes = obj.get("spec") or {}, list[Cause]()
    if spec.get("ephemeralContainers"):
        causes.append(forbidden_value("spec.ephemeralContainers", "cannot be set on create"))
    if spec.get("nodeName") and spec.get("schedulingGates"):
        why = "cannot be set until all schedulingGates have been cleared"
        causes.append(forbidden_value("spec.nodeName", why))
    return causes


_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _tolerate(spec: Object) -> None:
    """Add tolerations of five minutes for lost nodes (`defaulttolerationseconds`)."""
    tolerations = spec.setdefault("tolerations", [])
    for key in _NOT_READY:
        tolerated = any(
            toleration.get("effect") in (None, "", "NoExecute")
            and toleration.get("key") in (None, "", key)
            for toleration in tolerations
        )
        if not tolerated:
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
            )


def _complete_pod(obj: Object) -> None:
    spec = obj["spec"]
    _tolerate(spec)
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _admit_pod(obj: Object) -> None:
    obj["status"] = {"phase": "Pending", "qosClass": qos_class(obj["spec"])}


def _carry_pod(new: Object, _: View) -> None:
    _tolerate(new.setdefault("spec", {}))


def _keep_but_resources(new: Object, old: View) -> None:
    """Keep everything except container resources (`dropNonResizeUpdates` of registry/core/pod)."""
    wanted, kept = new.get("spec") or {}, copy_of(old["spec"])
    for group in ("containers", "initContainers"):
        given, present = wanted.get(group) or [], kept.get(group) or []
        if [each.get("name") for each in given] != [each.get("name") for each in present]:
            return  # validation refuses the change
        for container, before in zip(given, present, strict=True):
            for key in ("resources", "resizePolicy"):
                carry(before, container, key)
    _keep_but(new, old, kept)


def _keep_but_ephemeral(new: Object, old: View) -> None:
    kept = dict(old["spec"])
    carry(kept, new.get("spec") or {}, "ephemeralContainers")
    _keep_but(new, old, kept)


def _keep_but(new: Object, old: View, spec: Object) -> None:
    new["spec"] = spec
    carry(new, old, "status")
    for key in ("labels", "annotations", "finalizers", "ownerReferences"):
        carry(new["metadata"], old["metadata"], key)


def _conditions(pod: View) -> list[Object]:
    found = _ENDED.get(at(pod, "status.phase"))
    if found is None:
        return []
    reason, message = found
    return [{"type": "Completed", "status": "True", "reason": reason, "message": message}]


_ENDED = {
    "Succeeded": ("Succeeded", "The pod has completed successfully."),
    "Failed": ("Failed", "The pod failed."),
}


def _settle(new: Object, old: View, _: str) -> None:
    """Keep the quality of service class, which can't be removed."""
    known = (old.get("status") or {}).get("qosClass")
    if known:
        status_of(new).setdefault("qosClass", known)


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "pods": Kind(
        complete=_complete_pod,
        status_leaves="ownerReferences",
        settle=_settle,
        generation=True,
        returns_deleted=True,
        graceful=True,
        fields=paths(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
            hostNetwork="false",
        ),
        defaults=_default_pod,
        admit=_admit_pod,
        carry=_carry_pod,
        parts={"resize": _keep_but_resources, "ephemeralcontainers": _keep_but_ephemeral},
        conditions=_conditions,
        rule=_check_pod,
        new_rule=_check_new_pod,
        update_rule=check_pod_update,
        part_rules={"resize": check_resize, "ephemeralcontainers": check_ephemeral},
        cells={
            "Ready": _pod_ready,
            "Status": _pod_status,
            "Restarts": _pod_restarts,
            "IP": text("status.podIP"),
            "Node": text("spec.nodeName"),
            "Nominated Node": text("status.nominatedNodeName"),
            "Readiness Gates": _pod_gates,
        },
    ),
}
