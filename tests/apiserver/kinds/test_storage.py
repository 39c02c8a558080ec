"""Validation of volumes, claims, storage classes and drivers."""

from typing import Any

import pytest

from kind_causes import of_change, of_new

TERM = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}


def volume(**spec: Any) -> dict[str, Any]:
    whole = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, **spec}
    return {"spec": {key: value for key, value in whole.items() if value is not None}}


def claim(storage: str | None = "1Gi", **spec: Any) -> dict[str, Any]:
    requests = {} if storage is None else {"storage": storage}
    resources = {"requests": requests}
    return {"spec": {"accessModes": ["ReadWriteOnce"], "resources": resources, **spec}}


@pytest.mark.parametrize(
    ("source", "broken"),
    [
        ({"hostPath": {"path": "/x"}}, []),
        ({}, ["spec"]),
        ({"hostPath": {}}, ["spec.hostPath.path"]),
        ({"hostPath": {"path": "/x"}, "nfs": {"server": "s", "path": "/"}}, ["spec.nfs"]),
        ({"nfs": {"server": "s", "path": "p"}}, ["spec.nfs.path"]),
        ({"nfs": {}}, ["spec.nfs.path", "spec.nfs.path", "spec.nfs.server"]),
        ({"csi": {"driver": "d"}}, ["spec.csi.volumeHandle"]),
        ({"csi": {"driver": "A_", "volumeHandle": "h"}}, ["spec.csi.driver"]),
        (
            {"csi": {"driver": "d", "volumeHandle": "h", "nodeExpandSecretRef": {"name": "B B"}}},
            ["spec.csi.nodeExpandSecretRef.name", "spec.csi.nodeExpandSecretRef.namespace"],
        ),
        ({"gcePersistentDisk": {}}, ["spec.persistentDisk.pdName"]),
        (
            {"gcePersistentDisk": {"pdName": "p", "partition": 256}},
            ["spec.persistentDisk.partition"],
        ),
        ({"awsElasticBlockStore": {}}, ["spec.awsElasticBlockStore.volumeID"]),
        ({"local": {"path": "../x"}}, ["spec.local.path", "spec.nodeAffinity"]),
        (
            {"iscsi": {"targetPortal": "t", "iqn": "odd", "lun": 300}},
            ["spec.iscsi.iqn", "spec.iscsi.lun"],
        ),
        ({"fc": {"targetWWNs": ["a"], "wwids": ["b"]}}, ["spec.fc.lun", "spec.fc.targetWWNs"]),
        (
            {"flexVolume": {"driver": "d", "options": {"x.kubernetes.io/y": "z"}}},
            ["spec.flexVolume.options[x.kubernetes.io/y]"],
        ),
        (
            {"azureDisk": {"diskName": "n", "diskURI": "x", "kind": "Managed"}},
            ["spec.azureDisk.diskURI"],
        ),
        ({"quobyte": {"volume": "v", "registry": "nohost"}}, ["spec.quobyte.registry"]),
    ],
)
def test_a_persistent_volume_has_one_whole_source(
    source: dict[str, Any], broken: list[str]
) -> None:
    assert of_new("persistentvolumes", volume(**source)) == broken


