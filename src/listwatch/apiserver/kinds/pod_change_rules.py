"""The allowed changes of a pod, by path (`ValidatePodUpdate` and similar)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.pod_rules import check_tolerations
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, required

_FORBIDDEN = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)
_GROUPS = ("containers", "initContainers")
_LONGEST_DEADLINE = (1 << 31) - 1
_MIRROR = "kubernetes.io/config.mirror"


def check_pod_update(new: View, old: View) -> list[Cause]:
    """Return the violations of a change of a pod through its main path."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    causes: list[Cause] = []
    for group in _GROUPS:
        containers = spec.get(group) or ()
        if len(containers) != len(before.get(group) or ()):
            why = "pod updates may not add or remove containers"
            return [*causes, forbidden_value(f"spec.{group}", why)]
        for index, container in enumerate(containers):
            causes += _check_image(container.get("image"), f"spec.{group}[{index}].image")
    deadline, fatal = _check_deadline(spec, before)
    causes += deadline
    if fatal:
        return causes
    causes += _check_added(spec.get("tolerations") or (), before.get("tolerations") or ())
    known = {each.get("name") for each in before.get("schedulingGates") or ()}
    for gate in spec.get("schedulingGates") or ():
        if gate.get("name") not in known:
            why = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            causes.append(forbidden_value("spec.schedulingGates", why))
    after, fixed = _fixed_part(spec), _fixed_part(before)
    grace = "terminationGracePeriodSeconds"
    if (before.get(grace) or 0) < 0 and spec.get(grace) == 1:
        after[grace] = before[grace]
    if known:
        causes += _check_gated(after, fixed)
    if after != fixed:
        causes.append(forbidden_value("spec", _FORBIDDEN))
    return causes


def _check_image(image: str | None, path: str) -> list[Cause]:
    if not image:
        return [required(path)]
    if image.strip() != image:
        return [invalid_value(path, image, "must not have leading or trailing whitespace")]
    return []


def _check_deadline(spec: View, before: View) -> tuple[list[Cause], bool]:
    """Return the violations of the new deadline, and whether to skip all other checks."""
    where = "spec.activeDeadlineSeconds"
    now, was = spec.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")
    if now is None:
        why = "must not update from a positive integer to nil value"
        return ([] if was is None else [invalid_value(where, None, why)]), False
    if not 0 <= now <= _LONGEST_DEADLINE:
        why = f"must be between 0 and {_LONGEST_DEADLINE}, inclusive"
        return [invalid_value(where, now, why)], True
    if was is not None and was < now:
        why = "must be less than or equal to previous value"
        return [invalid_value(where, now, why)], True
    return [], False


def _check_added(tolerations: Sequence[View], before: Iterable[View]) -> list[Cause]:
    where, kept = "spec.tolerations", [_lasting(each) for each in tolerations]
    if any(_lasting(each) not in kept for each in before):
        why = "existing toleration can not be modified except its tolerationSeconds"
        return [forbidden_value(where, why)]
    return check_tolerations(tolerations, where)


def _lasting(toleration: View) -> Mapping[str, Any]:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _fixed_part(spec: View) -> dict[str, Any]:
    fixed = {
        key: value
        for key, value in spec.items()
        if key not in {"activeDeadlineSeconds", "tolerations", "schedulingGates"}
    }
    for group in _GROUPS:
        if group in fixed:
            fixed[group] = [
                {key: value for key, value in container.items() if key != "image"}
                for container in fixed[group]
            ]
    return fixed


def _check_gated(after: dict[str, Any], before: dict[str, Any]) -> list[Cause]:
    """Check the changes allowed while a pod has scheduling gates; cut them from both specs."""
    causes: list[Cause] = []
    labels, had = after.pop("nodeSelector", None) or {}, before.pop("nodeSelector", None) or {}
    if not had.items() <= labels.items():
        why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        causes.append(invalid_value("spec.nodeSelector", labels, why))
    affinity, known = (dict(each.pop("affinity", None) or {}) for each in (after, before))
    nodes, old_nodes = affinity.pop("nodeAffinity", None), known.pop("nodeAffinity", None)
    after["affinity"], before["affinity"] = affinity, known
    if old_nodes is not None and nodes != old_nodes:
        causes += _check_terms(nodes or {}, old_nodes)
    return causes


