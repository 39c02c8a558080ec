"""Validation of services, endpoints, volumes, classes, nodes and autoscalers, by kind."""

from typing import Any

import pytest

from listwatch.apiserver.kinds.catalog import built_in


def broken(name: str, obj: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    """Return the fields of the causes that refuse a new object or an update."""
    kind = built_in(name)
    whole = {"metadata": {"name": "x"}, **obj}
    if old is not None:
        assert kind.update_rule is not None
        causes = kind.update_rule(whole, {"metadata": {"name": "x"}, **old})
    else:
        causes = [] if kind.rule is None else kind.rule(whole)
        if kind.new_rule is not None:
            causes = causes + kind.new_rule(whole)
    return sorted(cause.field for cause in causes)


def service(**spec: Any) -> dict[str, Any]:
    return {"spec": {"type": "ClusterIP", "ports": [{"port": 80}], **spec}}


NODE_TERM = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}


def volume(**spec: Any) -> dict[str, Any]:
    whole = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, **spec}
    return {"spec": {key: value for key, value in whole.items() if value is not None}}


def claim(storage: str = "1Gi", **spec: Any) -> dict[str, Any]:
    requests = {"requests": {"storage": storage}}
    return {"spec": {"accessModes": ["ReadWriteOnce"], "resources": requests, **spec}}


SLICE = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}]}
SCALER = {
    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
    "minReplicas": 1,
    "maxReplicas": 2,
}


@pytest.mark.parametrize(
    ("name", "obj", "fields"),
    [
        ("services", service(), []),
        (
            "services",
            service(ports=[{"port": 80, "nodePort": 30001}]),
            ["spec.ports[0].nodePort"],
        ),
        ("services", service(externalIPs=["127.0.0.1"]), ["spec.externalIPs[0]"]),
        ("services", service(externalTrafficPolicy="Local"), ["spec.externalTrafficPolicy"]),
        ("services", service(internalTrafficPolicy="Bar"), ["spec.internalTrafficPolicy"]),
        ("services", service(type="NodePort", clusterIP="None"), ["spec.clusterIPs[0]"]),
        ("services", service(selector={"a b": "c"}), ["spec.selector"]),
        ("services", service(loadBalancerClass="a/b"), ["spec.loadBalancerClass"]),
        ("discovery.k8s.io/endpointslices", SLICE, []),
        (
            "discovery.k8s.io/endpointslices",
            {**SLICE, "ports": [{"name": ""}, {"name": ""}]},
            ["ports[1].name"],
        ),
        (
            "discovery.k8s.io/endpointslices",
            {"addressType": "IPv4", "endpoints": [{"addresses": ["fd00::1"]}]},
            ["endpoints[0].addresses"],
        ),
        (
            "discovery.k8s.io/endpointslices",
            {"addressType": "FQDN", "endpoints": [{"addresses": ["_x"]}]},
            ["endpoints[0].addresses[0]"],
        ),
        ("persistentvolumes", volume(hostPath={"path": "/x"}), []),
        ("persistentvolumes", volume(hostPath={"path": "../x"}), ["spec.hostPath.path"]),
        ("persistentvolumes", volume(local={"path": "/x"}), ["spec.nodeAffinity"]),
        (
            "persistentvolumes",
            volume(local={"path": "/x"}, nodeAffinity={"required": NODE_TERM}),
            [],
        ),
        (
            "persistentvolumes",
            volume(nfs={"server": "s", "path": "/p"}, accessModes=["X"]),
            ["spec.accessModes"],
        ),
        ("persistentvolumeclaims", claim(), []),
        ("persistentvolumeclaims", claim("0"), ["spec.resources[storage]"]),
        (
            "persistentvolumeclaims",
            claim(accessModes=["ReadWriteOnce", "ReadWriteOncePod"]),
            ["spec.accessModes"],
        ),
        ("storage.k8s.io/storageclasses", {"provisioner": "A B"}, ["provisioner"]),
        (
            "storage.k8s.io/storageclasses",
            {"provisioner": "p", "parameters": {"": "x"}},
            ["parameters"],
        ),
        (
            "storage.k8s.io/volumeattachments",
            {"spec": {"attacher": "A_", "nodeName": "n", "source": {"persistentVolumeName": "p"}}},
            ["spec.attacher"],
        ),
        (
            "nodes",
            {"spec": {"taints": [{"key": "k", "effect": "Bad"}]}},
            ["metadata.taints[0].effect"],
        ),
        ("node.k8s.io/runtimeclasses", {"handler": ""}, ["handler"]),
        (
            "node.k8s.io/runtimeclasses",
            {"handler": "h", "overhead": {"podFixed": {"cpu": "-1"}}},
            ["overhead.limits[cpu]"],
        ),
        ("namespaces", {"spec": {"finalizers": ["bad"]}}, ["spec.finalizers"]),
        (
            "resourcequotas",
            {"spec": {"hard": {"services": "1"}, "scopes": ["BestEffort"]}},
            ["spec.scopes"],
        ),
        ("autoscaling/horizontalpodautoscalers", {"spec": SCALER}, []),
        (
            "autoscaling/horizontalpodautoscalers",
            {"spec": {**SCALER, "behavior": {"scaleDown": {"policies": []}}}},
            ["spec.behavior.scaleDown.policies"],
        ),
        (
            "autoscaling/horizontalpodautoscalers",
            {"spec": {**SCALER, "scaleTargetRef": {"kind": "a/b", "name": "n"}}},
            ["spec.scaleTargetRef.apiVersion", "spec.scaleTargetRef.kind"],
        ),
    ],
)
def test_each_rule_names_the_field_that_breaks_it(
    name: str, obj: dict[str, Any], fields: list[str]
) -> None:
    assert broken(name, obj) == fields


