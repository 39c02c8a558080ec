"""Deployment, DaemonSet, StatefulSet, ReplicaSet, ReplicationController, and shared parts."""

from collections.abc import Mapping
from typing import Any

from listwatch.apiserver.kinds.cells import NONE, Cell, at, field, labels
from listwatch.apiserver.kinds.kind import Kind, Object, View, paths, status_of
from listwatch.apiserver.kinds.pod_rules import (
    check_lasting_template,
    check_pod_template,
    missed,
    selects,
)
from listwatch.apiserver.kinds.pod_templates import (
    containers_cell,
    default_template,
    workload_cells,
)
from listwatch.apiserver.kinds.rules import count_or_percent, label, label_selector, not_negative
from listwatch.apiserver.kinds.volumes import default_claim
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required


def _default_deployment(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    default_template(spec)
    status_of(obj)


_TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"


def _admit_daemon_set(obj: Object) -> None:
    obj["metadata"]["annotations"][_TEMPLATE_GENERATION] = "1"


def _carry_daemon_set(new: Object, old: View) -> None:
    """Count the template's changes in an annotation that clients can't change."""
    before = (old["metadata"].get("annotations") or {}).get(_TEMPLATE_GENERATION, "1")
    spec, was = new.get("spec") or {}, old.get("spec") or {}
    moved = spec.get("template") != was.get("template")
    moved = moved or spec.get("updateStrategy") != was.get("updateStrategy")
    number = int(before) + moved if before.isascii() and before.isdigit() else 1
    new["metadata"]["annotations"][_TEMPLATE_GENERATION] = str(number)


def _default_daemon_set(obj: Object) -> None:
    obj["metadata"].setdefault("annotations", {}).setdefault(_TEMPLATE_GENERATION, "0")
    spec = obj.setdefault("spec", {})
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    default_template(spec)
    status = status_of(obj)
    for name in ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled"):
        status.setdefault(name, 0)
    status.setdefault("numberReady", 0)


def _default_stateful_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    retention.setdefault("whenDeleted", "Retain")
    retention.setdefault("whenScaled", "Retain")
    strategy = spec.setdefault("updateStrategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    default_template(spec)
    for claim in spec.get("volumeClaimTemplates") or ():
        claim.setdefault("apiVersion", "v1")
        claim.setdefault("kind", "PersistentVolumeClaim")
        default_claim(claim)
        claim.setdefault("status", {}).setdefault("phase", "Pending")
    status_of(obj).setdefault("replicas", 0)
    status_of(obj).setdefault("availableReplicas", 0)


def _default_replica_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    default_template(spec)
    status_of(obj).setdefault("replicas", 0)


def _default_replication_controller(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        if not spec.get("selector"):
            spec["selector"] = dict(labels)
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)
    if "template" in spec:
        default_template(spec)
    status_of(obj).setdefault("replicas", 0)


def _default_pod_template(obj: Object) -> None:
    default_template(obj)


def _template_labels(spec: View) -> Mapping[str, str] | None:
    return ((spec.get("template") or {}).get("metadata") or {}).get("labels")


def _check_selector(spec: View, kind: str) -> list[Cause]:
    selector, where = spec.get("selector"), "spec.selector"
    if selector is None:
        return [required(where)]
    causes = label_selector(selector, where)
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        causes.append(invalid_value(where, selector, f"empty selector is invalid for {kind}"))
    return causes


def _check_selected(spec: View, kind: str, unreadable: str) -> list[Cause]:
    """Return the violations of a template, checked only if the selector is valid."""
    labels = _template_labels(spec)
    found = selects(spec.get("selector"), labels)
    if found is None:
        return [invalid_value("spec.selector", spec["selector"], unreadable)]
    causes = [] if found else [missed(labels, "spec.template")]
    return causes + check_lasting_template(spec.get("template") or {}, "spec.template", kind)


_UNREADABLE = "invalid label selector"


def _check_replica_set(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = not_negative(spec, "spec", "replicas", "minReadySeconds")
    causes += _check_selector(spec, "deployment")
    return causes + _check_selected(spec, "ReplicaSet", _UNREADABLE)


def _strategy(spec: View, key: str) -> tuple[Any, Any, Object]:
    """Return a strategy's type, its rolling update, and the strategy as the server shows it."""
    strategy = spec.get(key) or {}
    kind, rolling = strategy.get("type"), strategy.get("rollingUpdate")
    return kind, rolling, {"Type": kind, "RollingUpdate": rolling}


def _check_rolling(rolling: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for key in ("maxUnavailable", "maxSurge"):
        value = rolling.get(key)
        up_to_all = key == "maxUnavailable" or path == "spec.updateStrategy.rollingUpdate"
        causes += count_or_percent(f"{path}.{key}", value, up_to_all=up_to_all)
    return causes


def _check_daemon_set(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    labels, template = _template_labels(spec), spec.get("template") or {}
    selector, where = spec.get("selector"), "spec.selector"
    causes = label_selector(selector, where)
    if selects(selector, labels) is False:
        causes.append(missed(labels, "spec.template"))
    if selector is None:
        causes.append(required(where))
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        causes.append(invalid_value(where, selector, "empty selector is invalid for daemonset"))
    causes += check_lasting_template(template, "spec.template", "DaemonSet")
    causes += not_negative(spec, "spec", "minReadySeconds", "revisionHistoryLimit")
    kind, rolling, shown = _strategy(spec, "updateStrategy")
    here = "spec.updateStrategy"
    if kind not in {"RollingUpdate", "OnDelete"}:
        return [*causes, not_supported(here, shown, ("RollingUpdate", "OnDelete"))]
    if kind == "OnDelete" or rolling is None:
        return causes
    here = f"{here}.rollingUpdate"
    causes += _check_rolling(rolling, here)
    away, more = (_percent(rolling.get(key)) for key in ("maxUnavailable", "maxSurge"))
    if away and more:
        why = "may not be set when maxUnavailable is non-zero"
        causes.append(invalid_value(f"{here}.maxSurge", rolling.get("maxSurge"), why))
    elif not away and not more:
        causes.append(required(f"{here}.maxUnavailable", "cannot be 0 when maxSurge is 0"))
    return causes


def _check_stateful_set(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    # a negative revisionHistoryLimit keeps all revisions
    causes = not_negative(spec, "spec", "replicas", "minReadySeconds")
    causes += not_negative(spec.get("ordinals") or {}, "spec.ordinals", "start")
    policy = spec.get("podManagementPolicy")
    if policy not in {"OrderedReady", "Parallel"}:
        why = "must be 'OrderedReady' or 'Parallel'"
        causes.append(invalid_value("spec.podManagementPolicy", policy, why))
    kind, rolling, shown = _strategy(spec, "updateStrategy")
    here = "spec.updateStrategy"
    if kind not in {"RollingUpdate", "OnDelete"}:
        causes.append(invalid_value(here, shown, "must be 'RollingUpdate' or 'OnDelete'"))
    elif kind == "OnDelete" and rolling is not None:
        why = "only allowed for updateStrategy 'RollingUpdate'"
        causes.append(invalid_value(f"{here}.rollingUpdate", rolling, why))
    elif rolling is not None:
        causes += not_negative(rolling, f"{here}.rollingUpdate", "partition")
        where = f"{here}.rollingUpdate.maxUnavailable"
        away = rolling.get("maxUnavailable")
        causes += count_or_percent(where, away)
        if away is not None and not _percent(away):
            causes.append(invalid_value(where, away, "cannot be 0"))
    retention = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    causes += [
        not_supported(f"spec.persistentVolumeClaimRetentionPolicy.{key}", value, _RETENTION)
        for key, value in retention.items()
        if value not in _RETENTION
    ]
    causes += _check_selector(spec, "statefulset")
    return causes + _check_selected(spec, "StatefulSet", "")


_RETENTION = ("Delete", "Retain")


def _check_new_stateful_set(obj: View) -> list[Cause]:
    name = (obj.get("spec") or {}).get("serviceName")
    return label("spec.serviceName", name) if name else []


def _check_deployment(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = not_negative(spec, "spec", "replicas", "minReadySeconds", "revisionHistoryLimit")
    causes += _check_selector(spec, "deployment")
    causes += _check_selected(spec, "ReplicaSet", _UNREADABLE)
    kind, rolling, shown = _strategy(spec, "strategy")
    here = "spec.strategy"
    if kind not in {"Recreate", "RollingUpdate"}:
        causes.append(not_supported(here, shown, ("Recreate", "RollingUpdate")))
    elif kind == "Recreate" and rolling:
        why = "may not be specified when strategy `type` is 'Recreate'"
        causes.append(forbidden_value(f"{here}.rollingUpdate", why))
    elif rolling:
        here = f"{here}.rollingUpdate"
        causes += _check_rolling(rolling, here)
        if not any(_percent(rolling.get(key)) for key in ("maxUnavailable", "maxSurge")):
            why = "may not be 0 when `maxSurge` is 0"
            away = rolling.get("maxUnavailable")
            causes.append(invalid_value(f"{here}.maxUnavailable", away, why))
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds", 0)
    if isinstance(deadline, int):
        causes += not_negative(spec, "spec", "progressDeadlineSeconds")
        if deadline <= ready:
            why = "must be greater than minReadySeconds"
            causes.append(invalid_value("spec.progressDeadlineSeconds", deadline, why))
    return causes


_LONGEST_PERCENT = 20


def _percent(value: Any) -> int:
    text = str(value or 0).removesuffix("%")
    return int(text[:_LONGEST_PERCENT]) if text.isascii() and text.isdigit() else 1


def _check_selector_update(new: View, old: View) -> list[Cause]:
    after, before = (obj.get("spec", {}).get("selector") for obj in (new, old))
    if after != before:
        return [invalid_value("spec.selector", after, "field is immutable")]
    return []


_STATEFUL_FORBIDDEN = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
    "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "
    "'minReadySeconds' are forbidden"
)


_STATEFUL_OPEN = frozenset(
    (
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    )
)


def _check_stateful_update(new: View, old: View) -> list[Cause]:
    after, before = new.get("spec") or {}, old.get("spec") or {}
    if any(
        after.get(key) != before.get(key) for key in (after.keys() | before.keys()) - _STATEFUL_OPEN
    ):
        return [forbidden_value("spec", _STATEFUL_FORBIDDEN)]
    return []


def _check_controller_revision(obj: View) -> list[Cause]:
    causes = []
    if obj.get("data") is None:
        causes.append(required("data", "data is mandatory"))
    elif not isinstance(obj["data"], dict):
        causes.append(required("data", "data must be a valid JSON object"))
    revision = obj.get("revision", 0)
    if revision < 0:
        causes.append(invalid_value("revision", revision, "must be greater than or equal to 0"))
    return causes


def _check_replication_controller(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = not_negative(spec, "spec", "minReadySeconds", "replicas")
    selector, template = spec.get("selector"), spec.get("template")
    if not selector:
        causes.append(required("spec.selector"))
    if template is None:
        return [*causes, required("spec.template")]
    labels = _template_labels(spec)
    if selector and not selector.items() <= (labels or {}).items():
        causes.append(missed(labels, "spec.template"))
    return causes + check_lasting_template(template, "spec.template", "ReplicationController")


def _check_pod_template(obj: View) -> list[Cause]:
    return check_pod_template(obj.get("template") or {}, "template")


def _ready_of(ready: str, wanted: str) -> Cell:
    return lambda obj, _: f"{at(obj, ready) or 0}/{at(obj, wanted) or 0}"


def _controller(obj: View, _: float) -> str:
    for each in obj["metadata"].get("ownerReferences") or ():
        if each.get("controller"):
            group = str(each.get("apiVersion", "")).rpartition("/")[0]
            kind = str(each.get("kind", "")).lower()
            return f"{kind}.{group}/{each.get('name')}" if group else f"{kind}/{each.get('name')}"
    return NONE


_REPLICAS: Mapping[str, Cell] = {
    "Desired": field("spec.replicas", 0),
    "Current": field("status.replicas", 0),
    "Ready": field("status.readyReplicas", 0),
}


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "podtemplates": Kind(
        returns_deleted=True,
        generation=True,
        defaults=_default_pod_template,
        rule=_check_pod_template,
        cells={
            "Containers": containers_cell("template.spec", "name"),
            "Images": containers_cell("template.spec", "image"),
            "Pod Labels": lambda obj, _: labels(at(obj, "template.metadata.labels")),
        },
    ),
    "replicationcontrollers": Kind(
        checks_whole=True,
        generation=True,
        orphan_by_default=True,
        fields=paths("status.replicas", replicas="0"),
        defaults=_default_replication_controller,
        rule=_check_replication_controller,
        cells={
            **_REPLICAS,
            **workload_cells(),
            "Selector": lambda obj, _: labels(at(obj, "spec.selector")),
        },
    ),
    "apps/deployments": Kind(
        generation_with=("annotations",),
        generation=True,
        defaults=_default_deployment,
        status_leaves="labels",
        rule=_check_deployment,
        update_rule=_check_selector_update,
        cells={
            **workload_cells(),
            "Ready": _ready_of("status.readyReplicas", "spec.replicas"),
            "Up-to-date": field("status.updatedReplicas", 0),
            "Available": field("status.availableReplicas", 0),
        },
    ),
    "apps/daemonsets": Kind(
        checks_whole=True,
        hidden_annotations=(_TEMPLATE_GENERATION,),
        generation=True,
        defaults=_default_daemon_set,
        admit=_admit_daemon_set,
        carry=_carry_daemon_set,
        rule=_check_daemon_set,
        update_rule=_check_selector_update,
        cells={
            **workload_cells(),
            "Desired": field("status.desiredNumberScheduled", 0),
            "Current": field("status.currentNumberScheduled", 0),
            "Ready": field("status.numberReady", 0),
            "Up-to-date": field("status.updatedNumberScheduled", 0),
            "Available": field("status.numberAvailable", 0),
            "Node Selector": lambda obj, _: labels(at(obj, "spec.template.spec.nodeSelector")),
        },
    ),
    "apps/statefulsets": Kind(
        checks_whole=True,
        generation=True,
        defaults=_default_stateful_set,
        rule=_check_stateful_set,
        new_rule=_check_new_stateful_set,
        update_rule=_check_stateful_update,
        cells={
            **workload_cells(),
            "Ready": _ready_of("status.readyReplicas", "spec.replicas"),
        },
    ),
    "apps/replicasets": Kind(
        checks_whole=True,
        generation=True,
        fields=paths("status.replicas", replicas="0"),
        defaults=_default_replica_set,
        rule=_check_replica_set,
        update_rule=_check_selector_update,
        cells={**_REPLICAS, **workload_cells()},
    ),
    "apps/controllerrevisions": Kind(
        immutable=("data",),
        spelled="data",
        rule=_check_controller_revision,
        cells={
            "Controller": _controller,
            "Revision": field("revision", 0),
        },
    ),
}