@pytest.mark.parametrize(
    ("spec", "broken"),
    [
        ({"accessModes": []}, ["spec.accessModes"]),
        ({"accessModes": ["ReadWriteOncePod", "ReadWriteMany"]}, ["spec.accessModes"]),
        ({"capacity": {}}, ["spec.capacity", "spec.capacity"]),
        ({"capacity": {"storage": "0"}}, ["spec.capacity[storage]"]),
        ({"capacity": {"storage": "1", "cpu": "1"}}, ["spec.capacity"]),
        ({"nodeAffinity": {}}, ["spec.nodeAffinity.required"]),
        (
            {"nodeAffinity": {"required": {"nodeSelectorTerms": []}}},
            ["spec.nodeAffinity.required.nodeSelectorTerms"],
        ),
        ({"storageClassName": "A_"}, ["spec.storageClassName"]),
        ({"volumeAttributesClassName": "v"}, ["spec.csi"]),
        (
            {"hostPath": {"path": "/"}, "persistentVolumeReclaimPolicy": "Recycle"},
            ["spec.persistentVolumeReclaimPolicy"],
        ),
    ],
)
def test_a_persistent_volume_says_how_it_may_be_used(
    spec: dict[str, Any], broken: list[str]
) -> None:
    assert of_new("persistentvolumes", volume(**{"hostPath": {"path": "/x"}, **spec})) == broken


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        ({"nfs": {"server": "a"}}, {"nfs": {"server": "b"}}, ["spec.persistentvolumesource"]),
        ({"volumeMode": "Block"}, {"volumeMode": "Filesystem"}, ["volumeMode"]),
        ({"nodeAffinity": {"required": TERM}}, {}, ["nodeAffinity"]),
        ({}, {"nodeAffinity": {"required": TERM}}, []),
        ({}, {"persistentVolumeReclaimPolicy": "Delete"}, []),
        (
            {"csi": {"driver": "d"}},
            {"csi": {"driver": "d", "controllerExpandSecretRef": {"name": "n"}}},
            [],
        ),
    ],
)
def test_the_source_of_a_persistent_volume_stays(
    before: dict[str, Any], after: dict[str, Any], broken: list[str]
) -> None:
    assert of_change("persistentvolumes", volume(**after), volume(**before)) == broken


@pytest.mark.parametrize(
    ("obj", "broken"),
    [
        (claim(), []),
        (claim(None), ["spec.resources[storage]"]),
        (claim("-1"), ["spec.resources[storage]"]),
        (claim(accessModes=[]), ["spec.accessModes"]),
        (claim(dataSource={"kind": "PersistentVolumeClaim", "name": "n"}), []),
        (
            claim(dataSource={"kind": "Odd", "name": ""}),
            ["spec.dataSource", "spec.dataSource.name"],
        ),
        (
            claim(dataSourceRef={"apiGroup": "A_", "kind": "K", "name": "n"}),
            ["spec.dataSourceRef.apiGroup"],
        ),
        (
            claim(
                dataSource={"apiGroup": "g", "kind": "K", "name": "n"},
                dataSourceRef={"apiGroup": "g", "kind": "K", "name": "m"},
            ),
            ["spec"],
        ),
        (claim(volumeAttributesClassName="A_"), ["spec.volumeAttributesClassName"]),
    ],
)
def test_a_claim_that_breaks_a_rule_is_refused(obj: dict[str, Any], broken: list[str]) -> None:
    assert of_new("persistentvolumeclaims", obj) == broken


@pytest.mark.parametrize(
    ("before", "after", "bound", "broken"),
    [
        (claim(), claim(volumeName="v"), False, []),
        (claim(volumeName="v"), claim(volumeName="w"), False, ["spec"]),
        (claim(), claim(storageClassName="s"), False, []),
        (claim(), claim("2Gi"), False, ["spec"]),
        (claim(), claim("2Gi"), True, []),
        (claim("2Gi"), claim("1Gi"), True, []),
        (claim(volumeMode="Block"), claim(volumeMode="Filesystem"), True, ["spec", "volumeMode"]),
        (
            claim(volumeAttributesClassName="a"),
            claim(volumeAttributesClassName="b"),
            True,
            [],
        ),
    ],
)
def test_of_a_claim_only_what_is_asked_of_its_volume_changes(
    before: dict[str, Any], after: dict[str, Any], bound: bool, broken: list[str]
) -> None:
    status = {"status": {"phase": "Bound" if bound else "Pending"}}
    change = of_change("persistentvolumeclaims", {**after, **status}, {**before, **status})
    assert [field for field in change if "requests" not in field] == broken


def test_a_bound_claim_never_shrinks_below_its_volume() -> None:
    status = {"status": {"phase": "Bound", "capacity": {"storage": "2Gi"}}}
    change = of_change(
        "persistentvolumeclaims", {**claim("1Gi"), **status}, {**claim("3Gi"), **status}
    )
    assert change == ["spec.resources.requests.storage"]


def topology(**term: Any) -> dict[str, Any]:
    whole = {"key": "a", "values": ["b"], **term}
    return {"provisioner": "p", "allowedTopologies": [{"matchLabelExpressions": [whole]}]}


