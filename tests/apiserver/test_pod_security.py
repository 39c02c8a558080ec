"""Pod Security Standards, enforced as the labels of a namespace say."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.admission.pod_security import (
    Level,
    label_causes,
    policy_of,
    violations,
    warnings_of_pods,
)

PREFIX = "pod-security.kubernetes.io/"
SPACES = "/api/v1/namespaces"
MERGE = {"Content-Type": "application/merge-patch+json"}
SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(context: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "securityContext": context or {}}
    return {"containers": [container], **spec}


def broken(spec: dict[str, Any], level: str, **annotations: str) -> list[str]:
    found = violations(spec, {"annotations": annotations}, Level(level))
    return [reason for reason, _ in found]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (pod(hostNetwork=True), "host namespaces"),
        (pod(hostPID=True), "host namespaces"),
        (pod({"privileged": True}), "privileged"),
        (pod({"capabilities": {"add": ["NET_ADMIN"]}}), "non-default capabilities"),
        (pod(volumes=[{"name": "h", "hostPath": {"path": "/"}}]), "hostPath volumes"),
        (
            pod(containers=[{"name": "c", "ports": [{"containerPort": 1, "hostPort": 1}]}]),
            "hostPort",
        ),
        (pod({"procMount": "Unmasked"}), "procMount"),
        (pod({"seLinuxOptions": {"type": "spc_t"}}), "seLinuxOptions"),
        (pod({"seLinuxOptions": {"user": "u"}}), "seLinuxOptions"),
        (pod({"seccompProfile": {"type": "Unconfined"}}), "seccompProfile"),
        (pod({"appArmorProfile": {"type": "Unconfined"}}), "forbidden AppArmor profile"),
        (pod(securityContext={"sysctls": [{"name": "kernel.msgmax"}]}), "forbidden sysctls"),
        (pod({"windowsOptions": {"hostProcess": True}}), "hostProcess"),
        (
            pod(containers=[{"name": "c", "livenessProbe": {"httpGet": {"host": "h"}}}]),
            "probe or lifecycle host",
        ),
        (
            pod(initContainers=[{"name": "i", "securityContext": {"privileged": True}}]),
            "privileged",
        ),
    ],
)
def test_baseline_forbids_what_reaches_the_node(spec: dict[str, Any], reason: str) -> None:
    assert broken(spec, "baseline") == [reason]
    assert broken(spec, "privileged") == []


@pytest.mark.parametrize(
    "spec",
    [
        pod(),
        pod({"capabilities": {"add": ["CHOWN"]}}),
        pod({"seLinuxOptions": {"type": "container_t", "level": "s0"}}),
        pod({"appArmorProfile": {"type": "Localhost", "localhostProfile": "p"}}),
        pod(securityContext={"sysctls": [{"name": "net.ipv4.tcp_syncookies"}]}),
        pod(volumes=[{"name": "n", "nfs": {"server": "s", "path": "/"}}]),
    ],
)
def test_baseline_lets_the_usual_through(spec: dict[str, Any]) -> None:
    assert broken(spec, "baseline") == []


def test_an_annotation_is_as_good_as_the_field_it_was_before() -> None:
    key = "container.apparmor.security.beta.kubernetes.io/c"
    assert broken(pod(), "baseline", **{key: "unconfined"}) == ["forbidden AppArmor profile"]
    assert broken(pod(), "baseline", **{key: "localhost/x"}) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"allowPrivilegeEscalation": True}, "allowPrivilegeEscalation != false"),
        ({"allowPrivilegeEscalation": None}, "allowPrivilegeEscalation != false"),
        ({"capabilities": {"drop": ["CHOWN"]}}, "unrestricted capabilities"),
        ({"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}, "unrestricted capabilities"),
        ({"runAsNonRoot": False}, "runAsNonRoot != true"),
        ({"runAsNonRoot": None}, "runAsNonRoot != true"),
        ({"runAsUser": 0}, "runAsUser=0"),
        ({"seccompProfile": None}, "seccompProfile"),
    ],
)
def test_restricted_wants_each_container_confined(change: dict[str, Any], reason: str) -> None:
    assert broken(pod(SAFE), "restricted") == []
    assert broken(pod({**SAFE, **change}), "restricted") == [reason]


def test_restricted_knows_the_types_of_volumes() -> None:
    kept = [{"name": "e", "emptyDir": {}}, {"name": "p", "projected": {}}]
    assert broken(pod(SAFE, volumes=kept), "restricted") == []
    shared = [*kept, {"name": "n", "nfs": {}}]
    assert broken(pod(SAFE, volumes=shared), "restricted") == ["restricted volume types"]


def test_what_the_pod_says_counts_for_its_containers() -> None:
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    own = {key: SAFE[key] for key in ("allowPrivilegeEscalation", "capabilities")}
    assert broken(pod(own, securityContext=context), "restricted") == []
    worse = pod({**own, "runAsNonRoot": False}, securityContext=context)
    assert broken(worse, "restricted") == ["runAsNonRoot != true"]


def test_a_pod_of_windows_needs_nothing_that_only_linux_has() -> None:
    spec = pod({"runAsNonRoot": True}, os={"name": "windows"})
    assert broken(spec, "restricted") == []


@pytest.mark.parametrize(
    ("labels", "enforce", "warn"),
    [
        ({}, "privileged:latest", "privileged:latest"),
        ({"enforce": "baseline"}, "baseline:latest", "baseline:latest"),
        ({"enforce": "restricted", "warn": "baseline"}, "restricted:latest", "baseline:latest"),
        ({"warn": "restricted"}, "privileged:latest", "restricted:latest"),
        ({"enforce": "baseline", "enforce-version": "v1.30"}, "baseline:v1.30", "baseline:v1.30"),
        ({"audit": "restricted"}, "privileged:latest", "privileged:latest"),
    ],
)
def test_labels_say_who_is_refused_and_who_is_warned_of(
    labels: dict[str, str], enforce: str, warn: str
) -> None:
    policy = policy_of({PREFIX + key: value for key, value in labels.items()})
    assert (str(policy.enforce), str(policy.warn)) == (enforce, warn)


def test_a_label_must_ask_for_what_there_is_unless_it_did_before() -> None:
    labels = {f"{PREFIX}enforce": "strict", f"{PREFIX}warn-version": "1.2"}
    fields = [cause.field for cause in label_causes(labels, {})]
    assert fields == [f"metadata.labels[{key}]" for key in labels]
    assert label_causes(labels, labels) == []


def test_a_namespace_that_gets_stricter_tells_of_its_pods() -> None:
    pods = [
        {"metadata": {"name": name}, "spec": pod({"privileged": True})} for name in ("b", "a", "c")
    ]
    head, said = warnings_of_pods(pods, "n", Level("baseline"))
    assert head.endswith(
        'in namespace "n" violate the new PodSecurity enforce level "baseline:latest"'
    )
    assert said == "a (and 2 other pods): privileged"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer() as server, Client(server) as client:
        yield client


async def space(client: Client, **labels: str) -> str:
    given = {"name": "n", "labels": {f"{PREFIX}{key}": value for key, value in labels.items()}}
    await client.call("POST", SPACES, {"metadata": given}, expect=201)
    return f"{SPACES}/n/pods"


async def test_a_pod_that_breaks_the_level_is_refused(client: Client) -> None:
    pods = await space(client, enforce="baseline")
    refused = await client.call(
        "POST", pods, {"metadata": {"name": "a"}, "spec": pod(hostPID=True)}, expect=403
    )
    assert refused["message"] == (
        'pods "a" is forbidden: violates PodSecurity "baseline:latest": host namespaces '
        "(hostPID=true)"
    )
    await client.call("POST", pods, {"metadata": {"name": "a"}, "spec": pod()}, expect=201)


async def test_what_makes_pods_is_stored_whatever_they_break(client: Client) -> None:
    await space(client, enforce="restricted")
    path = "/apis/apps/v1/namespaces/n/deployments"
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": pod(hostPID=True)}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    await client.call("POST", path, {"metadata": {"name": "d"}, "spec": spec}, expect=201)


async def test_a_namespace_can_not_ask_for_a_level_that_is_none(client: Client) -> None:
    labels = {f"{PREFIX}enforce": "strict"}
    refused = await client.call(
        "POST", SPACES, {"metadata": {"name": "x", "labels": labels}}, expect=422
    )
    assert refused["details"]["causes"][0]["field"] == f"metadata.labels[{PREFIX}enforce]"
    await space(client)
    patch = {"metadata": {"labels": labels}}
    await client.call("PATCH", f"{SPACES}/n", patch, expect=422, headers=MERGE)
