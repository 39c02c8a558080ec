"""Checks whether a pod may be evicted (`pkg/registry/core/pod/storage/eviction.go`)."""

from collections.abc import Iterable
from typing import Any

from listwatch.apiserver import refusal
from listwatch.errors import StatusError, TooManyRequestsError
from listwatch.selector import LabelSelector, SelectorError

Object = dict[str, Any]

_VIOLATED = "Cannot evict pod as it would violate the pod's disruption budget."


def spend(pod: Object, budgets: Iterable[Object], now: str) -> Object | None:
    """Charge an eviction to a pod's budget; return the budget, changed in place, if there is one.

    Args:
        pod: the pod.
        budgets: all budgets of its namespace.
        now: the timestamp of the eviction.

    Raises:
        TooManyRequestsError: 429, the budget allows none now.
        StatusError: 500, the pod has several budgets.
    """
    if pod["metadata"].get("deletionTimestamp") or _is_done(pod):
        return None
    labels = pod["metadata"].get("labels") or {}
    found = [budget for budget in budgets if _selects(budget, labels)]
    if not found:
        return None
    if len(found) > 1:
        raise refusal.internal_error(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does "
            "not support."
        )
    budget = found[0]
    status = budget.setdefault("status", {})
    if not _is_ready(pod) and _spares_unready(budget):
        return None
    name, generation = budget["metadata"]["name"], budget["metadata"].get("generation", 0)
    if status.get("observedGeneration", 0) < generation:
        raise _refused(f"The disruption budget {name} is still being processed by the server.")
    allowed = status.get("disruptionsAllowed", 0)
    if allowed <= 0:
        raise _refused(
            f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods "
            f"and has {status.get('currentHealthy', 0)} currently"
        )
    status["disruptionsAllowed"] = allowed - 1
    disrupted = status.setdefault("disruptedPods", {})
    disrupted[pod["metadata"]["name"]] = now
    if allowed == 1:
        kept = [
            each for each in status.get("conditions") or () if each["type"] != "DisruptionAllowed"
        ]
        spent = {
            "type": "DisruptionAllowed",
            "status": "False",
            "observedGeneration": status.get("observedGeneration", 0),
            "lastTransitionTime": now,
            "reason": "InsufficientPods",
            "message": "",
        }
        status["conditions"] = [*kept, spent]
    return budget


def _is_done(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in {"Pending", "Succeeded", "Failed"}


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _spares_unready(budget: Object) -> bool:
    """Return whether pods that are not ready may be evicted at no charge."""
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget["status"]
    desired = status.get("desiredHealthy", 0)
    return bool(0 < desired <= status.get("currentHealthy", 0))


def _selects(budget: Object, labels: Object) -> bool:
    selector = (budget.get("spec") or {}).get("selector")
    if selector is None:
        return False
    try:
        return LabelSelector.from_dict(selector).matches(labels)
    except SelectorError:
        return False


def _refused(why: str) -> StatusError:
    return TooManyRequestsError(
        _VIOLATED, details={"causes": [{"reason": "DisruptionBudget", "message": why}]}
    )
