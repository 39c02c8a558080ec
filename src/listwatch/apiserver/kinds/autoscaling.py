"""HorizontalPodAutoscaler; its older version keeps newer fields in annotations."""

import json
from collections.abc import Mapping
from typing import Any

from listwatch.apiserver.kinds.cells import NONE, UNKNOWN, Cell, at, field
from listwatch.apiserver.kinds.kind import Kind, Object, View, status_of
from listwatch.apiserver.kinds.metric_rules import SOURCES, check_metrics, check_target
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required
from listwatch.schema.facts import facts
from listwatch.schema.typed import Conversion, WrongTypeError

_PREFIX = "autoscaling.alpha.kubernetes.io/"


_METRICS = f"{_PREFIX}metrics"


_CURRENT = f"{_PREFIX}current-metrics"


_BEHAVIOR = f"{_PREFIX}behavior"


_CONDITIONS = f"{_PREFIX}conditions"


_DEFAULT_UTILIZATION = 80


class AutoscalerConverter:
    """Autoscalers of `v1`, stored as `v2`."""

    def inward(self, obj: Object) -> Object:
        """Return an autoscaler in the stored form."""
        metadata = dict(obj["metadata"])
        annotations = dict(metadata.get("annotations") or {})
        taken = {
            key: _json(annotations.pop(key))
            for key in (_METRICS, _CURRENT, _BEHAVIOR, _CONDITIONS)
            if key in annotations
        }
        if taken:
            metadata.pop("annotations")
            if annotations:
                metadata["annotations"] = annotations
        spec = dict(obj.get("spec") or {})
        metrics = _newer_metrics(taken.get(_METRICS), "target")
        utilization = spec.pop("targetCPUUtilizationPercentage", None)
        if utilization is None and not metrics:
            utilization = _DEFAULT_UTILIZATION
        if utilization is not None:
            metrics.append(_cpu(utilization))
        spec["metrics"] = metrics
        behavior = _behavior_of(taken.get(_BEHAVIOR))
        if behavior:
            spec["behavior"] = behavior
        result = {**obj, "metadata": metadata, "spec": spec}
        status = dict(obj.get("status") or {})
        current = status.pop("currentCPUUtilizationPercentage", None)
        reached = _newer_metrics(taken.get(_CURRENT), "current")
        if current is not None:
            reached.append(
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "current": {"averageUtilization": current}},
                }
            )
        status["currentMetrics"] = reached or None
        if not status.get("currentReplicas"):
            status.pop("currentReplicas", None)
        if taken.get(_CONDITIONS):
            status["conditions"] = taken[_CONDITIONS]
        result["status"] = status
        return result

    def outward(self, obj: Object) -> Object:
        """Return a stored autoscaler in the form of `v1`."""
        spec = dict(obj.get("spec") or {})
        notes: dict[str, Any] = {}
        utilization, others = _split(spec.pop("metrics", None) or (), "target")
        if utilization is not None:
            spec["targetCPUUtilizationPercentage"] = utilization
        behavior = spec.pop("behavior", None)
        status = dict(obj.get("status") or {})
        current, reached = _split(status.pop("currentMetrics", None) or (), "current")
        if current is not None:
            status["currentCPUUtilizationPercentage"] = current
        conditions = status.pop("conditions", None)
        status = {"currentReplicas": 0, "desiredReplicas": 0, **status}
        for key, value in (
            (_METRICS, [_older(each) for each in others]),
            (_CURRENT, [_older(each, of="current") for each in reached]),
            (_BEHAVIOR, behavior),
            (_CONDITIONS, conditions),
        ):
            if value:
                notes[key] = json.dumps(value, separators=(",", ":"))
        result = {**obj, "spec": spec, "status": status}
        if notes:
            metadata = dict(obj["metadata"])
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **notes}
            result["metadata"] = metadata
        return result


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # like a real server, drop an annotation without content
        return None


def _behavior_of(found: Any) -> Object:
    name = "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerBehavior"
    try:
        Conversion().convert(found or {}, facts().definition(name))
    except WrongTypeError:
        return {}  # ignored like an invalid annotation
    return dict(found or {})


def _cpu(utilization: int) -> Object:
    target = {"type": "Utilization", "averageUtilization": utilization}
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


