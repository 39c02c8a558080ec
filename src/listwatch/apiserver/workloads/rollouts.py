"""Computes the replicas of each ReplicaSet of a Deployment."""

import math

from listwatch.apiserver.workloads.observed import View

DESIRED = "deployment.kubernetes.io/desired-replicas"
MOST = "deployment.kubernetes.io/max-replicas"


def replicas_of(obj: View) -> int:
    """Return the replicas that an object asks for."""
    return int(obj["spec"].get("replicas", 1))


def available_of(replica_set: View) -> int:
    """Return the number of available pods of a ReplicaSet."""
    return int((replica_set.get("status") or {}).get("availableReplicas", 0))


def resolve(value: int | str | None, total: int, *, up: bool) -> int:
    """Return a number, or the number for a percentage of a total."""
    if isinstance(value, str):
        share = int(value.removesuffix("%")) * total / 100
        return math.ceil(share) if up else math.floor(share)
    return value or 0


def surge_and_unavailable(deployment: View) -> tuple[int, int]:
    """Return maximum surge and maximum unavailable pods (`ResolveFenceposts`)."""
    total = replicas_of(deployment)
    strategy = deployment["spec"].get("strategy") or {}
    if strategy.get("type") != "RollingUpdate" or not total:
        return 0, 0
    rolling = strategy.get("rollingUpdate") or {}
    surge = resolve(rolling.get("maxSurge"), total, up=True)
    missing = resolve(rolling.get("maxUnavailable"), total, up=False)
    if not surge and not missing:
        missing = 1
    return surge, min(missing, total)


def new_replicas(deployment: View, new: View, sets: list[View]) -> int:
    """Return the next replicas of the newest ReplicaSet (`NewRSNewReplicas`)."""
    total, present = replicas_of(deployment), replicas_of(new)
    if present >= total or deployment["spec"]["strategy"]["type"] == "Recreate":
        return total
    surge, _ = surge_and_unavailable(deployment)
    room = total + surge - sum(map(replicas_of, sets))
    return present if room <= 0 else present + min(room, total - present)


def old_replicas(deployment: View, new: View, old: list[View]) -> dict[str, int]:
    """Return the next replicas of older ReplicaSets, by name, for those that change.

    Shrinks unready ones first, then as many as the number of available pods allows.
    """
    if not sum(map(replicas_of, old)):
        return {}
    _, missing = surge_and_unavailable(deployment)
    least = replicas_of(deployment) - missing
    sets = [*old, new]
    waiting = replicas_of(new) - available_of(new)
    room = sum(map(replicas_of, sets)) - least - waiting
    if room <= 0:
        return {}
    plan = {each["metadata"]["name"]: replicas_of(each) for each in old}
    for each in old:
        unhealthy = plan[each["metadata"]["name"]] - available_of(each)
        gone = min(room, max(0, unhealthy))
        plan[each["metadata"]["name"]] -= gone
        room -= gone
    spare = sum(map(available_of, sets)) - least
    for each in old:
        gone = min(max(0, spare), plan[each["metadata"]["name"]])
        plan[each["metadata"]["name"]] -= gone
        spare -= gone
    return {
        each["metadata"]["name"]: plan[each["metadata"]["name"]]
        for each in old
        if plan[each["metadata"]["name"]] != replicas_of(each)
    }


def scaled(deployment: View, new: View | None, old: list[View]) -> dict[str, int]:
    """Return the replicas of each ReplicaSet when only the number of replicas changed.

    During a rollout all grow or shrink in proportion, like `scale` of
    pkg/controller/deployment/sync.go.
    """
    sets = [*old, *([] if new is None else [new])]
    total = replicas_of(deployment)
    active = [each for each in sets if replicas_of(each)]
    if len(active) <= 1:
        one = active[0] if active else (new if new is not None else next(reversed(sets), None))
        if one is None or replicas_of(one) == total:
            return {}
        return {one["metadata"]["name"]: total}
    if new is not None and replicas_of(new) == total == available_of(new):
        return {each["metadata"]["name"]: 0 for each in old if replicas_of(each)}
    if deployment["spec"]["strategy"]["type"] != "RollingUpdate":
        return {}
    surge, _ = surge_and_unavailable(deployment)
    allowed = total + surge if total else 0
    add = allowed - sum(map(replicas_of, active))
    return _in_proportion(active, add, allowed)


def _in_proportion(active: list[View], add: int, allowed: int) -> dict[str, int]:
    # largest first; among equals the newest first when adding replicas, otherwise the oldest
    order = sorted(active, key=lambda each: each["metadata"]["creationTimestamp"], reverse=add > 0)
    order.sort(key=replicas_of, reverse=True)
    plan, added = {}, 0
    for each in order:
        present = replicas_of(each)
        annotations = each["metadata"].get("annotations") or {}
        before = int(annotations.get(MOST) or 0) or allowed
        share = round(present * allowed / before) - present
        left = add - added
        share = min(share, left) if add > 0 else max(share, left)
        if add == 0:
            share = 0
        plan[each["metadata"]["name"]] = present + share
        added += share
    first = order[0]["metadata"]["name"]
    plan[first] = max(0, plan[first] + add - added)
    return plan
