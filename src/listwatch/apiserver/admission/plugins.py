"""Applies classes and limit ranges to new pods and claims.

The rules are those of `plugin/pkg/admission/priority`, `runtimeclass` and `limitranger`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from listwatch.apiserver import refusal
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.rules import quantity
from listwatch.schema.typed import canonical_quantity

Object = dict[str, Any]
#: Returns the objects of a kind, by storage key, in a namespace or ("") in all.
Lookup = Callable[[str, str], Iterable[Object]]

_SYSTEM = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_ANNOTATION = "kubernetes.io/limit-ranger"
_NOT_GIVEN = (
    "must not be provided in pod spec; priority admission controller computed {} from the given "
    "PriorityClass name"
)


def complete(resource: APIResource, namespace: str, obj: Object, lookup: Lookup) -> None:
    """Set the fields of a new object that classes and limit ranges determine.

    Raises:
        ForbiddenError: 403, they forbid the object.
    """
    if resource.storage == "pods":
        refused = _limit_defaults(obj, lookup("limitranges", namespace))
        refused = refused or _priority(obj["spec"], lookup) or _runtime(obj["spec"], lookup)
        if refused:
            raise refusal.forbidden_object(resource, obj["metadata"].get("name", ""), refused)


def check(resource: APIResource, namespace: str, obj: Object, lookup: Lookup) -> None:
    """Check a new object against the limit ranges of its namespace.

    Raises:
        ForbiddenError: 403, it exceeds one.
    """
    if resource.storage not in {"pods", "persistentvolumeclaims"}:
        return
    found: list[str] = []
    for limits in lookup("limitranges", namespace):
        for item in (limits.get("spec") or {}).get("limits") or ():
            found += _beyond(resource.storage, obj["spec"], item)
    if found:
        why = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
        raise refusal.forbidden_object(resource, obj["metadata"].get("name", ""), why)


def _priority(spec: Object, lookup: Lookup) -> str:
    """Set a pod's priority from its class; return why the pod is refused, or ""."""
    name = spec.get("priorityClassName")
    classes = {
        each["metadata"]["name"]: each
        for each in lookup("scheduling.k8s.io/priorityclasses", "")
        if each["metadata"]["name"] == name or (not name and each.get("globalDefault"))
    }
    value, policy = 0, "PreemptLowerPriority"
    if name and name not in classes and name not in _SYSTEM:
        return f"no PriorityClass with name {name} was found"
    if classes:
        chosen = min(classes.values(), key=lambda each: each.get("value", 0))
        spec["priorityClassName"] = chosen["metadata"]["name"]
        value, policy = chosen.get("value", 0), chosen.get("preemptionPolicy", policy)
    elif name:
        value = _SYSTEM[name]
    given, wanted = spec.get("priority"), spec.get("preemptionPolicy")
    if given is not None and given != value:
        return f"the integer value of priority ({given}) {_NOT_GIVEN.format(value)}"
    if wanted is not None and wanted != policy:
        return f"the string value of PreemptionPolicy ({wanted}) {_NOT_GIVEN.format(policy)}"
    spec["priority"], spec["preemptionPolicy"] = value, policy
    return ""


def _runtime(spec: Object, lookup: Lookup) -> str:
    """Set a pod's fields from its runtime class; return why the pod is refused, or ""."""
    name, own = spec.get("runtimeClassName"), spec.get("overhead")
    overhead: Object | None = None
    if name:
        found = next(
            (
                each
                for each in lookup("node.k8s.io/runtimeclasses", "")
                if each["metadata"]["name"] == name
            ),
            None,
        )
        if found is None:
            return f'pod rejected: RuntimeClass "{name}" not found'
        overhead = (found.get("overhead") or {}).get("podFixed")
        scheduling = found.get("scheduling") or {}
        selector = scheduling.get("nodeSelector") or {}
        present = spec.get("nodeSelector") or {}
        for key, value in selector.items():
            if present.get(key, value) != value:
                return (
                    f"pod rejected: conflict: runtimeClass.scheduling.nodeSelector[{key}] = "
                    f"{value}; pod.spec.nodeSelector[{key}] = {present[key]}"
                )
        if selector:
            spec["nodeSelector"] = {**selector, **present}
        if scheduling.get("tolerations"):
            added = [
                each
                for each in scheduling["tolerations"]
                if each not in (spec.get("tolerations") or ())
            ]
            spec["tolerations"] = [*(spec.get("tolerations") or ()), *added]
    if own and overhead is None:
        return "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
    if own and own != overhead:
        return "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
    if overhead is not None:
        spec["overhead"] = dict(overhead)
    return ""