def _split(metrics: Any, of: str) -> tuple[int | None, list[Object]]:
    """Return the CPU utilization, which has its own field in `v1`, and the other metrics."""
    utilization: int | None = None
    others = []
    for metric in metrics:
        resource = metric.get("resource") or {}
        found = (resource.get(of) or {}).get("averageUtilization")
        if resource.get("name") == "cpu" and found is not None and utilization is None:
            utilization = found
        else:
            others.append(metric)
    return utilization, others


def _older(metric: Object, of: str = "target") -> Object:
    """Return a metric of `v2` in the form of `v1`."""
    kind = metric.get("type", "")
    part = SOURCES.get(kind, "")
    body: Object = metric.get(part) or {}
    amount: Object = body.get(of) or {}
    utilization, average = amount.get("averageUtilization"), amount.get("averageValue")
    value = amount.get("value")
    old: Object
    if kind in {"Resource", "ContainerResource"}:
        old = {key: body[key] for key in ("name", "container") if key in body}
        _put(old, of + "AverageUtilization", utilization)
        _put(old, of + "AverageValue", average)
    else:
        identity = body.get("metric") or {}
        old = {"metricName": identity.get("name", "")}
        _put(old, "metricSelector" if kind == "External" else "selector", identity.get("selector"))
        if kind == "Object":
            old["target"] = body.get("describedObject") or {}
            _put(old, of + "Value", value if value is not None else "0")
            _put(old, "averageValue", average)
        else:
            _put(old, of + "Value", value)
            _put(old, of + "AverageValue", average)
    return {"type": kind, part: old}


def _newer_metrics(found: Any, of: str) -> list[Object]:
    try:
        return [_newer(each, of) for each in found or ()]
    except (AttributeError, TypeError):
        return []  # not a list of metrics: ignored like an empty one


def _newer(metric: Object, of: str) -> Object:
    """Return a metric of `v1` in the form of `v2`."""
    kind = metric.get("type", "")
    part = SOURCES.get(kind, "")
    body: Object = metric.get(part) or {}
    amount: Object = {}
    new: Object
    value = body.get(of + "Value")
    average = body.get("averageValue" if kind == "Object" else of + "AverageValue")
    utilization = body.get(of + "AverageUtilization")
    if of == "target":
        found = utilization is not None
        amount["type"] = "Utilization" if found else "Value" if average is None else "AverageValue"
    if not (kind == "Object" and average is not None):
        _put(amount, "value", value)
    _put(amount, "averageValue", average)
    _put(amount, "averageUtilization", utilization)
    if kind in {"Resource", "ContainerResource"}:
        new = {key: body[key] for key in ("name", "container") if key in body}
    else:
        identity: Object = {"name": body.get("metricName", "")}
        selector = body.get("metricSelector" if kind == "External" else "selector")
        _put(identity, "selector", selector)
        new = {"metric": identity}
        if kind == "Object":
            new["describedObject"] = body.get("target") or {}
    return {"type": kind, part: {**new, of: amount}}


def _put(into: Object, key: str, value: Any) -> None:
    if value is not None:
        into[key] = value