WHERE = "allowedTopologies[0].matchLabelExpressions[0]"


@pytest.mark.parametrize(
    ("obj", "broken"),
    [
        ({"provisioner": ""}, ["provisioner"]),
        ({"provisioner": "p", "parameters": {"": "x"}}, ["parameters"]),
        ({"provisioner": "p", "parameters": {"k": "v" * (1 << 19)}}, ["parameters"]),
        ({"provisioner": "p", "reclaimPolicy": "Recycle"}, ["reclaimPolicy"]),
        (topology(), []),
        (topology(values=[]), [f"{WHERE}.values"]),
        (topology(values=["b", "b"]), [f"{WHERE}.values[1]"]),
        (topology(key="a b"), [f"{WHERE}.key"]),
    ],
)
def test_a_storage_class_that_breaks_a_rule_is_refused(
    obj: dict[str, Any], broken: list[str]
) -> None:
    assert of_new("storage.k8s.io/storageclasses", obj) == broken


@pytest.mark.parametrize(
    ("name", "obj", "broken"),
    [
        ("volumeattributesclasses", {"driverName": "d"}, ["parameters"]),
        ("volumeattributesclasses", {"driverName": "d", "parameters": {"a": "b"}}, []),
        ("csidrivers", {"spec": {"volumeLifecycleModes": ["Odd"]}}, ["spec.volumeLifecycleModes"]),
        ("csidrivers", {"spec": {"fsGroupPolicy": "Odd"}}, ["spec.fsGroupPolicy"]),
        (
            "csidrivers",
            {"spec": {"tokenRequests": [{"audience": "a", "expirationSeconds": 5}]}},
            ["spec.tokenRequests[0].expirationSeconds"],
        ),
        (
            "csidrivers",
            {"spec": {"tokenRequests": [{"audience": "a"}, {"audience": "a"}]}},
            ["spec.tokenRequests[1].audience"],
        ),
        ("csinodes", {"spec": {"drivers": [{"name": "d", "nodeID": "n"}]}}, []),
        ("csinodes", {"spec": {"drivers": [{"name": "d"}]}}, ["spec.drivers[0].nodeID"]),
        (
            "csinodes",
            {"spec": {"drivers": [{"name": "d", "nodeID": "n", "allocatable": {"count": -1}}] * 2}},
            [
                "spec.drivers[0].allocatable.count",
                "spec.drivers[1].allocatable.count",
                "spec.drivers[1].name",
            ],
        ),
        ("csistoragecapacities", {"storageClassName": ""}, ["storageClassName"]),
        ("csistoragecapacities", {"storageClassName": "s", "capacity": "-1"}, ["capacity"]),
        (
            "volumeattachments",
            {"spec": {"attacher": "a", "nodeName": "n", "source": {}}},
            ["spec.source"],
        ),
        (
            "volumeattachments",
            {"spec": {"nodeName": "n", "source": {"persistentVolumeName": "p"}}},
            ["spec.attacher"] * 3,
        ),
    ],
)
def test_what_drivers_and_nodes_say_of_storage_keeps_its_rules(
    name: str, obj: dict[str, Any], broken: list[str]
) -> None:
    assert of_new(f"storage.k8s.io/{name}", obj) == broken


@pytest.mark.parametrize(
    ("name", "old", "new", "broken"),
    [
        (
            "csidrivers",
            {"spec": {"attachRequired": True}},
            {"spec": {"attachRequired": False}},
            ["spec.attachedRequired"],
        ),
        (
            "csinodes",
            {"spec": {"drivers": [{"name": "d", "nodeID": "n"}]}},
            {"spec": {"drivers": [{"name": "d", "nodeID": "m"}]}},
            ["spec.drivers"],
        ),
        ("volumeattachments", {"spec": {"nodeName": "a"}}, {"spec": {"nodeName": "b"}}, ["spec"]),
        ("volumeattributesclasses", {"driverName": "a"}, {"driverName": "b"}, ["driverName"]),
    ],
)
def test_what_is_fixed_when_it_is_made_stays(
    name: str, old: dict[str, Any], new: dict[str, Any], broken: list[str]
) -> None:
    assert of_change(f"storage.k8s.io/{name}", new, old) == broken
