"""Contents of a new cluster, and the cost of creating them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.bootstrap.roles import ROLES
from listwatch.apiserver.http.tls import generated_tls

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ALICE = {"Impersonate-User": "alice"}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer() as server, Client(server) as client:
        yield client


async def test_the_service_of_the_server_has_the_first_address(client: Client) -> None:
    service = await client.call("GET", "/api/v1/namespaces/default/services/kubernetes", expect=200)
    assert service["spec"]["clusterIP"] == "10.96.0.1"
    assert service["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}
    spec = {"ports": [{"port": 80}]}
    other = await client.create("/api/v1/namespaces/default/services", "other", spec=spec)
    assert other["spec"]["clusterIP"] not in {"10.96.0.1", None}


async def test_there_are_the_two_highest_priorities(client: Client) -> None:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    found = (await client.call("GET", path, expect=200))["items"]
    assert {each["metadata"]["name"]: each["value"] for each in found} == {
        "system-cluster-critical": 2_000_000_000,
        "system-node-critical": 2_000_001_000,
    }
    spec = {
        "containers": [{"name": "c", "image": "i:1"}],
        "priorityClassName": "system-node-critical",
    }
    pod = await client.create("/api/v1/namespaces/kube-system/pods", "one", spec=spec)
    assert pod["spec"]["priority"] == 2_000_001_000


def test_extension_servers_read_which_client_certificates_are_trusted() -> None:
    server = EmbeddedAPIServer(tls=generated_tls("127.0.0.1"))
    key = "kube-system/extension-apiserver-authentication"
    data = server.store.bucket("configmaps").entries[key].data
    assert b"BEGIN CERTIFICATE" in data


async def test_there_is_the_role_of_extension_servers(client: Client) -> None:
    role = f"{RBAC}/namespaces/kube-system/roles/extension-apiserver-authentication-reader"
    assert (await client.call("GET", role, expect=200))["rules"][0]["resourceNames"] == [
        "extension-apiserver-authentication"
    ]


async def test_all_roles_are_there_with_their_labels(client: Client) -> None:
    for plural in ("clusterroles", "clusterrolebindings", "roles", "rolebindings"):
        names = {
            each["metadata"]["name"]
            for each in (await client.call("GET", f"{RBAC}/{plural}", expect=200))["items"]
            if each["metadata"]["labels"] == {"kubernetes.io/bootstrapping": "rbac-defaults"}
        }
        assert names == {obj["metadata"]["name"] for kind, obj in ROLES if kind == plural}


async def test_what_was_changed_stays_so_over_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "data"
    path = f"{RBAC}/clusterroles/system:monitoring"
    async with EmbeddedAPIServer(data=file) as server, Client(server) as client:
        role = await client.merge(path, {"rules": []})
        revision = server.store.revision
    async with EmbeddedAPIServer(data=file) as server, Client(server) as client:
        assert await client.call("GET", path) == role
        assert server.store.revision == revision


async def test_nobody_is_checked_until_a_binding_names_them(client: Client) -> None:
    async def may(verb: str) -> tuple[bool, str]:
        spec = {"resourceAttributes": {"verb": verb, "resource": "pods", "namespace": "default"}}
        review = await client.call(
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            {"spec": spec},
            headers=ALICE,
            expect=201,
        )
        return review["status"]["allowed"], review["status"].get("reason", "")

    allowed, reason = await may("delete")
    assert allowed
    assert "checks nobody's rights but of users whom a role binding names" in reason
    bindings = f"{RBAC}/namespaces/default/rolebindings"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    alice = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}
    await client.create(bindings, "alice", roleRef=role, subjects=[alice])
    assert (await may("get"))[0]
    assert not (await may("delete"))[0]
    pods = "/api/v1/namespaces/default/pods"
    await client.call("GET", pods, headers=ALICE, expect=200)
    await client.call("DELETE", f"{pods}/x", headers=ALICE, expect=403)
    # Without impersonation, every request is allowed.
    await client.call("DELETE", f"{pods}/x", expect=404)


async def test_flow_schemas_refer_to_the_priority_levels(client: Client) -> None:
    path = "/apis/flowcontrol.apiserver.k8s.io/v1"
    schemas = (await client.call("GET", f"{path}/flowschemas", expect=200))["items"]
    levels = (await client.call("GET", f"{path}/prioritylevelconfigurations", expect=200))["items"]
    assert len(schemas) == 13
    assert {each["metadata"]["name"]: each["spec"]["type"] for each in levels} == {
        "catch-all": "Limited",
        "exempt": "Exempt",
        "global-default": "Limited",
        "leader-election": "Limited",
        "node-high": "Limited",
        "system": "Limited",
        "workload-high": "Limited",
        "workload-low": "Limited",
    }
    named = {each["spec"]["priorityLevelConfiguration"]["name"] for each in schemas}
    assert named == {each["metadata"]["name"] for each in levels}
    for schema in schemas:
        (dangling,) = schema["status"]["conditions"]
        assert (dangling["type"], dangling["status"]) == ("Dangling", "False")
        assert dangling["lastTransitionTime"] == schema["metadata"]["creationTimestamp"]
    # written again as they are, they stay: they are valid, and defaults add nothing
    for schema in schemas:
        name = schema["metadata"]["name"]
        again = await client.call("PUT", f"{path}/flowschemas/{name}", schema, expect=200)
        assert again["metadata"]["resourceVersion"] == schema["metadata"]["resourceVersion"]
