"""Validation of pods, pod templates and their selectors."""

from typing import Any

import pytest

from listwatch.apiserver.kinds.jobs import KINDS as JOBS
from listwatch.apiserver.kinds.pod_rules import check_pod_spec, check_taints
from listwatch.apiserver.kinds.workloads import KINDS as WORKLOADS
from listwatch.schema.enumerations import unsupported_values

NEEDED = "requiredDuringSchedulingIgnoredDuringExecution"
_POD = "io.k8s.api.core.v1.Pod"


def pod(**changes: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "i"}], **changes}


def container(**changes: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "c", "image": "i", **changes}])


def fields(spec: dict[str, Any]) -> list[str]:
    return [cause.field for cause in check_pod_spec(spec, "spec")]


def test_a_plain_pod_breaks_no_rule() -> None:
    assert fields(pod()) == []


@pytest.mark.parametrize(
    ("spec", "broken"),
    [
        (pod(hostname="A_"), ["spec.hostname"]),
        (pod(serviceAccountName="B B"), ["spec.serviceAccountName"]),
        (pod(nodeSelector={"a": "b c"}), ["spec.nodeSelector"]),
        (pod(securityContext={"runAsUser": -1}), ["spec.securityContext.runAsUser"]),
        (
            pod(securityContext={"sysctls": [{"name": "a.b"}, {"name": "a.b"}]}),
            ["spec.securityContext.sysctls[1].name"],
        ),
        (
            pod(securityContext={"seccompProfile": {"type": "Localhost"}}),
            ["spec.securityContext.seccompProfile.localhostProfile"],
        ),
        (pod(dnsPolicy="None"), ["spec.dnsConfig"]),
        (pod(dnsConfig={"nameservers": ["x"]}), ["spec.dnsConfig.nameservers[0]"]),
        (pod(hostAliases=[{"ip": "nope"}]), ["spec.hostAliases[0].ip"]),
        (
            pod(schedulingGates=[{"name": "a/b"}, {"name": "a/b"}]),
            ["spec.schedulingGates[1]"],
        ),
        (pod(readinessGates=[{"conditionType": "a b"}]), ["spec.readinessGates[0].conditionType"]),
        (pod(tolerations=[{"operator": "Equal"}]), ["spec.tolerations[0].operator"]),
        (
            pod(tolerations=[{"key": "k", "effect": "NoSchedule", "tolerationSeconds": 3}]),
            ["spec.tolerations[0].effect"],
        ),
        (
            pod(
                topologySpreadConstraints=[
                    {"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "DoNotSchedule"}
                ]
            ),
            [
                "spec.topologySpreadConstraints[0].maxSkew",
                "spec.topologySpreadConstraints[0].topologyKey",
            ],
        ),
        (
            pod(affinity={"nodeAffinity": {NEEDED: {"nodeSelectorTerms": []}}}),
            [f"spec.affinity.nodeAffinity.{NEEDED}.nodeSelectorTerms"],
        ),
        (
            pod(volumes=[{"name": "v", "nfs": {"server": "s", "path": "p"}}]),
            ["spec.volumes[0].nfs.path"],
        ),
        (
            pod(volumes=[{"name": "v", "hostPath": {"path": "../x"}}]),
            ["spec.volumes[0].hostPath.path"],
        ),
        (
            pod(volumes=[{"name": "v", "secret": {"secretName": "s", "defaultMode": 512}}]),
            ["spec.volumes[0].secret.defaultMode"],
        ),
        (
            pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]),
            ["spec.volumes[0].hostPath"],
        ),
    ],
)
def test_a_pod_that_breaks_a_rule_is_refused_with_its_field(
    spec: dict[str, Any], broken: list[str]
) -> None:
    assert fields(spec) == broken


@pytest.mark.parametrize(
    ("spec", "broken"),
    [
        (container(image=""), ["image"]),
        (container(ports=[{"containerPort": 0}]), ["ports[0].containerPort"]),
        (container(ports=[{"containerPort": 1, "name": "-a"}]), ["ports[0].name"]),
        (
            container(
                ports=[
                    {"containerPort": 1, "hostPort": 5, "protocol": "TCP"},
                    {"containerPort": 2, "hostPort": 5, "protocol": "TCP"},
                ]
            ),
            ["ports[1].hostPort"],
        ),
        (container(env=[{"name": "A", "valueFrom": {}}]), ["env[0].valueFrom"]),
        (
            container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"key": "k"}}}]),
            ["env[0].valueFrom.secretKeyRef.name"],
        ),
        (
            container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]),
            ["env[0].valueFrom.fieldRef.fieldPath"],
        ),
        (container(envFrom=[{}]), ["envFrom"]),
        (container(livenessProbe={}), ["livenessProbe"]),
        (
            container(livenessProbe={"exec": {"command": ["x"]}, "successThreshold": 2}),
            ["livenessProbe.successThreshold"],
        ),
        (container(lifecycle={"preStop": {}}), ["lifecycle.preStop"]),
        (container(resources={"limits": {"cpu": "-1"}}), ["resources.limits[cpu]"]),
        (container(resources={"limits": {"odd": "1"}}), ["resources.limits[odd]"] * 2),
        (container(resources={"requests": {"x.io/gpu": "1"}}), ["resources.limits"]),
        (container(securityContext={"runAsUser": -1}), ["securityContext.runAsUser"]),
        (
            container(securityContext={"allowPrivilegeEscalation": False, "privileged": True}),
            ["securityContext"],
        ),
    ],
)
def test_a_container_that_breaks_a_rule_is_refused_with_its_field(
    spec: dict[str, Any], broken: list[str]
) -> None:
    assert fields(spec) == [f"spec.containers[0].{each}" for each in broken]


