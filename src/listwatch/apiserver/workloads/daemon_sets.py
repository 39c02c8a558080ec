"""DaemonSet: one pod on each eligible node."""

from listwatch.apiserver.workloads.observed import (
    DAEMON_SETS,
    NODES,
    PODS,
    Create,
    Delete,
    Later,
    Object,
    Observed,
    Steps,
    View,
)
from listwatch.apiserver.workloads.pods import (
    available_in,
    is_deleting,
    is_finished,
    is_ready,
    pod_of,
    status_update,
)
from listwatch.apiserver.workloads.revisions import HASH, forget_old, step_owner
from listwatch.apiserver.workloads.rollouts import resolve
from listwatch.apiserver.workloads.scheduler import reasons_against

#: The tolerations of every DaemonSet pod (`AddOrUpdateDaemonPodTolerations`).
_TOLERATIONS = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_GENERATION = "pod-template-generation"


def step_daemon_set(observed: Observed, obj: View) -> Steps:
    """Bring the pods of a DaemonSet closer to its spec, and its status up to date."""

    def step(pods: list[View], revisions: list[View], update: View) -> Steps:
        return _Daemons(observed, obj, pods, revisions, update).steps()

    return step_owner(observed, obj, DAEMON_SETS, "DaemonSet", HASH, step)


