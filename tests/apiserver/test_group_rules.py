"""Kinds around the workloads: what is stored, and what is refused with which words."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import CORE, Client
from listwatch.apiserver import APIServer

NETWORK = "/apis/networking.k8s.io/v1/namespaces/default"
POD = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}
ALWAYS = {"containers": [{"name": "a", "image": "b"}]}
TARGET = {"kind": "Deployment", "name": "x"}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with APIServer() as server, Client(server) as client:
        yield client


def ingress(path: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"rules": [{"host": "*.example.com", "http": {"paths": [path]}}]}}


SERVICE = {"service": {"name": "s", "port": {"number": 80}}}

GOOD: list[tuple[str, dict[str, Any]]] = [
    (
        "/apis/batch/v1/namespaces/default/cronjobs",
        {"spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": {"spec": POD}}}}},
    ),
    (f"{NETWORK}/ingresses", ingress({"path": "/", "pathType": "Prefix", "backend": SERVICE})),
    (
        f"{NETWORK}/ingresses",
        ingress({"pathType": "ImplementationSpecific", "backend": SERVICE}),
    ),
    (f"{NETWORK}/ingresses", {"spec": {"defaultBackend": SERVICE}}),
    (
        f"{NETWORK}/ingresses",
        {"spec": {"defaultBackend": {"resource": {"kind": "Bucket", "name": "b"}}}},
    ),
    ("/apis/networking.k8s.io/v1/ingressclasses", {"spec": {"controller": "acme.io/foo"}}),
    (
        "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
        {"spec": {"scaleTargetRef": TARGET, "maxReplicas": 1}},
    ),
    (
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        {"spec": {"minAvailable": "50%", "selector": {}}},
    ),
    ("/apis/storage.k8s.io/v1/storageclasses", {"provisioner": "x"}),
    ("/apis/scheduling.k8s.io/v1/priorityclasses", {"value": 1_000_000_000}),
    (f"{CORE}/resourcequotas", {"spec": {"hard": {"pods": "4", "requests.cpu": "1500m"}}}),
    (
        f"{CORE}/limitranges",
        {"spec": {"limits": [{"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "2"}}]}},
    ),
    (
        "/api/v1/persistentvolumes",
        {
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/x"},
            }
        },
    ),
    (
        f"{CORE}/endpoints",
        {"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1}]}]},
    ),
    ("/apis/node.k8s.io/v1/runtimeclasses", {"handler": "runc"}),
    ("/apis/apps/v1/namespaces/default/controllerrevisions", {"revision": 1, "data": {}}),
    (
        f"{CORE}/replicationcontrollers",
        {"spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": ALWAYS}}},
    ),
    (f"{CORE}/podtemplates", {"template": {"spec": ALWAYS}}),
    (
        f"{CORE}/secrets",
        {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{}"}},
    ),
    (f"{CORE}/secrets", {"type": "kubernetes.io/basic-auth", "stringData": {"username": ""}}),
]


@pytest.mark.parametrize(("path", "obj"), GOOD, ids=lambda value: str(value)[-40:])
async def test_an_object_within_the_rules_is_stored(
    client: Client, path: str, obj: dict[str, Any]
) -> None:
    await client.call("POST", path, {"metadata": {"name": "x"}, **obj}, expect=201)
    labels = {"metadata": {"labels": {"a": "b"}}}
    await client.call("PATCH", f"{path}/x", labels, headers=MERGE, expect=200)


MERGE = {"Content-Type": "application/merge-patch+json"}

BAD: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    (
        "/apis/batch/v1/namespaces/default/cronjobs",
        {"spec": {"schedule": "bad", "jobTemplate": {"spec": {"template": {"spec": ALWAYS}}}}},
        {
            "spec.schedule": 'Invalid value: "bad": expected exactly 5 fields, found 1: [bad]',
            "spec.jobTemplate.spec.template.spec.restartPolicy": (
                'Required value: valid values: "OnFailure", "Never"'
            ),
        },
    ),
    (
        f"{NETWORK}/ingresses",
        {},
        {"spec": "Invalid value: null: either `defaultBackend` or `rules` must be specified"},
    ),
    (
        f"{NETWORK}/ingresses",
        ingress({"path": "x", "pathType": "Exact", "backend": {"service": {"name": "s"}}}),
        {
            "spec.rules[0].http.paths[0].path": 'Invalid value: "x": must be an absolute path',
            "spec.rules[0].http.paths[0].backend": (
                "Required value: port name or number is required"
            ),
        },
    ),
    (
        f"{NETWORK}/ingresses",
        ingress({"path": "/", "backend": SERVICE}),
        {"spec.rules[0].http.paths[0].pathType": "Required value: pathType must be specified"},
    ),
    (
        "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
        {"spec": {"scaleTargetRef": TARGET, "minReplicas": 0, "maxReplicas": -1}},
        {
            "spec.minReplicas": "Invalid value: 0: must be greater than or equal to 1",
            "spec.maxReplicas": (
                "Invalid value: -1: must be greater than or equal to `minReplicas`"
            ),
        },
    ),
    (
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        {"spec": {"minAvailable": "150%", "selector": {}}},
        {"spec.minAvailable": 'Invalid value: "150%": must not be greater than 100%'},
    ),
    ("/apis/storage.k8s.io/v1/storageclasses", {}, {"provisioner": "Required value"}),
    (
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"value": 1_000_000_001},
        {"value": ("Forbidden: maximum allowed value of a user defined priority is 1000000000")},
    ),
    (
        f"{CORE}/limitranges",
        {"spec": {"limits": [{"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "500m"}}]}},
        {
            "spec.limits[0].min[cpu]": (
                'Invalid value: "2": min value 2 is greater than max value 500m'
            )
        },
    ),
    (
        "/api/v1/persistentvolumes",
        {"spec": {"capacity": {"storage": "1Gi"}}},
        {
            "spec.accessModes": "Required value",
            "spec": "Required value: must specify a volume type",
        },
    ),
    (
        f"{CORE}/secrets",
        {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "x"}},
        {
            "data[.dockerconfigjson]": (
                'Invalid value: "<secret contents redacted>": '
                "invalid character 'x' looking for beginning of value"
            )
        },
    ),
]


@pytest.mark.parametrize(("path", "obj", "causes"), BAD, ids=lambda value: str(value)[-40:])
async def test_an_object_beyond_the_rules_is_refused_with_each_cause(
    client: Client, path: str, obj: dict[str, Any], causes: dict[str, str]
) -> None:
    body = {"metadata": {"name": "x"}, **obj}
    status = await client.call("POST", path, body, expect=422)
    assert {each["field"]: each["message"] for each in status["details"]["causes"]} == causes


async def test_a_limit_is_the_default_of_requests(client: Client) -> None:
    limits = [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Gi"}}]
    body = {"metadata": {"name": "x"}, "spec": {"limits": limits}}
    made = await client.call("POST", f"{CORE}/limitranges", body, expect=201)
    assert made["spec"]["limits"][0] == {
        **limits[0],
        "default": {"cpu": "2"},
        "defaultRequest": {"cpu": "2", "memory": "1Gi"},
    }