def test_init_containers_that_end_have_no_probes() -> None:
    probe = {"exec": {"command": ["x"]}}
    init: dict[str, Any] = {"name": "i", "image": "i", "livenessProbe": probe}
    assert fields(pod(initContainers=[init])) == ["spec.initContainers[0].livenessProbe"]
    assert fields(pod(initContainers=[{**init, "restartPolicy": "Always"}])) == []


def test_values_out_of_the_facts_are_not_supported_wherever_they_stand() -> None:
    spec = container(imagePullPolicy="Often")
    spec["topologySpreadConstraints"] = [{"whenUnsatisfiable": "Maybe"}]
    causes = unsupported_values({"spec": spec, "status": {"phase": "Odd"}}, _POD)
    assert {cause.field for cause in causes} == {
        "spec.containers[0].imagePullPolicy",
        "spec.topologySpreadConstraints[0].whenUnsatisfiable",
    }
    assert {cause.reason for cause in causes} == {"FieldValueNotSupported"}


def workload(name: str, **changes: Any) -> list[str]:
    rule = WORKLOADS[f"apps/{name}"].rule
    assert rule is not None
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod()}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template, **changes}
    strategy = {"type": "RollingUpdate"}
    defaults: dict[str, Any] = {
        "strategy": strategy,
        "updateStrategy": strategy,
        "podManagementPolicy": "Parallel",
    }
    return [cause.field for cause in rule({"metadata": {}, "spec": {**defaults, **spec}})]


@pytest.mark.parametrize("name", ["deployments", "replicasets", "statefulsets", "daemonsets"])
def test_workloads_whose_pods_last_share_the_rules_of_their_templates(name: str) -> None:
    assert workload(name) == []
    ending = {"metadata": {"labels": {"app": "a"}}, "spec": pod(activeDeadlineSeconds=5)}
    assert workload(name, template=ending) == ["spec.template.spec.activeDeadlineSeconds"]
    missed = workload(name, selector={"matchLabels": {"app": "b"}})
    assert missed == ["spec.template.metadata.labels"]
    unreadable = {"matchExpressions": [{"key": "a", "operator": "In"}]}
    assert "spec.selector.matchExpressions[0].values" in workload(name, selector=unreadable)
    assert "spec.selector" in workload(name, selector={})


def test_a_daemon_set_rolls_by_surge_or_by_absence_and_not_by_both() -> None:
    def rolling(**amounts: int) -> list[str]:
        strategy = {"type": "RollingUpdate", "rollingUpdate": amounts}
        return workload("daemonsets", updateStrategy=strategy)

    path = "spec.updateStrategy.rollingUpdate"
    assert rolling(maxUnavailable=1, maxSurge=1) == [f"{path}.maxSurge"]
    assert rolling(maxUnavailable=0, maxSurge=0) == [f"{path}.maxUnavailable"]
    assert rolling(maxUnavailable=0, maxSurge=1) == []


def test_a_job_keeps_the_labels_that_the_server_makes() -> None:
    kind = JOBS["batch/jobs"]
    assert kind.admit is not None
    assert kind.rule is not None
    template = {"metadata": {"labels": {}}, "spec": pod(restartPolicy="Never")}
    spec = {"template": template, "selector": {"matchLabels": {"a": "b"}}}
    job: dict[str, Any] = {"metadata": {"name": "j", "uid": "u"}, "spec": spec}
    kind.admit(job)
    assert sorted(job["spec"]["selector"]["matchLabels"]) == [
        "a",
        "batch.kubernetes.io/controller-uid",
    ]
    # The client's label stays, and does not match the template.
    found = [cause.field for cause in kind.rule(job)]
    assert found == ["spec.selector", "spec.template.metadata.labels"]


def test_two_taints_of_one_key_differ_in_effect() -> None:
    taints = [{"key": "k", "effect": "NoSchedule"}, {"key": "k", "effect": "NoExecute"}]
    assert check_taints(taints, "t") == []
    assert [cause.field for cause in check_taints([*taints, taints[0]], "t")] == ["t[2]"]