class _Daemons:
    """One look at a DaemonSet, its pods and the nodes."""

    def __init__(
        self, observed: Observed, obj: View, pods: list[View], revisions: list[View], update: View
    ) -> None:
        self._observed = observed
        self._obj = obj
        self._spec: View = obj["spec"]
        self._revisions = revisions
        self._digest: str = update["metadata"]["labels"][HASH]
        self._pods: dict[str, list[View]] = {}
        for pod in pods:
            self._pods.setdefault(_node_of(pod), []).append(pod)
        # those that match the template first, then the oldest
        for found in self._pods.values():
            found.sort(
                key=lambda pod: (not self._is_new(pod), pod["metadata"]["creationTimestamp"])
            )
        probe = pod_of(self._spec["template"], obj, "apps/v1", "DaemonSet")
        _tolerate(probe["spec"])
        nodes = observed.objects(NODES)
        self._nodes = [node["metadata"]["name"] for node in nodes]
        self._wanted = [
            node["metadata"]["name"] for node in nodes if not reasons_against(observed, probe, node)
        ]
        self._least = self._spec.get("minReadySeconds") or 0

    def steps(self) -> Steps:
        steps = self._place() or self._roll()
        live = {
            (pod["metadata"].get("labels") or {}).get(HASH, "")
            for found in self._pods.values()
            for pod in found
        }
        limit = self._spec.get("revisionHistoryLimit", 10)
        steps += forget_old(self._revisions, {*live, self._digest}, limit, HASH)
        waits = [
            seconds
            for found in self._pods.values()
            for pod in found
            if (seconds := available_in(self._observed, pod, self._least))
        ]
        later: Steps = [Later(min(waits))] if waits else []
        return [*steps, *status_update(DAEMON_SETS, self._obj, self._status()), *later]

    def _is_new(self, pod: View) -> bool:
        return bool((pod["metadata"].get("labels") or {}).get(HASH) == self._digest)

    def _is_available(self, pod: View) -> bool:
        return not is_deleting(pod) and available_in(self._observed, pod, self._least) == 0

    def _living(self, node: str) -> list[View]:
        return [pod for pod in self._pods.get(node, ()) if not is_deleting(pod)]

    def _place(self) -> Steps:
        """Create missing pods; delete finished, surplus and misplaced ones."""
        steps: Steps = []
        wanted = set(self._wanted)
        for node in self._wanted:
            found = self._pods.get(node, [])
            ended = [pod for pod in found if is_finished(pod) and not is_deleting(pod)]
            steps += [Delete(PODS, pod) for pod in ended]
            # its replacement is created once the last one is gone
            living = [pod for pod in self._living(node) if pod not in ended]
            if not found:
                steps.append(Create(PODS, self._pod(node)))
            surging = self._surge and len({self._is_new(pod) for pod in living}) > 1
            steps += [Delete(PODS, pod) for pod in living[2 if surging else 1 :]]
        for node, found in self._pods.items():
            if node not in wanted:
                steps += [Delete(PODS, pod) for pod in found if not is_deleting(pod)]
        return steps

    @property
    def _rolling(self) -> View:
        strategy = self._spec.get("updateStrategy") or {}
        rolling: View = strategy.get("rollingUpdate") or {}
        return rolling

    @property
    def _surge(self) -> int:
        return resolve(self._rolling.get("maxSurge", 0), len(self._wanted), up=True)

    def _roll(self) -> Steps:
        """Replace pods of an older revision, within maxUnavailable and maxSurge."""
        if (self._spec.get("updateStrategy") or {}).get("type") == "OnDelete":
            return []
        if self._surge:
            return self._roll_over()
        limit = resolve(self._rolling.get("maxUnavailable", 1), len(self._wanted), up=True)
        missing, old = 0, []
        for node in self._wanted:
            living = self._living(node)
            available = any(map(self._is_available, living))
            missing += not available
            if living and not self._is_new(living[0]):
                old.append((available, living[0]))
        # delete unavailable pods at once
        steps: Steps = [Delete(PODS, pod) for available, pod in old if not available]
        serving = [pod for available, pod in old if available]
        return steps + [Delete(PODS, pod) for pod in serving[: max(0, limit - missing)]]

    def _roll_over(self) -> Steps:
        """Start new pods next to the old ones; delete an old one when its new one is available."""
        steps: Steps = []
        surging = 0
        for node in self._wanted:
            living = self._living(node)
            new = [pod for pod in living if self._is_new(pod)]
            old = [pod for pod in living if not self._is_new(pod)]
            if new and old and self._is_available(new[0]):
                steps += [Delete(PODS, pod) for pod in old]
            elif new and old:
                surging += 1
            elif old and surging < self._surge:
                surging += 1
                steps.append(Create(PODS, self._pod(node)))
        return steps

    def _pod(self, node: str) -> Object:
        pod = pod_of(self._spec["template"], self._obj, "apps/v1", "DaemonSet")
        annotations = self._obj["metadata"].get("annotations") or {}
        generation = annotations.get("deprecated.daemonset.template.generation", "1")
        labels = pod["metadata"].setdefault("labels", {})
        labels |= {HASH: self._digest, _GENERATION: generation}
        spec = pod["spec"]
        _tolerate(spec)
        term = {"matchFields": [{"key": _FIELD, "operator": "In", "values": [node]}]}
        affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        required = affinity.setdefault(_REQUIRED, {"nodeSelectorTerms": [{}]})
        # the node name replaces other fields (`ReplaceDaemonSetPodNodeNameNodeAffinity`)
        required["nodeSelectorTerms"] = [
            {**each, **term} for each in required["nodeSelectorTerms"] or [{}]
        ]
        return pod

    def _status(self) -> Object:
        running = {
            node: [pod for pod in found if not is_finished(pod)]
            for node, found in self._pods.items()
        }
        placed = [running[node] for node in self._wanted if running.get(node)]
        ready = sum(any(is_ready(pod) for pod in found) for found in placed)
        available = sum(any(map(self._is_available, found)) for found in placed)
        updated = sum(any(map(self._is_new, found)) for found in placed)
        elsewhere = [node for node in running if node not in self._wanted and running[node]]
        status = {
            "currentNumberScheduled": len(placed),
            "numberMisscheduled": len(elsewhere),
            "desiredNumberScheduled": len(self._wanted),
            "numberReady": ready,
            "observedGeneration": self._obj["metadata"].get("generation", 0),
            "updatedNumberScheduled": updated,
            "numberAvailable": available,
            "numberUnavailable": len(self._wanted) - available,
        }
        before = self._obj.get("status") or {}
        kept = {key: before[key] for key in ("collisionCount", "conditions") if key in before}
        return {
            **{key: value for key, value in status.items() if value or key in _ALWAYS},
            **kept,
        }


_FIELD = "metadata.name"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ALWAYS = frozenset(
    ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
)


def _node_of(pod: View) -> str:
    """Return the node that a pod is on or intended for."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    for term in (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ():
        for each in term.get("matchFields") or ():
            if each.get("key") == _FIELD and each.get("values"):
                return str(each["values"][0])
    return ""


def _tolerate(spec: Object) -> None:
    tolerations = spec.setdefault("tolerations", [])
    known = {(each.get("key"), each.get("effect")) for each in tolerations}
    wanted = list(_TOLERATIONS)
    if spec.get("hostNetwork"):
        wanted.append(("node.kubernetes.io/network-unavailable", "NoSchedule"))
    for key, effect in wanted:
        if (key, effect) not in known:
            tolerations.append({"key": key, "operator": "Exists", "effect": effect})
