"""Warnings about writes, and the owners of fields that were not applied."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.admission.advice import advice, single_owners
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.schema.facts import facts

MAPS = f"{CORE}/configmaps"
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
STRICT = "fieldValidation=Strict"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        yield client


def resource(group: str, name: str, kind: str, *, custom: bool = False) -> APIResource:
    schema = facts().schema(group, "v1", kind)
    return APIResource(group, "v1", name, kind, schema=schema, custom={} if custom else None)


def test_owners_that_are_named_again_are_kept_once() -> None:
    other = {**OWNER, "name": "q"}
    obj = {"metadata": {"ownerReferences": [OWNER, other, OWNER]}}
    warnings: list[str] = []
    single_owners(obj, warnings)
    assert obj["metadata"]["ownerReferences"] == [OWNER, other]
    assert [each.rpartition(": ")[2] for each in warnings] == ["u"]


SPREAD = {"topologySpreadConstraints": [{"maxSkew": 1}]}
AFFINE = {
    "affinity": {
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z"}]}
    }
}
FRACTION = {"containers": [{"name": "c", "resources": {"limits": {"memory": "500m", "cpu": "5m"}}}]}


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        (SPREAD, "topologySpreadConstraints[0].labelSelector"),
        (
            AFFINE,
            "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector",
        ),
        (FRACTION, "containers[0].resources.limits[memory]"),
    ],
)
def test_every_kind_that_makes_pods_warns_of_what_they_will_not_do(
    spec: dict[str, Any], place: str
) -> None:
    pod = {"metadata": {"name": "p"}, "spec": spec}
    assert [each.split(": ")[0] for each in advice(resource("", "pods", "Pod"), pod, None)] == [
        f"spec.{place}"
    ]
    workload = {"metadata": {"name": "w", "generation": 1}, "spec": {"template": {"spec": spec}}}
    kind = resource("apps", "deployments", "Deployment")
    assert [each.split(": ")[0] for each in advice(kind, workload, None)] == [
        f"spec.template.spec.{place}"
    ]
    assert list(advice(kind, workload, workload)) == []


def told(kind: APIResource, obj: dict[str, Any]) -> list[str]:
    whole = {**obj, "metadata": {"name": "x", **obj.get("metadata", {})}}
    return [each.split(": ")[0] for each in advice(kind, whole, None)]


OLD_LABEL = {"key": "beta.kubernetes.io/os", "operator": "Exists"}
OLD_TERM = {"matchExpressions": [OLD_LABEL]}
PORT = {"containerPort": 80, "protocol": "TCP"}
ITEMS = [{"key": "a", "path": "p"}, {"key": "b", "path": "p/q"}]


@pytest.mark.parametrize(
    ("spec", "places"),
    [
        ({"nodeSelector": {"beta.kubernetes.io/os": "linux"}}, ["nodeSelector"]),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [OLD_TERM]
                        },
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"preference": OLD_TERM}
                        ],
                    }
                }
            },
            ["affinity.nodeAffinity.required", "affinity.nodeAffinity.preferred"],
        ),
        ({"volumes": [{"name": "v", "rbd": {"image": "i"}}]}, ["volumes[0].rbd"]),
        ({"hostAliases": [{"ip": "::1"}, {"ip": "::1"}]}, ["hostAliases[1].ip"]),
        ({"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}, ["imagePullSecrets[1].name"]),
        ({"imagePullSecrets": [{}]}, ["imagePullSecrets[0].name"]),
        ({"overhead": {"memory": "1500m"}}, ["overhead[memory]"]),
        ({"terminationGracePeriodSeconds": -1}, ["terminationGracePeriodSeconds"]),
        (
            {"containers": [{"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "A"}]}]},
            ["containers[0].env[1]"],
        ),
        (
            {
                "containers": [
                    {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}]}
                ]
            },
            [],
        ),
        ({"containers": [{"ports": [PORT, PORT]}]}, ["containers[0].ports[1]"]),
        (
            {"containers": [{"ports": [PORT]}, {"ports": [{**PORT, "hostPort": 80}]}]},
            ["containers[1].ports[0]"],
        ),
        ({"containers": [{"ports": [PORT, {**PORT, "protocol": "UDP"}]}]}, []),
    ],
)
def test_a_pod_is_warned_of_what_is_old_or_has_no_effect(
    spec: dict[str, Any], places: list[str]
) -> None:
    found = told(resource("", "pods", "Pod"), {"spec": spec})
    assert len(found) == len(places)
    assert all(one.startswith(f"spec.{place}") for one, place in zip(found, places, strict=True))


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        ({"configMap": {"name": "m", "items": ITEMS}}, '(ConfigMap "m"): "p/q" with "p"'),
        ({"secret": {"secretName": "s", "items": ITEMS[:1]}}, None),
        ({"projected": {"sources": [{}]}}, "(Projected) has no sources provided"),
        (
            {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}] * 2}},
            '(Projected ServiceAccountToken): "t" with "t"',
        ),
    ],
)
def test_files_of_a_volume_that_hide_each_other_are_told(
    volume: dict[str, Any], words: str | None
) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"volumes": [{"name": "v", **volume}]}}
    found = list(advice(resource("", "pods", "Pod"), pod, None))
    expected = [] if words is None else [f'volume "v" {words}']
    assert [each.replace(" overlapping paths:", "") for each in found] == expected


@pytest.mark.parametrize(
    ("group", "plural", "kind", "obj", "count"),
    [
        ("", "services", "Service", {"spec": {"type": "ClusterIP", "sessionAffinity": "None"}}, 0),
        (
            "",
            "services",
            "Service",
            {"spec": {"type": "ClusterIP", "clusterIP": "None", "sessionAffinity": "ClientIP"}},
            1,
        ),
        ("", "services", "Service", {"spec": {"type": "NodePort", "externalName": "x"}}, 1),
        (
            "",
            "persistentvolumes",
            "PersistentVolume",
            {"spec": {"persistentVolumeReclaimPolicy": "Recycle", "rbd": {"image": "i"}}},
            2,
        ),
        (
            "",
            "persistentvolumeclaims",
            "PersistentVolumeClaim",
            {"spec": {"resources": {"requests": {"storage": "1500m"}}}},
            1,
        ),
        (
            "networking.k8s.io",
            "ingresses",
            "Ingress",
            {"metadata": {"annotations": {"kubernetes.io/ingress.class": "x"}}},
            1,
        ),
        ("apps", "deployments", "Deployment", {"metadata": {"name": "a.b"}}, 1),
        ("apps", "daemonsets", "DaemonSet", {"metadata": {"name": "a.b"}}, 0),
    ],
)
def test_other_kinds_are_warned_of_what_is_old_or_has_no_effect(
    group: str, plural: str, kind: str, obj: dict[str, Any], count: int
) -> None:
    assert len(told(resource(group, plural, kind), obj)) == count


def test_a_custom_resource_warns_of_a_finalizer_without_a_domain_once() -> None:
    kind = resource("example.com", "widgets", "Widget", custom=True)
    bare = {"metadata": {"finalizers": ["x", "a.b/c"]}}
    assert [each.split(": ")[1] for each in advice(kind, bare, None)] == ['"x"']
    assert list(advice(kind, bare, bare)) == []


@pytest.mark.parametrize(
    ("media_type", "patch"),
    [
        ("application/merge-patch+json", {"bogus": 1}),
        ("application/strategic-merge-patch+json", {"bogus": 1}),
        ("application/json-patch+json", [{"op": "add", "path": "/bogus", "value": 1}]),
        ("application/json-patch+json", [{"op": "add", "path": "/data", "value": {}, "x": 1}]),
    ],
)
async def test_unknown_fields_of_a_strict_patch_make_it_invalid(
    client: Client, media_type: str, patch: Any
) -> None:
    await client.create(MAPS, "a")
    headers = {"Content-Type": media_type}
    path = f"{MAPS}/a?{STRICT}"
    refused = await client.call("PATCH", path, patch, headers=headers, expect=422)
    assert [cause["field"] for cause in refused["details"]["causes"]] == ["patch"]


async def test_the_first_apply_names_those_before_it_and_updates_do_not(client: Client) -> None:
    made = await client.create(MAPS, "a", data={"a": "1"})
    made["metadata"]["managedFields"] = []
    made["data"]["b"] = "2"
    bare = await client.call("PUT", f"{MAPS}/a", made, expect=200)
    assert "managedFields" not in bare["metadata"]
    bare["data"]["c"] = "3"
    still_bare = await client.call("PUT", f"{MAPS}/a", bare, expect=200)
    assert "managedFields" not in still_bare["metadata"]
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    applied = await client.call(
        "PATCH",
        f"{MAPS}/a?fieldManager=m",
        {**wanted, "data": {"d": "4"}},
        headers={"Content-Type": "application/apply-patch+yaml"},
        expect=200,
    )
    owners = {each["manager"]: each["fieldsV1"] for each in applied["metadata"]["managedFields"]}
    assert owners == {
        "m": {"f:data": {"f:d": {}}},
        "before-first-apply": {"f:data": {".": {}, "f:a": {}, "f:b": {}, "f:c": {}}},
    }
