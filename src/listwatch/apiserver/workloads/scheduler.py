"""The scheduler: the node for a pod, or the reason why none fits."""

from collections import Counter
from collections.abc import Iterable, Mapping

from listwatch.apiserver.workloads.claims import claims_of
from listwatch.apiserver.workloads.observed import (
    CLAIMS,
    NODES,
    PODS,
    Bind,
    Object,
    Observed,
    Steps,
    Update,
    View,
    condition,
    with_condition,
)
from listwatch.apiserver.workloads.occupancy import PODS_RESOURCE, requests_of, thousandths
from listwatch.apiserver.workloads.pods import is_deleting, is_finished

_NAME = "default-scheduler"


def step_unbound(observed: Observed, pod: View) -> Steps:
    """Bind an unscheduled pod to the emptiest node that fits, or report why none does."""
    spec = pod["spec"]
    if spec.get("nodeName") or is_deleting(pod) or is_finished(pod):
        return []
    if spec.get("schedulerName", _NAME) != _NAME:
        return []
    if spec.get("schedulingGates"):
        words = "Scheduling is blocked due to non-empty scheduling gates"
        return _tell(observed, pod, "SchedulingGated", words)
    nodes = observed.objects(NODES)
    missing = _missing_claim(observed, pod)
    if missing:
        words = f"0/{len(nodes)} nodes are available: {missing}."
        return _tell(observed, pod, "Unschedulable", words)
    wanted = requests_of(pod)
    fitting: list[tuple[int, str]] = []
    reasons: Counter[str] = Counter()
    for node in nodes:
        why = reasons_against(observed, pod, node, wanted)
        reasons.update(why)
        if not why:
            name = node["metadata"]["name"]
            fitting.append((observed.occupancy.on(name).get(PODS_RESOURCE, 0), name))
    if fitting:
        return [Bind(pod, min(fitting)[1])]
    if not nodes:
        return _tell(observed, pod, "Unschedulable", "no nodes available to schedule pods")
    counted = ", ".join(sorted(f"{count} {why}" for why, count in reasons.items()))
    return _tell(
        observed,
        pod,
        "Unschedulable",
        f"0/{len(nodes)} nodes are available: {counted}. preemption: 0/{len(nodes)} nodes are "
        "available: "
        f"{len(nodes)} Preemption is not helpful for scheduling.",
    )


def _missing_claim(observed: Observed, pod: View) -> str:
    """Return why a pod's claims block it, or ""."""
    for name in claims_of(pod):
        claim = observed.find(CLAIMS, pod["metadata"]["namespace"], name)
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if not claim["spec"].get("volumeName"):
            return "pod has unbound immediate PersistentVolumeClaims"
    return ""


def _tell(observed: Observed, pod: View, reason: str, message: str) -> Steps:
    known = condition(pod, "PodScheduled") or {}
    if (known.get("reason"), known.get("message")) == (reason, message):
        return []
    told: Object = {
        "type": "PodScheduled",
        "status": "False",
        "lastProbeTime": None,
        "lastTransitionTime": observed.stamp,
        "reason": reason,
        "message": message,
    }
    status = dict(pod.get("status") or {})
    status["conditions"] = with_condition(status.get("conditions") or (), told)
    return [Update(PODS, {**pod, "status": status}, "status")]


def reasons_against(
    observed: Observed, pod: View, node: View, wanted: Mapping[str, int] | None = None
) -> list[str]:
    """Return why a node can't run a pod, in kube-scheduler's words."""
    spec = pod["spec"]
    if node["spec"].get("unschedulable") and not _tolerates_unschedulable(spec):
        return ["node(s) were unschedulable"]
    for taint in node["spec"].get("taints") or ():
        if taint.get("effect") in {"NoSchedule", "NoExecute"} and not tolerated(spec, taint):
            text = f"{taint.get('key')}: {taint.get('value', '')}"
            return [f"node(s) had untolerated taint {{{text}}}"]
    if not selected(spec, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    if wanted is None:
        return []
    name = node["metadata"]["name"]
    room = thousandths((node.get("status") or {}).get("allocatable") or {})
    used = observed.occupancy.on(name)
    short = [
        resource
        for resource, amount in wanted.items()
        if amount and used.get(resource, 0) + amount > room.get(resource, 0)
    ]
    return [
        "Too many pods" if resource == PODS_RESOURCE else f"Insufficient {resource}"
        for resource in short
    ]


def _tolerates_unschedulable(spec: View) -> bool:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    return tolerated(spec, taint)


def tolerated(spec: View, taint: View) -> bool:
    """Return whether a pod's tolerations allow a taint."""
    return toleration_of(spec, taint) is not None


def toleration_of(spec: View, taint: View) -> View | None:
    """Return the toleration that allows a taint, or None."""
    for each in spec.get("tolerations") or ():
        if each.get("effect") not in {None, "", taint.get("effect")}:
            continue
        if each.get("key") not in {None, "", taint.get("key")}:
            continue
        if each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""):
            found: View = each
            return found
    return None


def selected(spec: View, node: View) -> bool:
    """Return whether a pod's node selector and required node affinity allow a node."""
    labels = node["metadata"].get("labels") or {}
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_matches(term, node) for term in required.get("nodeSelectorTerms") or ())


def _matches(term: View, node: View) -> bool:
    labels = node["metadata"].get("labels") or {}
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    names = {"metadata.name": node["metadata"]["name"]}
    return _all_hold(expressions, labels) and _all_hold(fields, names)


def _all_hold(expressions: Iterable[View], values: Mapping[str, str]) -> bool:
    return all(_holds(each, values.get(each.get("key", ""))) for each in expressions)


def _holds(expression: View, value: str | None) -> bool:
    operator, wanted = expression.get("operator"), expression.get("values") or []
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator == "NotIn":
        return value not in wanted
    if operator == "In":
        return value in wanted
    try:
        number, bound = int(value or ""), int(wanted[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else number < bound
