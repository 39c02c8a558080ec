"""Nobody can grant permissions that they do not hold."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.user import User

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLES = f"{RBAC}/namespaces/default/roles"
BINDINGS = f"{RBAC}/namespaces/default/rolebindings"
ALICE = {"Authorization": "Bearer alice"}
ROOT = {"Authorization": "Bearer root"}
MERGE = {"Content-Type": "application/merge-patch+json"}
TOKENS = {
    "root": User("root", ("system:masters",)),
    "alice": User("alice", ("devs", "system:authenticated")),
}
READ_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}


def role(name: str, *rules: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "rules": list(rules)}


def binding(name: str, kind: str, to: str) -> dict[str, Any]:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": to}
    return {
        "metadata": {"name": name},
        "roleRef": reference,
        "subjects": [{"kind": "User", "name": "alice"}],
    }


def held(*verbs: str) -> dict[str, Any]:
    return {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["roles", "rolebindings"],
        "verbs": ["create", "patch", "update", *verbs],
    }


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A server on which alice may read pods, and write roles and bindings."""
    async with EmbeddedAPIServer(tokens=TOKENS) as server, Client(server) as client:
        mine = role("mine", READ_PODS, held())
        await client.call("POST", ROLES, mine, headers=ROOT, expect=201)
        given = binding("mine", "Role", "mine")
        await client.call("POST", BINDINGS, given, headers=ROOT, expect=201)
        yield client


async def test_a_role_of_rights_one_holds_is_made(client: Client) -> None:
    part = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"], "resourceNames": ["a"]}
    await client.call("POST", ROLES, role("part", part), headers=ALICE, expect=201)


async def test_rights_that_one_lacks_are_named(client: Client) -> None:
    wanted = {
        "apiGroups": ["", "apps"],
        "resources": ["pods", "deployments"],
        "verbs": ["get", "delete"],
    }
    refused = await client.call("POST", ROLES, role("more", wanted), headers=ALICE, expect=403)
    assert refused["message"] == (
        'roles.rbac.authorization.k8s.io "more" is forbidden: user "alice" '
        '(groups=["devs" "system:authenticated"]) is attempting to grant RBAC permissions not '
        "currently held:\n"
        '{APIGroups:[""], Resources:["deployments"], Verbs:["get" "delete"]}\n'
        '{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}\n'
        '{APIGroups:["apps"], Resources:["deployments"], Verbs:["get" "delete"]}\n'
        '{APIGroups:["apps"], Resources:["pods"], Verbs:["get" "delete"]}'
    )
    assert refused["details"] == {
        "name": "more",
        "group": "rbac.authorization.k8s.io",
        "kind": "roles",
    }


@pytest.mark.parametrize("how", ["merge", "put", "apply"])
async def test_a_role_can_not_be_widened_but_labelled(client: Client, how: str) -> None:
    wide = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    await client.call("POST", ROLES, role("wide", wide), headers=ROOT, expect=201)
    labels = {"metadata": {"labels": {"a": "b"}}}
    await client.call("PATCH", f"{ROLES}/wide", labels, headers=ALICE | MERGE, expect=200)
    whole = role("mine", READ_PODS, wide)
    path = f"{ROLES}/mine"
    if how == "put":
        await client.call("PUT", path, whole, headers=ALICE, expect=403)
    elif how == "merge":
        await client.call("PATCH", path, whole, headers=ALICE | MERGE, expect=403)
    else:
        whole |= {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
        apply = {"Content-Type": "application/apply-patch+yaml"}
        path += "?fieldManager=x&force=true"
        await client.call("PATCH", path, whole, headers=ALICE | apply, expect=403)


async def test_a_binding_gives_no_more_than_its_maker_holds(client: Client) -> None:
    secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    await client.call("POST", ROLES, role("secrets", secrets), headers=ROOT, expect=201)
    refused = await client.call(
        "POST", BINDINGS, binding("x", "Role", "secrets"), headers=ALICE, expect=403
    )
    assert refused["message"].endswith('{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}')
    body = binding("x", "Role", "nosuch")
    refused = await client.call("POST", BINDINGS, body, headers=ALICE, expect=404)
    assert refused["message"] == 'rolebindings.rbac.authorization.k8s.io "nosuch" not found'
    await client.call("POST", BINDINGS, binding("y", "Role", "mine"), headers=ALICE, expect=201)


@pytest.mark.parametrize("verb", ["bind", "escalate"])
async def test_a_verb_lifts_the_check(client: Client, verb: str) -> None:
    secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    await client.call("POST", ROLES, role("secrets", secrets), headers=ROOT, expect=201)
    body = role("mine", READ_PODS, held(verb))
    await client.call("PUT", f"{ROLES}/mine", body, headers=ROOT, expect=200)
    bound = 201 if verb == "bind" else 403
    made = 201 if verb == "escalate" else 403
    await client.call("POST", ROLES, role("other", secrets), headers=ALICE, expect=made)
    body = binding("x", "Role", "secrets")
    await client.call("POST", BINDINGS, body, headers=ALICE, expect=bound)
