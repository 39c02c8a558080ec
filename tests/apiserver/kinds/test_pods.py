"""Validation of pods and templates: volumes, mounts, references, security contexts, OS."""

from typing import Any

import pytest

from kind_causes import of_new
from listwatch.apiserver.kinds.pod_rules import check_pod_spec
from listwatch.apiserver.kinds.rules import quantity
from listwatch.schema.typed import canonical_quantity


def spec(container: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "i", **(container or {})}], **more}


def fields(pod: dict[str, Any]) -> list[str]:
    return sorted(cause.field.removeprefix("spec.") for cause in check_pod_spec(pod, "spec"))


def volume(**source: Any) -> dict[str, Any]:
    return spec(volumes=[{"name": "v", **source}])


def projected(**source: Any) -> dict[str, Any]:
    return volume(projected={"sources": [source]})


AT = "volumes[0]"


@pytest.mark.parametrize(
    ("pod", "broken"),
    [
        (volume(emptyDir={"sizeLimit": "-1"}), [f"{AT}.emptyDir.sizeLimit"]),
        (volume(emptyDir={}, hostPath={"path": "/x"}), [f"{AT}.hostPath"]),
        (volume(secret={}), [f"{AT}.secret.secretName"]),
        (
            volume(configMap={"name": "n", "defaultMode": 512}),
            [f"{AT}.configMap.defaultMode"],
        ),
        (
            volume(configMap={"name": "n", "items": [{"key": "k", "path": "..x"}]}),
            [f"{AT}.configMap.items[0].path"],
        ),
        (
            volume(downwardAPI={"items": [{"path": "p"}]}),
            [f"{AT}.downwardAPI"],
        ),
        (
            volume(
                downwardAPI={"items": [{"path": "p", "fieldRef": {"fieldPath": "spec.nodeName"}}]}
            ),
            [f"{AT}.downwardAPI.fieldRef.fieldPath"],
        ),
        (
            volume(
                downwardAPI={
                    "items": [{"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}}]
                }
            ),
            [f"{AT}.downwardAPI.resourceFieldRef.containerName"],
        ),
        (
            projected(secret={"name": "s"}, configMap={"name": "c"}),
            [f"{AT}.projected.sources[0]"],
        ),
        (
            projected(serviceAccountToken={"path": "", "expirationSeconds": 5}),
            [
                f"{AT}.projected.path",
                f"{AT}.projected.sources[0].serviceAccountToken.expirationSeconds",
            ],
        ),
        (
            projected(
                secret={
                    "name": "s",
                    "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "x"}],
                }
            ),
            [f"{AT}.projected"],
        ),
        (
            volume(ephemeral={"volumeClaimTemplate": {"spec": {}}}),
            [
                f"{AT}.ephemeral.volumeClaimTemplate.spec.accessModes",
                f"{AT}.ephemeral.volumeClaimTemplate.spec.resources[storage]",
            ],
        ),
        (volume(csi={"driver": ""}), [f"{AT}.csi.driver"] * 2),
        (volume(cephfs={}), [f"{AT}.cephfs.monitors"]),
    ],
)
def test_a_volume_that_breaks_a_rule_is_refused(pod: dict[str, Any], broken: list[str]) -> None:
    assert fields(pod) == broken


MOUNTS = "containers[0].volumeMounts"


@pytest.mark.parametrize(
    ("mount", "broken"),
    [
        ({"name": "v", "mountPath": "/m"}, []),
        ({"name": "x", "mountPath": "/m"}, [f"{MOUNTS}[0].name"]),
        ({"mountPath": "/m"}, [f"{MOUNTS}[0].name"] * 2),
        ({"name": "v"}, [f"{MOUNTS}[0].mountPath"]),
        ({"name": "v", "mountPath": "/m", "subPath": "/x"}, [f"{MOUNTS}.subPath"]),
        (
            {"name": "v", "mountPath": "/m", "mountPropagation": "Bidirectional"},
            [f"{MOUNTS}.mountPropagation"],
        ),
        (
            {"name": "v", "mountPath": "/m", "mountPropagation": ""},
            [f"{MOUNTS}.mountPropagation"],
        ),
        (
            {"name": "v", "mountPath": "/m", "recursiveReadOnly": "Enabled"},
            [f"{MOUNTS}.recursiveReadOnly"],
        ),
    ],
)
def test_a_mount_names_a_volume_and_a_place(mount: dict[str, Any], broken: list[str]) -> None:
    pod = spec({"volumeMounts": [mount]}, volumes=[{"name": "v", "emptyDir": {}}])
    assert fields(pod) == broken


def test_a_volume_that_is_broken_can_not_be_mounted() -> None:
    pod = spec(
        {"volumeMounts": [{"name": "v", "mountPath": "/m"}]}, volumes=[{"name": "v", "nfs": {}}]
    )
    assert f"{MOUNTS}[0].name" in fields(pod)


def test_a_device_is_a_claim() -> None:
    devices = {"volumeDevices": [{"name": "v", "devicePath": "/d"}]}
    kept = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    assert fields(spec(devices, volumes=kept)) == []
    other = [{"name": "v", "emptyDir": {}}]
    assert fields(spec(devices, volumes=other)) == ["containers[0].volumeDevices[0].name"]


@pytest.mark.parametrize(
    ("container", "broken"),
    [
        ({"env": [{"name": "a", "valueFrom": {"secretKeyRef": {}}}]}, ["key", "name"]),
        (
            {"env": [{"name": "a", "valueFrom": {"secretKeyRef": {"name": "B B", "key": "k"}}}]},
            ["name"],
        ),
    ],
)
def test_a_key_that_is_read_has_a_name(container: dict[str, Any], broken: list[str]) -> None:
    where = "containers[0].env[0].valueFrom.secretKeyRef."
    assert fields(spec(container)) == [where + each for each in broken]


@pytest.mark.parametrize(
    ("path", "broken"),
    [
        ("metadata.name", []),
        ("metadata.labels['a']", []),
        ("metadata.labels['a b']", [""]),
        ("metadata.labels", [".fieldPath"]),
        ("spec.odd", [".fieldPath"]),
        ("metadata.uid['a']", [".fieldPath"]),
        ("", [".fieldPath"]),
    ],
)
def test_a_variable_reads_a_field_that_it_may(path: str, broken: list[str]) -> None:
    variable = {"name": "a", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    where = "containers[0].env[0].valueFrom.fieldRef"
    assert fields(spec({"env": [variable]})) == [where + each for each in broken]


@pytest.mark.parametrize(
    ("reference", "broken"),
    [
        ({"resource": "limits.cpu", "divisor": "1m"}, []),
        ({"resource": "limits.cpu", "divisor": "1Gi"}, [".divisor"]),
        ({"resource": "limits.memory", "divisor": "1Mi"}, []),
        ({"resource": "limits.odd"}, [".resource"]),
        ({}, [".resource"]),
        ({"resource": "requests.hugepages-2Mi"}, []),
    ],
)
def test_a_variable_reads_a_resource_in_units(reference: dict[str, str], broken: list[str]) -> None:
    variable = {"name": "a", "valueFrom": {"resourceFieldRef": reference}}
    where = "containers[0].env[0].valueFrom.resourceFieldRef"
    assert fields(spec({"env": [variable]})) == [where + each for each in broken]


@pytest.mark.parametrize(
    ("container", "broken"),
    [
        ({"restartPolicy": "Odd"}, ["restartPolicy"]),
        ({"restartPolicy": "Never"}, []),
        ({"resizePolicy": [{"resourceName": "gpu", "restartPolicy": "Odd"}]}, ["resizePolicy"] * 2),
        ({"resources": {"claims": [{"name": "x"}]}}, ["resources.claims[0]"]),
        (
            {"resources": {"limits": {"hugepages-2Mi": "3Mi"}}},
            ["resources", "resources.limits[hugepages-2Mi]"],
        ),
        ({"resources": {"limits": {"x.io/y": "1500m"}}}, ["resources.limits[x.io/y]"]),
        ({"resources": {"limits": {"pods": "1"}}}, ["resources.limits[pods]"]),
        ({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}, ["lifecycle.preStop.sleep"]),
        (
            {"livenessProbe": {"httpGet": {"port": 1, "httpHeaders": [{"name": "a b"}]}}},
            ["livenessProbe.httpGet.httpHeaders"],
        ),
        ({"securityContext": {"procMount": "Unmasked"}}, ["securityContext.procMount"]),
        (
            {"securityContext": {"seccompProfile": {"type": "Localhost"}}},
            ["securityContext.seccompProfile.localhostProfile"],
        ),
        (
            {"securityContext": {"appArmorProfile": {"localhostProfile": "x"}}},
            ["securityContext.appArmorProfile.type"],
        ),
    ],
)
def test_a_container_keeps_the_rules_of_its_parts(
    container: dict[str, Any], broken: list[str]
) -> None:
    pod = spec(container, terminationGracePeriodSeconds=30)
    assert fields(pod) == [f"containers[0].{each}" for each in broken]


@pytest.mark.parametrize(
    ("more", "broken"),
    [
        (
            {"hostPID": True, "shareProcessNamespace": True},
            ["securityContext.shareProcessNamespace"],
        ),
        ({"hostUsers": False, "hostNetwork": True}, ["hostNetwork"]),
        ({"os": {"name": "plan9"}}, ["os"]),
        ({"os": {"name": ""}}, ["os.name"]),
        (
            {"os": {"name": "windows"}, "hostPID": True, "securityContext": {"runAsUser": 1}},
            ["hostPID", "securityContext.runAsUser"],
        ),
        (
            {"os": {"name": "linux"}, "securityContext": {"windowsOptions": {}}},
            ["securityContext.windowsOptions"],
        ),
        (
            {"securityContext": {"windowsOptions": {"hostProcess": True}}},
            ["hostNetwork"],
        ),
        ({"resourceClaims": [{"name": "a"}]}, ["resourceClaims[0]"]),
        (
            {"resourceClaims": [{"name": "A_", "resourceClaimName": "x"}]},
            ["resourceClaims[0].name"],
        ),
        ({"resources": {"limits": {"x.io/y": "1"}}}, ["resources.limits[x.io/y]"]),
        (
            {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a"}]},
            ["topologySpreadConstraints[0].whenUnsatisfiable"],
        ),
        ({"dnsPolicy": "None"}, ["dnsConfig"]),
        ({"runtimeClassName": ""}, ["runtimeClassName"]),
        (
            {"ephemeralContainers": [{"name": "c", "image": "i", "targetContainerName": "x"}]},
            ["ephemeralContainers[0].name", "ephemeralContainers[0].targetContainerName"],
        ),
        (
            {
                "affinity": {
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"topologyKey": "k", "matchLabelKeys": ["a"]}
                        ]
                    }
                }
            },
            [
                (
                    "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"
                    ".matchLabelKeys"
                )
            ],
        ),
    ],
)
def test_a_pod_keeps_the_rules_of_its_parts(more: dict[str, Any], broken: list[str]) -> None:
    assert fields(spec(**more)) == broken


def test_only_a_pod_itself_has_the_ports_of_its_node() -> None:
    ports = {"ports": [{"containerPort": 80}]}
    assert fields(spec(ports, hostNetwork=True)) == []
    assert of_new("pods", {"spec": spec(ports, hostNetwork=True)}) == [
        "spec.containers[0].ports[0].hostPort"
    ]


@pytest.mark.parametrize(
    ("more", "broken"),
    [
        (
            {"ephemeralContainers": [{"name": "e", "image": "i"}]},
            ["spec.ephemeralContainers"],
        ),
        ({"nodeName": "n", "schedulingGates": [{"name": "g"}]}, ["spec.nodeName"]),
        (
            {
                "volumes": [
                    {
                        "name": "v",
                        "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]},
                    }
                ]
            },
            ["spec.volumes[0].projected.sources[0].serviceAccountToken"],
        ),
    ],
)
def test_a_new_pod_has_no_future(more: dict[str, Any], broken: list[str]) -> None:
    assert of_new("pods", {"spec": spec(**more)}) == broken


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("+1", "+1"),
        ("5.", "5."),
        ("1E3", "1E3"),
        ("100k", "100k"),
        ("1.500", "1.500"),
        ("1.5", "1500m"),
        ("1000m", "1"),
        ("1024Mi", "1Gi"),
        ("1e2", "100"),
        ("0Mi", "0"),
    ],
)
def test_a_quantity_stays_as_it_was_written_if_its_digits_allow(written: str, kept: str) -> None:
    assert canonical_quantity(written) == kept
    assert quantity(kept) == quantity(written)