def _default_autoscaler(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    status = status_of(obj)
    status.setdefault("desiredReplicas", 0)
    if obj.get("apiVersion") == "autoscaling/v1":
        # the conversion adds its metrics
        status.setdefault("currentReplicas", 0)
        return
    status.setdefault("currentMetrics", None)
    _default_behavior(spec.get("behavior") or {})
    if not spec.get("metrics"):
        spec["metrics"] = [
            {
                "type": "Resource",
                "resource": {
                    "name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 80},
                },
            }
        ]


_UP: tuple[Object, ...] = (
    {"type": "Pods", "value": 4, "periodSeconds": 15},
    {"type": "Percent", "value": 100, "periodSeconds": 15},
)
_DOWN: tuple[Object, ...] = ({"type": "Percent", "value": 100, "periodSeconds": 15},)


def _default_behavior(behavior: Object) -> None:
    """Set defaults of a behavior, if given (`pkg/apis/autoscaling/v2/defaults.go`)."""
    if not behavior:
        return
    up = behavior.setdefault("scaleUp", {})
    up.setdefault("stabilizationWindowSeconds", 0)
    for rules, policies in ((up, _UP), (behavior.setdefault("scaleDown", {}), _DOWN)):
        rules.setdefault("selectPolicy", "Max")
        if "policies" not in rules:
            rules["policies"] = [dict(each) for each in policies]


def _check_autoscaler(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    least, most = spec.get("minReplicas"), spec.get("maxReplicas", 0)
    if isinstance(least, int) and least < 1:
        why = "must be greater than or equal to 1"
        causes.append(invalid_value("spec.minReplicas", least, why))
    if not most:
        causes.append(required("spec.maxReplicas", "must be set and greater than 0"))
    elif most < 1:
        causes.append(invalid_value("spec.maxReplicas", most, "must be greater than 0"))
    if isinstance(least, int) and most < least:
        why = "must be greater than or equal to `minReplicas`"
        causes.append(invalid_value("spec.maxReplicas", most, why))
    target, where = spec.get("scaleTargetRef") or {}, "spec.scaleTargetRef"
    causes += check_target(target, where)
    if not target.get("apiVersion"):
        why = "apiVersion must specify API group"
        causes.append(invalid_value(f"{where}.apiVersion", "", why))
    metrics = spec.get("metrics") or ()
    causes += check_metrics(metrics, "spec.metrics")
    if least == 0 and not {"Object", "External"} & {each.get("type") for each in metrics}:
        why = "must specify at least one Object or External metric to support scaling to zero "
        why += "replicas"
        causes.append(forbidden_value("spec.metrics", why))
    behavior = spec.get("behavior") or {}
    for key in ("scaleUp", "scaleDown"):
        if behavior.get(key) is not None:
            causes += _check_behavior(behavior[key], f"spec.behavior.{key}")
    return causes


_LONGEST_WINDOW, _LONGEST_PERIOD = 3600, 1800


def _check_behavior(rules: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    window = rules.get("stabilizationWindowSeconds")
    if window is not None and not 0 <= window <= _LONGEST_WINDOW:
        why = (
            "must be greater than or equal to zero"
            if window < 0
            else f"must be less than or equal to {_LONGEST_WINDOW}"
        )
        causes.append(invalid_value(f"{path}.stabilizationWindowSeconds", window, why))
    chosen = rules.get("selectPolicy")
    if chosen is not None and chosen not in _CHOICES:
        causes.append(not_supported(f"{path}.selectPolicy", chosen, _CHOICES))
    if not rules.get("policies"):
        causes.append(required(f"{path}.policies", "must specify at least one Policy"))
    for index, policy in enumerate(rules.get("policies") or ()):
        here = f"{path}.policies[{index}]"
        if policy.get("type") not in _POLICIES:
            causes.append(not_supported(f"{here}.type", policy.get("type", ""), _POLICIES))
        for key, most in (("value", None), ("periodSeconds", _LONGEST_PERIOD)):
            amount = policy.get(key, 0)
            if amount <= 0:
                causes.append(invalid_value(f"{here}.{key}", amount, "must be greater than zero"))
            elif most is not None and amount > most:
                why = f"must be less than or equal to {most}"
                causes.append(invalid_value(f"{here}.{key}", amount, why))
    return causes


_CHOICES = ("Disabled", "Max", "Min")
_POLICIES = ("Percent", "Pods")


def _targets(scaler: View, _: float) -> str:
    metrics = at(scaler, "spec.metrics") or ()
    found = []
    for metric in metrics:
        source = metric.get(str(metric.get("type", "")).lower()) or {}
        target = source.get("target") or {}
        wanted = target.get("averageUtilization")
        name = source.get("name", "")
        shown = (
            f"{wanted}%"
            if wanted is not None
            else str(target.get("averageValue") or target.get("value") or "")
        )
        found.append(f"{name}: {UNKNOWN}/{shown}" if name else f"{UNKNOWN}/{shown}")
    return ", ".join(found) or NONE


_SCALER: Mapping[str, Cell] = {
    "Reference": lambda scaler, _: (
        f"{at(scaler, 'spec.scaleTargetRef.kind')}/{at(scaler, 'spec.scaleTargetRef.name')}"
    ),
    "Targets": _targets,
    "MinPods": lambda scaler, _: str(at(scaler, "spec.minReplicas") or "<unset>"),
    "MaxPods": field("spec.maxReplicas", 0),
    "Replicas": field("status.currentReplicas", 0),
}


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "autoscaling/horizontalpodautoscalers": Kind(
        stored_as="autoscaling/v2",
        converters={"v1": AutoscalerConverter()},
        defaults=_default_autoscaler,
        rule=_check_autoscaler,
        cells=_SCALER,
    ),
}
