"""Validation of autoscalers and their metrics."""

from typing import Any

import pytest

from kind_causes import of_new

TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
HERE = "spec.metrics[0]"


def scaler(*metrics: dict[str, Any], **spec: Any) -> dict[str, Any]:
    whole = {"minReplicas": 1, "maxReplicas": 2, "scaleTargetRef": TARGET, **spec}
    return {"spec": {**whole, "metrics": list(metrics)}}


def metric(kind: str, source: str, **found: Any) -> dict[str, Any]:
    return {"type": kind, source: found}


SHARE = {"type": "Utilization", "averageUtilization": 80}
AMOUNT = {"type": "AverageValue", "averageValue": "1"}
NAMED = {"metric": {"name": "m"}}


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        (metric("Resource", "resource", name="cpu", target=SHARE), []),
        (metric("Resource", "resource", target=SHARE), ["resource.name"]),
        (
            metric("Resource", "resource", name="cpu", target={"type": "Utilization"}),
            ["resource.target.averageUtilization"],
        ),
        (
            metric("Resource", "resource", name="cpu", target={**AMOUNT, **SHARE}),
            ["resource.target.averageValue"],
        ),
        (
            metric("Resource", "resource", name="cpu", target={**SHARE, "averageUtilization": 0}),
            ["resource.target.averageUtilization"],
        ),
        (
            metric("Resource", "resource", name="cpu", target={"averageValue": "-1"}),
            ["resource.target.averageValue", "resource.target.type", "resource.target.type"],
        ),
        (
            metric("ContainerResource", "containerResource", name="odd", target=SHARE),
            ["containerResource.container", *["containerResource.name"] * 2],
        ),
        (metric("Pods", "pods", **NAMED, target=AMOUNT), []),
        (
            metric("Pods", "pods", **NAMED, target={"type": "Value", "value": "1"}),
            ["pods.target.averageValue"],
        ),
        (metric("Pods", "pods", target=AMOUNT), ["pods.metric.name"]),
        (
            metric("Object", "object", **NAMED, target={"type": "Value"}, describedObject={}),
            [
                "object.describedObject.kind",
                "object.describedObject.name",
                "object.target.averageValue",
            ],
        ),
        (
            metric("External", "external", **NAMED, target={**AMOUNT, "value": "2"}),
            ["external.target.value"],
        ),
        ({}, ["type"] * 3),
        ({"type": "Weather"}, ["type"] * 2),
        ({"type": "Pods"}, ["pods"]),
        (
            {"type": "Pods", "pods": {**NAMED, "target": AMOUNT}, "resource": {}, "object": {}},
            [
                "object",
                "object.describedObject.kind",
                "object.describedObject.name",
                "object.metric.name",
                "object.target.averageValue",
                *["object.target.type"] * 2,
                "resource",
            ],
        ),
    ],
)
def test_the_rules_of_a_metric(found: dict[str, Any], broken: list[str]) -> None:
    causes = of_new("autoscaling/horizontalpodautoscalers", scaler(found))
    assert causes == sorted(f"{HERE}.{field}" for field in broken)


@pytest.mark.parametrize(
    ("spec", "broken"),
    [
        ({}, []),
        ({"minReplicas": 0}, ["spec.metrics", "spec.minReplicas"]),
        ({"minReplicas": 3}, ["spec.maxReplicas"]),
        ({"maxReplicas": 0}, ["spec.maxReplicas"] * 2),
        ({"maxReplicas": -1, "minReplicas": None}, ["spec.maxReplicas"]),
        ({"scaleTargetRef": {**TARGET, "apiVersion": ""}}, ["spec.scaleTargetRef.apiVersion"]),
        ({"scaleTargetRef": {**TARGET, "kind": "a/b"}}, ["spec.scaleTargetRef.kind"]),
        (
            {"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 0}]}}},
            [
                "spec.behavior.scaleUp.policies[0].periodSeconds",
                "spec.behavior.scaleUp.policies[0].value",
            ],
        ),
    ],
)
def test_the_rules_of_an_autoscaler(spec: dict[str, Any], broken: list[str]) -> None:
    assert of_new("autoscaling/horizontalpodautoscalers", scaler(**spec)) == broken
