"""Validation of Secrets, RoleBindings, CertificateSigningRequests and StatefulSets."""

import base64
from typing import Any

import pytest

from kind_causes import of_change, of_new
from listwatch.apiserver.kinds.catalog import built_in


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("kind", "data", "broken"),
    [
        ("Opaque", {}, []),
        ("kubernetes.io/ssh-auth", {"ssh-privatekey": ""}, ["data[ssh-privatekey]"]),
        ("kubernetes.io/ssh-auth", {"ssh-privatekey": encoded("k")}, []),
        ("kubernetes.io/tls", {"tls.crt": ""}, ["data[tls.key]"]),
        ("kubernetes.io/dockercfg", {".dockercfg": encoded("{}")}, []),
        ("kubernetes.io/dockercfg", {".dockercfg": encoded("[1]")}, ["data[.dockercfg]"]),
        ("kubernetes.io/basic-auth", {"password": ""}, []),
        ("kubernetes.io/basic-auth", {}, ["data[password]", "data[username]"]),
    ],
)
def test_the_rules_of_a_secret(kind: str, data: dict[str, str], broken: list[str]) -> None:
    assert of_new("secrets", {"type": kind, "data": data}) == broken


RBAC = "rbac.authorization.k8s.io"


@pytest.mark.parametrize(
    ("role", "subject", "broken"),
    [
        ({"name": "r"}, {"kind": "User", "apiGroup": RBAC, "name": "A b"}, []),
        ({"name": "a/b"}, {"kind": "User", "apiGroup": RBAC, "name": "u"}, ["roleRef.name"]),
        ({}, {"kind": "User", "name": "u"}, ["roleRef.name", "subjects[0].apiGroup"]),
        ({"name": "r"}, {"kind": "ServiceAccount", "name": "A_"}, ["subjects[0].name"]),
        ({"name": "r"}, {"kind": "Robot", "name": "u"}, ["subjects[0].kind"]),
    ],
)
def test_the_rules_of_a_role_binding(
    role: dict[str, str], subject: dict[str, str], broken: list[str]
) -> None:
    whole = {"apiGroup": RBAC, "kind": "Role", **role}
    obj = {"roleRef": whole, "subjects": [subject]}
    assert of_new(f"{RBAC}/rolebindings", obj) == broken


@pytest.mark.parametrize(
    ("signer", "usages", "broken"),
    [
        ("example.com/a", ["client auth"], []),
        ("kubernetes.io/legacy-unknown", ["client auth"], ["spec.signerName"]),
        ("example/a", ["any"], ["spec.signerName"]),
        ("example.com/a/b", ["any"], ["spec.signerName"]),
        ("example.com/A_", ["any"], ["spec.signerName"]),
        ("example.com/a", ["any", "fun", "any"], ["spec.usages[1]", "spec.usages[2]"]),
    ],
)
def test_the_rules_of_a_signing_request(signer: str, usages: list[str], broken: list[str]) -> None:
    request = encoded("-----BEGIN CERTIFICATE REQUEST-----\n")
    spec = {"request": request, "signerName": signer, "usages": usages}
    found = of_new("certificates.k8s.io/certificatesigningrequests", {"spec": spec})
    assert found == broken


POD = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "terminationGracePeriodSeconds": 30,
        "containers": [
            {
                "name": "c",
                "image": "i",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always",
            }
        ],
    },
}


@pytest.mark.parametrize(
    ("spec", "broken"),
    [
        ({}, []),
        ({"revisionHistoryLimit": -1}, []),
        ({"serviceName": "A_"}, ["spec.serviceName"]),
        ({"ordinals": {"start": -1}}, ["spec.ordinals.start"]),
        (
            {
                "updateStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": 0, "partition": -1},
                }
            },
            [
                "spec.updateStrategy.rollingUpdate.maxUnavailable",
                "spec.updateStrategy.rollingUpdate.partition",
            ],
        ),
    ],
)
def test_the_rules_of_a_stateful_set(spec: dict[str, Any], broken: list[str]) -> None:
    whole = {
        "podManagementPolicy": "OrderedReady",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": {"a": "b"}},
        "template": POD,
        **spec,
    }
    assert of_new("apps/statefulsets", {"spec": whole}) == broken


@pytest.mark.parametrize("plural", ["resourceclaims", "resourceclaimtemplates"])
def test_the_spec_of_a_resource_claim_does_not_change(plural: str) -> None:
    old, new = ({"spec": {"devices": {"requests": [{"name": name}]}}} for name in "ab")
    assert of_change(f"resource.k8s.io/{plural}", new, old) == ["spec"]
    assert of_change(f"resource.k8s.io/{plural}", old, old) == []


def test_a_priority_level_gets_shares_and_queues() -> None:
    fill = built_in("flowcontrol.apiserver.k8s.io/prioritylevelconfigurations").defaults
    assert fill is not None
    obj: dict[str, Any] = {
        "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}
    }
    fill(obj)
    limited = obj["spec"]["limited"]
    assert (limited["nominalConcurrencyShares"], limited["lendablePercent"]) == (30, 0)
    queuing = {"queues": 64, "handSize": 8, "queueLengthLimit": 50}
    assert limited["limitResponse"]["queuing"] == queuing
