"""Writes to /status: what is refused, kept and defaulted."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.kinds.statuses import status_causes
from listwatch.schema.facts import facts
from listwatch.schema.fast_typed import QuickDecoder
from listwatch.schema.typed import Conversion


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        yield client


@pytest.mark.parametrize(
    ("group", "plural", "kind", "version", "status", "fields"),
    [
        ("apps", "deployments", "Deployment", "v1", {"replicas": 2, "readyReplicas": 2}, []),
        (
            "apps",
            "deployments",
            "Deployment",
            "v1",
            {"unavailableReplicas": -1, "updatedReplicas": 1},
            ["unavailableReplicas", "updatedReplicas"],
        ),
        (
            "apps",
            "statefulsets",
            "StatefulSet",
            "v1",
            {"replicas": 3, "readyReplicas": 1, "availableReplicas": 2},
            ["availableReplicas"],
        ),
        ("apps", "daemonsets", "DaemonSet", "v1", {"numberReady": -1}, ["numberReady"]),
        ("batch", "jobs", "Job", "v1", {"active": -1, "failed": 1}, ["active", "ready"]),
        (
            "autoscaling",
            "horizontalpodautoscalers",
            "HorizontalPodAutoscaler",
            "v2",
            {"desiredReplicas": -1},
            ["desiredReplicas"],
        ),
        ("", "resourcequotas", "ResourceQuota", "v1", {"used": {"pods": "-1"}}, ["used[pods]"]),
        ("", "nodes", "Node", "v1", {"capacity": {"cpu": "-1"}}, ["capacity.cpu"]),
        (
            "networking.k8s.io",
            "ingresses",
            "Ingress",
            "v1",
            {"loadBalancer": {"ingress": [{"ip": "x"}, {"hostname": "1.2.3.4"}, {"ip": "::1"}]}},
            ["loadBalancer.ingress[0].ip", "loadBalancer.ingress[1].hostname"],
        ),
        (
            "",
            "services",
            "Service",
            "v1",
            {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}},
            ["loadBalancer.ingress"],
        ),
    ],
)
def test_counts_amounts_and_addresses_of_a_status_are_checked(
    group: str, plural: str, kind: str, version: str, status: dict[str, Any], fields: list[str]
) -> None:
    schema = facts().schema(group, version, kind)
    storage = f"{group}/{plural}" if group else plural
    found = status_causes(storage, schema, {"status": status}, {})
    assert [cause.field for cause in found] == [f"status.{field}" for field in fields]


def test_a_count_of_collisions_never_falls() -> None:
    schema = facts().schema("apps", "v1", "Deployment")
    old = {"status": {"collisionCount": 2}}
    for count, causes in ((1, 1), (2, 0), (3, 0)):
        new = {"status": {"collisionCount": count}}
        assert len(status_causes("apps/deployments", schema, new, old)) == causes


SPEC = {"containers": [{"name": "c", "image": "i"}]}


@pytest.mark.parametrize(
    ("group", "plural", "kept"), [("apps", "deployments", False), ("apps", "replicasets", True)]
)
async def test_only_a_deployment_keeps_its_labels_from_its_status(
    client: Client, group: str, plural: str, *, kept: bool
) -> None:
    path = f"/apis/{group}/v1/namespaces/default/{plural}"
    labels = {"app": "a"}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": SPEC},
    }
    await client.create(path, "a", spec=spec)
    patch = {"metadata": {"labels": {"x": "y"}}, "status": {"replicas": 1}}
    made = await client.merge(f"{path}/a/status", patch)
    assert made["status"]["replicas"] == 1
    assert ("labels" in made["metadata"]) is kept


async def test_a_status_that_is_replaced_keeps_what_the_server_put_there(client: Client) -> None:
    path = f"{CORE}/pods"
    pod = await client.create(path, "a", spec=SPEC)
    pod["status"] = {"phase": "Succeeded"}
    made = await client.call("PUT", f"{path}/a/status", pod, expect=200)
    assert made["status"] == {"phase": "Succeeded", "qosClass": "BestEffort"}
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/x"},
    }
    made = await client.create("/api/v1/persistentvolumes", "v", spec=volume)
    made["status"] = {"phase": "Available"}
    made = await client.call("PUT", "/api/v1/persistentvolumes/v/status", made, expect=200)
    assert set(made["status"]) == {"phase", "lastPhaseTransitionTime"}


def test_go_writes_the_times_of_a_condition_that_nobody_set() -> None:
    status = {"conditions": [{"type": "A", "status": "True"}]}
    pod = Conversion().convert({"status": status}, facts().schema("", "v1", "Pod"))
    (condition,) = pod["status"]["conditions"]
    assert condition["lastProbeTime"] is None
    assert condition["lastTransitionTime"] is None
    assert "reason" not in condition
    service = Conversion().convert({"status": status}, facts().schema("", "v1", "Service"))
    (condition,) = service["status"]["conditions"]
    assert (condition["reason"], condition["message"]) == ("", "")
    body = msgspec.json.encode({"status": status, "kind": "Pod", "apiVersion": "v1"})
    quick = QuickDecoder(worth_it=1).decode(body, facts().schema("", "v1", "Pod"))
    assert quick is not None
    assert quick["status"] == pod["status"]


@pytest.mark.parametrize(("value", "text"), [([1, 255], "Af8="), ([], ""), ([None], "AA==")])
def test_bytes_may_stand_as_numbers(value: list[int], text: str) -> None:
    schema = facts().schema("", "v1", "ConfigMap")
    assert Conversion().convert({"binaryData": {"k": value}}, schema)["binaryData"] == {"k": text}


async def test_only_pods_request_what_they_are_limited_to(client: Client) -> None:
    limits = {"limits": {"cpu": "1"}}
    spec = {"containers": [{"name": "c", "image": "i", "resources": limits}]}
    pod = await client.create(f"{CORE}/pods", "a", spec=spec)
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {**limits, "requests": {"cpu": "1"}}
    template = await client.create(f"{CORE}/podtemplates", "a", template={"spec": spec})
    (container,) = template["template"]["spec"]["containers"]
    assert container["resources"] == limits