def _check_terms(affinity: View, before: View) -> list[Cause]:
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    where = f"spec.affinity.nodeAffinity.{key}.nodeSelectorTerms"
    terms, known = (
        (each.get(key) or {}).get("nodeSelectorTerms") or [] for each in (affinity, before)
    )
    if known and len(terms) != len(known):
        why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [invalid_value(where, terms, why)]
    why = "only additions are allowed (no mutations or deletions)"
    return [
        invalid_value(f"{where}[{index}]", term, why)
        for index, (term, old) in enumerate(zip(terms, known, strict=False))
        if not _only_adds(term, old)
    ]


def _only_adds(term: View, old: View) -> bool:
    parts = ("matchExpressions", "matchFields")
    if not any(old.get(part) for part in parts):
        # an empty term matches nothing, so adding to it would allow more nodes
        return not any(term.get(part) for part in parts)
    return all(
        (term.get(part) or [])[: len(old.get(part) or [])] == (old.get(part) or [])
        for part in parts
    )


def check_resize(new: View, old: View) -> list[Cause]:
    """Return the violations of a change of a pod's resources."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    if _MIRROR in (old["metadata"].get("annotations") or {}):
        return [forbidden_value("", "static pods cannot be resized")]
    if (before.get("os") or {}).get("name") == "windows":
        return [forbidden_value("", "windows pods cannot be resized")]
    causes: list[Cause] = []
    if qos_class(spec) != qos_class(before):
        why = "Pod QOS Class may not change as a result of resizing"
        causes.append(invalid_value("spec", qos_class(before), why))
    for group in _GROUPS:
        pairs = zip(spec.get(group) or (), before.get(group) or (), strict=False)
        for index, (container, known) in enumerate(pairs):
            here = f"spec.{group}[{index}].resources"
            causes += [
                forbidden_value(f"{here}.{part}", f"resource {part} cannot be removed")
                for part in ("requests", "limits")
                if _amounts(known, part).keys() - _amounts(container, part).keys()
            ]
    if _unsized(spec) != _unsized(before):
        causes.append(forbidden_value("spec", "only cpu and memory resources are mutable"))
    return causes


def _amounts(container: View, part: str) -> Mapping[str, Any]:
    return (container.get("resources") or {}).get(part) or {}


def _unsized(spec: View) -> dict[str, Any]:
    fixed = dict(spec)
    for group in _GROUPS:
        if group in fixed:
            fixed[group] = [
                {
                    **container,
                    "resources": {
                        **(container.get("resources") or {}),
                        **{
                            part: {
                                name: amount
                                for name, amount in _amounts(container, part).items()
                                if name not in _COUNTED
                            }
                            for part in ("requests", "limits")
                        },
                    },
                }
                for container in fixed[group]
            ]
    return fixed


def check_ephemeral(new: View, old: View) -> list[Cause]:
    """Return the violations of a change of a pod's ephemeral containers."""
    where = "spec.ephemeralContainers"
    if _MIRROR in (old["metadata"].get("annotations") or {}):
        return [forbidden_value("", "static pods do not support ephemeral containers")]
    after, before = (
        {
            each.get("name"): each
            for each in (pod.get("spec") or {}).get("ephemeralContainers") or ()
        }
        for pod in (new, old)
    )
    return [
        forbidden_value(
            where,
            f'existing ephemeral containers "{name}" may not be '
            + ("changed" if name in after else "removed"),
        )
        for name, container in before.items()
        if after.get(name) != container
    ]


#: The resources that decide the quality of service class.
_COUNTED = ("cpu", "memory")


def qos_class(spec: Mapping[str, Any]) -> str:
    """Return a pod's quality of service class, from its containers' requests and limits."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    guaranteed = bool(containers)
    any_set = False
    for container in containers:
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        any_set |= any(
            part.get(name, "0") != "0" for part in (requests, limits) for name in _COUNTED
        )
        for name in _COUNTED:
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                guaranteed = False
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"
