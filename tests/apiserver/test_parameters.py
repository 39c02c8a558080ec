"""Nobody can let a policy read parameters that they may not read themselves."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.user import User

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{GROUP}/validatingadmissionpolicies"
BINDINGS = f"{GROUP}/validatingadmissionpolicybindings"
ALICE = {"Authorization": "Bearer alice"}
ROOT = {"Authorization": "Bearer root"}
TOKENS = {"root": User("root", ("system:masters",)), "alice": User("alice", ("devs",), "7")}


async def grant(client: Client, name: str, *rules: dict[str, Any]) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role = {"metadata": {"name": name}, "rules": list(rules)}
    await client.call("POST", f"{rbac}/clusterroles", role, headers=ROOT, expect=201)
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "alice"}],
    }
    await client.call("POST", f"{rbac}/clusterrolebindings", binding, headers=ROOT, expect=201)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A server on which alice may write policies, and nothing else."""
    async with EmbeddedAPIServer(tokens=TOKENS) as server, Client(server) as client:
        rule = {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["*"],
            "verbs": ["*"],
        }
        await grant(client, "policies", rule)
        yield client


def policy(**parts: Any) -> dict[str, Any]:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "true"}],
        **parts,
    }
    return {"metadata": {"name": "p"}, "spec": spec}


def binding(**reference: Any) -> dict[str, Any]:
    spec = {
        "policyName": "p",
        "validationActions": ["Deny"],
        "paramRef": {"parameterNotFoundAction": "Deny", **reference},
    }
    return {"metadata": {"name": "b"}, "spec": spec}


READ = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
OF_MAPS = {"apiVersion": "v1", "kind": "ConfigMap"}


async def test_a_policy_names_only_kinds_that_its_author_may_read(client: Client) -> None:
    given = policy(paramKind=OF_MAPS)
    status = await client.call("POST", POLICIES, given, headers=ALICE, expect=422)
    (cause,) = status["details"]["causes"]
    assert cause["field"] == "spec.paramKind"
    assert cause["message"] == (
        'Forbidden: user &{alice 7 [devs] map[]} must have "get" permission on all objects of the '
        "referenced paramKind (kind=ConfigMap, apiVersion=v1)"
    )
    await client.call("POST", POLICIES, policy(), headers=ALICE, expect=201)
    await client.call("DELETE", f"{POLICIES}/p", headers=ALICE, expect=200)
    await grant(client, "read", READ)
    await client.call("POST", POLICIES, given, headers=ALICE, expect=201)


async def test_a_binding_names_only_objects_that_its_author_may_read(client: Client) -> None:
    await client.call("POST", POLICIES, policy(paramKind=OF_MAPS), headers=ROOT, expect=201)
    await grant(client, "read", {**READ, "resourceNames": ["mine"]})
    status = await client.call("POST", BINDINGS, binding(name="other"), headers=ALICE, expect=422)
    (cause,) = status["details"]["causes"]
    assert cause["field"] == "spec.paramRef"
    assert cause["message"].endswith('"get" permission on the object referenced by paramRef')
    await client.call("POST", BINDINGS, binding(name="mine"), headers=ALICE, expect=201)


async def test_what_does_not_change_is_not_asked_about(client: Client) -> None:
    made = await client.call("POST", POLICIES, policy(paramKind=OF_MAPS), headers=ROOT, expect=201)
    made["metadata"]["labels"] = {"a": "b"}
    del made["metadata"]["resourceVersion"]
    merge = {**ALICE, "Content-Type": "application/merge-patch+json"}
    await client.call("PATCH", f"{POLICIES}/p", made, headers=merge, expect=200)
    other = {"spec": {"paramKind": {"apiVersion": "v1", "kind": "Secret"}}}
    await client.call("PATCH", f"{POLICIES}/p", other, headers=merge, expect=422)