@pytest.mark.parametrize(
    ("name", "new", "old", "fields"),
    [
        ("persistentvolumeclaims", claim("2Gi"), claim(), ["spec"]),
        ("persistentvolumeclaims", claim(volumeName="v"), claim(), []),
        (
            "persistentvolumeclaims",
            claim("2Gi"),
            {**claim(), "status": {"phase": "Bound"}},
            [],
        ),
        (
            "persistentvolumes",
            volume(hostPath={"path": "/y"}),
            volume(hostPath={"path": "/x"}),
            ["spec.persistentvolumesource"],
        ),
        (
            "nodes",
            {"spec": {"providerID": "b"}},
            {"spec": {"providerID": "a"}},
            ["spec.providerID"],
        ),
        ("nodes", {"spec": {"providerID": "b"}}, {"spec": {}}, []),
        (
            "resourcequotas",
            {"spec": {"scopes": ["BestEffort"]}},
            {"spec": {}},
            ["spec.scopes"],
        ),
        ("discovery.k8s.io/endpointslices", {**SLICE, "addressType": "IPv6"}, SLICE, []),
    ],
)
def test_each_change_that_is_refused_names_its_field(
    name: str, new: dict[str, Any], old: dict[str, Any], fields: list[str]
) -> None:
    assert broken(name, new, old) == fields


@pytest.mark.parametrize(
    ("name", "obj", "filled"),
    [
        (
            "discovery.k8s.io/endpointslices",
            {"endpoints": [{"addresses": []}]},
            {"endpoints": [{"addresses": [], "conditions": {}}], "ports": None},
        ),
        ("limitranges", {}, {"spec": {"limits": None}}),
        (
            "storage.k8s.io/csinodes",
            {"spec": {"drivers": [{"name": "d"}]}},
            {"spec": {"drivers": [{"name": "d", "topologyKeys": None}]}},
        ),
        ("storage.k8s.io/volumeattachments", {}, {"status": {"attached": False}}),
        (
            "networking.k8s.io/ingressclasses",
            {"spec": {"parameters": {"name": "n"}}},
            {"spec": {"parameters": {"name": "n", "scope": "Cluster"}}},
        ),
    ],
)
def test_what_a_client_leaves_out_is_filled_in_also_where_that_is_null(
    name: str, obj: dict[str, Any], filled: dict[str, Any]
) -> None:
    fill = built_in(name).defaults
    assert fill is not None
    fill(obj)
    assert obj == filled


def test_a_claims_source_stands_under_both_of_its_names() -> None:
    claims = built_in("persistentvolumeclaims")
    source = {"kind": "PersistentVolumeClaim", "name": "src"}
    obj: dict[str, Any] = {"metadata": {}, "spec": {"dataSource": dict(source)}}
    for fill in (claims.defaults, claims.admit):
        assert fill is not None
        fill(obj)
    assert obj["spec"]["dataSourceRef"] == {"apiGroup": None, **source}


def test_an_autoscaler_with_a_behaviour_gets_the_rest_of_it() -> None:
    fill = built_in("autoscaling/horizontalpodautoscalers").defaults
    assert fill is not None
    obj: dict[str, Any] = {"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}}}}
    fill(obj)
    behavior = obj["spec"]["behavior"]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    assert behavior["scaleDown"]["selectPolicy"] == "Max"
    assert [each["type"] for each in behavior["scaleUp"]["policies"]] == ["Pods", "Percent"]
