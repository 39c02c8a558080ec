"""Deployment, DaemonSet, StatefulSet, ReplicaSet, ReplicationController and what they share."""

from collections.abc import Mapping
from typing import Any

from listwatch.apiserver.kinds.cells import NONE, Cell, at, field, labels
from listwatch.apiserver.kinds.kind import Kind, Object, View, paths, status_of
from listwatch.apiserver.kinds.pod_templates import (
    check_pod_spec,
    check_pod_template,
    check_selector,
    containers_cell,
    default_template,
    workload_cells,
)
from listwatch.apiserver.kinds.rules import enumeration, not_negative
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


def _default_daemon_set(obj: Object) -> None:
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


def _check_workload(obj: View, kind: str = "deployment") -> list[Cause]:
    spec = obj.get("spec") or {}
    template = spec.get("template") or {}
    causes = not_negative(spec, "spec", "replicas")
    causes += check_selector(spec, "spec", (template.get("metadata") or {}).get("labels"), kind)
    causes += check_pod_template(template, "spec.template")
    causes += not_negative(spec, "spec", "minReadySeconds")
    return causes


def _check_daemon_set(obj: View) -> list[Cause]:
    return _check_workload(obj, "daemonset")


def _check_stateful_set(obj: View) -> list[Cause]:
    return _check_workload(obj, "statefulset")


def _check_deployment(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    strategy = spec.get("strategy") or {}
    template = spec.get("template") or {}
    causes = not_negative(spec, "spec", "replicas")
    causes += check_selector(spec, "spec", (template.get("metadata") or {}).get("labels"))
    causes += check_pod_template(template, "spec.template")
    causes += enumeration(strategy, "spec.strategy", "type", "apps.v1.DeploymentStrategy")
    if strategy.get("type") == "Recreate" and strategy.get("rollingUpdate"):
        causes.append(
            forbidden_value(
                "spec.strategy.rollingUpdate",
                "may not be specified when strategy `type` is 'Recreate'",
            )
        )
    rolling = strategy.get("rollingUpdate") or {}
    if rolling and not any(_percent(rolling.get(key)) for key in ("maxUnavailable", "maxSurge")):
        causes.append(
            invalid_value(
                "spec.strategy.rollingUpdate.maxUnavailable",
                rolling.get("maxUnavailable"),
                "may not be 0 when `maxSurge` is 0",
            )
        )
    causes += not_negative(spec, "spec", "minReadySeconds", "revisionHistoryLimit")
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds", 0)
    if isinstance(deadline, int):
        causes += not_negative(spec, "spec", "progressDeadlineSeconds")
        if deadline <= ready:
            causes.append(
                invalid_value(
                    "spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"
                )
            )
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
    causes = [] if obj.get("data") is not None else [required("data", "data is mandatory")]
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
    labels = (template.get("metadata") or {}).get("labels")
    if selector and not selector.items() <= (labels or {}).items():
        why = "`selector` does not match template `labels`"
        causes.append(invalid_value("spec.template.metadata.labels", labels, why))
    pod = template.get("spec") or {}
    causes += check_pod_spec(pod, "spec.template.spec")
    policy = pod.get("restartPolicy")
    if policy in {"Never", "OnFailure"}:
        causes.append(not_supported("spec.template.spec.restartPolicy", policy, ["Always"]))
    return causes


def _check_pod_template(obj: View) -> list[Cause]:
    return check_pod_spec((obj.get("template") or {}).get("spec") or {}, "template.spec")


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
        generation=True,
        defaults=_default_daemon_set,
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
        generation=True,
        defaults=_default_stateful_set,
        rule=_check_stateful_set,
        update_rule=_check_stateful_update,
        cells={
            **workload_cells(),
            "Ready": _ready_of("status.readyReplicas", "spec.replicas"),
        },
    ),
    "apps/replicasets": Kind(
        generation=True,
        fields=paths("status.replicas", replicas="0"),
        defaults=_default_replica_set,
        rule=_check_workload,
        update_rule=_check_selector_update,
        cells={**_REPLICAS, **workload_cells()},
    ),
    "apps/controllerrevisions": Kind(
        immutable=("data",),
        rule=_check_controller_revision,
        cells={
            "Controller": _controller,
            "Revision": field("revision", 0),
        },
    ),
}
