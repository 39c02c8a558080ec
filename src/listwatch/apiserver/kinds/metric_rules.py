"""The rules of the metrics of autoscalers (`pkg/apis/autoscaling/validation`)."""

from collections.abc import Iterable

from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.quantity_rules import container_resource
from listwatch.apiserver.kinds.rules import label, path_name, quantity
from listwatch.schema.causes import (
    Cause,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)

#: The source field of each type of metric, in the order of the checks.
SOURCES = {
    "Object": "object",
    "External": "external",
    "Pods": "pods",
    "Resource": "resource",
    "ContainerResource": "containerResource",
}
_TYPES = ("ContainerResource", "External", "Object", "Pods", "Resource")
_TARGETS = ("Utilization", "Value", "AverageValue")


def check_metrics(metrics: Iterable[View], path: str) -> list[Cause]:
    """Return the violations of an autoscaler's metrics."""
    causes: list[Cause] = []
    for index, metric in enumerate(metrics):
        causes += _check_metric(metric, f"{path}[{index}]")
    return causes


def _check_metric(metric: View, path: str) -> list[Cause]:
    kind, where = metric.get("type", ""), f"{path}.type"
    causes = [] if kind else [required(where, "must specify a metric source type")]
    unknown = [] if kind in _TYPES else [not_supported(where, kind, _TYPES)]
    causes += unknown
    present = [key for key in SOURCES.values() if metric.get(key) is not None]
    if present:
        causes += _check_source(present[0], metric[present[0]], f"{path}.{present[0]}")
    expected = SOURCES.get(kind)
    if expected is not None and expected not in present:
        why = "must populate information for the given metric source"
        causes.append(required(f"{path}.{expected}", why))
    # an unknown type is reported again where its source is checked
    causes += unknown
    if len(present) > 1:
        why = "must populate the given metric source only"
        causes += [
            forbidden_value(f"{path}.{key}", why) for key in sorted(present) if key != expected
        ]
    return causes


def _check_source(kind: str, source: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if kind == "object":
        causes += check_target(source.get("describedObject") or {}, f"{path}.describedObject")
    if kind in {"resource", "containerResource"}:
        causes += _check_resource(kind, source, path)
    else:
        where, name = f"{path}.metric.name", (source.get("metric") or {}).get("name")
        causes += (
            path_name(where, name) if name else [required(where, "must specify a metric name")]
        )
    target, here = source.get("target") or {}, f"{path}.target"
    causes += _check_amounts(target, here)
    value, average, share = (
        target.get(key) for key in ("value", "averageValue", "averageUtilization")
    )
    if kind in {"resource", "containerResource"}:
        if share is None and average is None:
            why = "must set either a target raw value or a target utilization"
            causes.append(required(f"{here}.averageUtilization", why))
        elif share is not None and average is not None:
            why = "may not set both a target raw value and a target utilization"
            causes.append(forbidden_value(f"{here}.averageValue", why))
    elif average is None and (value is None or kind == "pods"):
        why = "must specify a positive target averageValue"
        causes.append(required(f"{here}.averageValue", why))
    elif kind == "external" and value is not None and average is not None:
        why = "may not set both a target value for metric and a per-pod target"
        causes.append(forbidden_value(f"{here}.value", why))
    return causes


def _check_resource(kind: str, source: View, path: str) -> list[Cause]:
    name, container = source.get("name"), source.get("container")
    causes: list[Cause] = []
    if not name:
        causes.append(required(f"{path}.name", "must specify a resource name"))
    elif kind == "containerResource":
        causes += container_resource(f"{path}.name", name)
    if kind == "containerResource":
        where = f"{path}.container"
        causes += (
            label(where, container) if container else [required(where, "must specify a container")]
        )
    return causes


def _check_amounts(target: View, path: str) -> list[Cause]:
    kind = target.get("type", "")
    causes = [] if kind else [required(f"{path}.type", "must specify a metric target type")]
    if kind not in _TARGETS:
        why = "must be either Utilization, Value, or AverageValue"
        causes.append(invalid_value(f"{path}.type", kind, why))
    for key in ("value", "averageValue"):
        amount = target.get(key)
        if amount is not None and quantity(amount) <= 0:
            causes.append(invalid_value(f"{path}.{key}", amount, "must be positive"))
    share = target.get("averageUtilization")
    if share is not None and share < 1:
        causes.append(invalid_value(f"{path}.averageUtilization", share, "must be greater than 0"))
    return causes


def check_target(target: View, path: str) -> list[Cause]:
    """Return the violations of a reference to the scaled or measured object."""
    causes: list[Cause] = []
    for key in ("kind", "name"):
        where, text = f"{path}.{key}", target.get(key)
        causes += path_name(where, text) if text else [required(where)]
    version, where = target.get("apiVersion", ""), f"{path}.apiVersion"
    if version.count("/") > 1:
        why = f"unexpected GroupVersion string: {version}"
        causes.append(invalid_value(where, version, why))
    return causes