def _limit_defaults(pod: Object, ranges: Iterable[Object]) -> str:
    """Set containers' defaults from limit ranges; return "", because that never fails."""
    notes: list[str] = []
    for limits in ranges:
        for item in (limits.get("spec") or {}).get("limits") or ():
            if item.get("type") != "Container":
                continue
            for container, word in _containers(pod["spec"]):
                notes += _default_container(container, item, word)
    if notes:
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations[_ANNOTATION] = "LimitRanger plugin set: " + "; ".join(notes)
    return ""


def _containers(spec: Object) -> Iterator[tuple[Object, str]]:
    for container in spec.get("containers") or ():
        yield container, "container"
    for container in spec.get("initContainers") or ():
        yield container, "init container"


def _default_container(container: Object, item: Object, word: str) -> list[str]:
    notes = []
    resources = container.setdefault("resources", {})
    for group, key, name in (
        ("requests", "defaultRequest", "request"),
        ("limits", "default", "limit"),
    ):
        present = resources.get(group) or {}
        missing = {
            each: amount for each, amount in (item.get(key) or {}).items() if each not in present
        }
        if missing:
            resources[group] = {**present, **missing}
            notes.append(f"{', '.join(sorted(missing))} {name} for {word} {container['name']}")
    return notes


def _beyond(storage: str, spec: Object, item: Object) -> list[str]:
    """Return how an object violates one item of a limit range."""
    kind = item.get("type")
    if storage == "persistentvolumeclaims":
        if kind != "PersistentVolumeClaim":
            return []
        requests = (spec.get("resources") or {}).get("requests") or {}
        return [
            *_too_little(item, requests, {}),
            *_over(item, "request", requests),
        ]
    found: list[str] = []
    if kind == "Container":
        for container, _ in _containers(spec):
            resources = container.get("resources") or {}
            found += _beyond_item(item, resources)
    elif kind == "Pod":
        total: Object = {"requests": {}, "limits": {}}
        for group, sums in total.items():
            for container in spec.get("containers") or ():
                amounts = (container.get("resources") or {}).get(group) or {}
                for name, amount in amounts.items():
                    sums[name] = added(sums.get(name, "0"), amount)
        found += _beyond_item(item, total)
    return found


def _beyond_item(item: Object, resources: Mapping[str, Any]) -> list[str]:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    found = _too_little(item, requests, limits)
    for name, most in (item.get("max") or {}).items():
        if name not in limits:
            found.append(f"{_said('maximum', item, name, most)}.  No limit is specified")
    found += _over(item, "limit", limits) or _over(item, "request", requests)
    for name, ratio in (item.get("maxLimitRequestRatio") or {}).items():
        asked, limit = quantity(requests.get(name, "0")), quantity(limits.get(name, "0"))
        if asked and limit / asked > quantity(ratio):
            found.append(
                f"{name} max limit to request ratio per {item['type']} is {ratio}, but provided "
                f"ratio is {limit / asked:f}"
            )
    return found


def _said(word: str, item: Object, name: str, amount: str) -> str:
    return f"{word} {name} usage per {item['type']} is {amount}"


def _too_little(item: Object, requests: Object, limits: Object) -> list[str]:
    found = []
    for name, least in (item.get("min") or {}).items():
        said = _said("minimum", item, name, least)
        if name not in requests:
            found.append(f"{said}.  No request is specified")
        elif quantity(requests[name]) < quantity(least):
            found.append(f"{said}, but request is {requests[name]}")
        elif name in limits and quantity(limits[name]) < quantity(least):
            found.append(f"{said}, but limit is {limits[name]}")
    return found


def _over(item: Object, word: str, amounts: Object) -> list[str]:
    return [
        f"{_said('maximum', item, name, most)}, but {word} is {amounts[name]}"
        for name, most in (item.get("max") or {}).items()
        if name in amounts and quantity(amounts[name]) > quantity(most)
    ]


def added(first: str, second: str) -> str:
    """Return the sum of two quantities, in the form of the second."""
    total = round((quantity(first) + quantity(second)) * 1000)
    if total % 1000:
        return canonical_quantity(f"{total}m")
    whole = total // 1000
    if second.endswith("i") and whole % 1024 == 0:
        return canonical_quantity(f"{whole // 1024}Ki")
    return canonical_quantity(str(whole))
