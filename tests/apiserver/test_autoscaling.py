"""Autoscalers in both versions."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.kinds.autoscaling import AutoscalerConverter

V1 = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
V2 = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
SPEC = {
    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"},
    "maxReplicas": 5,
}


def cpu(percent: int) -> dict[str, Any]:
    target = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


async def test_an_autoscaler_is_seen_in_both_versions() -> None:
    async with EmbeddedAPIServer() as server, Client(server) as client:
        body = {"metadata": {"name": "a"}, "spec": SPEC}
        old = await client.call("POST", V1, body, expect=201)
        assert old["spec"]["targetCPUUtilizationPercentage"] == 80
        assert old["status"] == {"currentReplicas": 0, "desiredReplicas": 0}
        new = await client.call("GET", f"{V2}/a", expect=200)
        assert new["spec"]["metrics"] == [cpu(80)]
        assert new["status"] == {"desiredReplicas": 0, "currentMetrics": None}
        memory = {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}
        new["spec"]["metrics"] = [{"type": "Resource", "resource": memory}, cpu(50)]
        await client.call("PUT", f"{V2}/a", new, expect=200)
        old = await client.call("GET", f"{V1}/a", expect=200)
        assert old["spec"]["targetCPUUtilizationPercentage"] == 50
        key = "autoscaling.alpha.kubernetes.io/metrics"
        assert json.loads(old["metadata"]["annotations"][key]) == [
            {"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}}
        ]
        old["spec"]["maxReplicas"] = 9
        await client.call("PUT", f"{V1}/a", old, expect=200)
        again = await client.call("GET", f"{V2}/a", expect=200)
        assert again["spec"]["maxReplicas"] == 9
        assert again["spec"]["metrics"] == new["spec"]["metrics"]
        assert "annotations" not in again["metadata"]


NAME = st.sampled_from(["memory", "rps", "depth"])
AVERAGE = st.builds(lambda v: {"type": "AverageValue", "averageValue": v}, st.sampled_from("12"))
VALUE = st.builds(lambda v: {"type": "Value", "value": v}, st.sampled_from("12"))
UTILIZATION = st.builds(
    lambda v: {"type": "Utilization", "averageUtilization": v}, st.integers(1, 100)
)
IDENTITY = st.builds(
    lambda name, selector: {"name": name, **({"selector": selector} if selector else {})},
    NAME,
    st.sampled_from([None, {"matchLabels": {"a": "b"}}]),
)
METRIC = st.one_of(
    st.builds(
        lambda name, target: {"type": "Resource", "resource": {"name": name, "target": target}},
        NAME,
        AVERAGE | UTILIZATION,
    ),
    st.builds(
        lambda name, target: {
            "type": "ContainerResource",
            "containerResource": {"name": name, "container": "c", "target": target},
        },
        NAME,
        AVERAGE | UTILIZATION,
    ),
    st.builds(
        lambda metric, target: {"type": "Pods", "pods": {"metric": metric, "target": target}},
        IDENTITY,
        AVERAGE,
    ),
    st.builds(
        lambda metric, target: {
            "type": "Object",
            "object": {
                "metric": metric,
                "describedObject": {"kind": "Service", "name": "s"},
                "target": target,
            },
        },
        IDENTITY,
        AVERAGE | VALUE,
    ),
    st.builds(
        lambda metric, target: {
            "type": "External",
            "external": {"metric": metric, "target": target},
        },
        IDENTITY,
        AVERAGE | VALUE,
    ),
)


@given(
    metrics=st.lists(METRIC, max_size=3),
    percent=st.none() | st.integers(1, 100),
    kept=st.booleans(),
)
def test_what_goes_out_comes_back(
    metrics: list[dict[str, Any]],
    percent: int | None,
    kept: bool,
) -> None:
    if percent is not None or not metrics:
        metrics = [*metrics, cpu(percent or 80)]
    stored = {
        "metadata": {"name": "a", **({"annotations": {"mine": "x"}} if kept else {})},
        "spec": {**SPEC, "metrics": metrics, "behavior": {"scaleDown": {"policies": []}}},
        "status": {
            "desiredReplicas": 2,
            "currentMetrics": [
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "current": {"averageUtilization": 7}},
                }
            ],
            "conditions": [{"type": "AbleToScale", "status": "True"}],
        },
    }
    converter = AutoscalerConverter()
    old = converter.outward(stored)
    assert converter.inward(old) == stored
    assert old["status"]["currentCPUUtilizationPercentage"] == 7
