"""The cells of a table of pods, whose status says the most."""

from collections.abc import Mapping

from listwatch.apiserver.kinds.cells import NONE, Cell, Object, age, at, text


def _init_status(pod: Object, states: list[Object]) -> str | None:
    """Return what a pod's init containers make of its status; None when they are done."""
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


def _ended_words(ended: Object) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


def _pod_status(pod: Object, _: float) -> str:
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


def _pod_ready(pod: Object, _: float) -> str:
    states = at(pod, "status.containerStatuses") or ()
    ready = sum(
        bool(each.get("ready")) and (each.get("state") or {}).get("running") is not None
        for each in states
    )
    return f"{ready}/{len(at(pod, 'spec.containers') or ())}"


def _pod_restarts(pod: Object, now: float) -> str:
    states = at(pod, "status.containerStatuses") or ()
    count = sum(each.get("restartCount", 0) for each in states)
    ends = [
        finished
        for each in states
        if (finished := at(each, "lastState.terminated.finishedAt")) is not None
    ]
    return f"{count} ({age(max(ends), now)} ago)" if count and ends else str(count)


def _pod_gates(pod: Object, _: float) -> str:
    gates = at(pod, "spec.readinessGates") or ()
    if not gates:
        return NONE
    met = {
        each.get("type")
        for each in at(pod, "status.conditions") or ()
        if each.get("status") == "True"
    }
    return f"{sum(gate.get('conditionType') in met for gate in gates)}/{len(gates)}"


POD: Mapping[str, Cell] = {
    "Ready": _pod_ready,
    "Status": _pod_status,
    "Restarts": _pod_restarts,
    "IP": text("status.podIP"),
    "Node": text("spec.nodeName"),
    "Nominated Node": text("status.nominatedNodeName"),
    "Readiness Gates": _pod_gates,
}
