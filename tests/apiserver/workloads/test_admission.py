"""Admission applies to controllers' writes as to clients'."""

import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme
from aiohttp import web

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.testing import eventually
from workload_cluster import PATHS, Cluster, cluster, conditions, workload

GROUP = "/apis/admissionregistration.k8s.io/v1"
PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}


@pytest.fixture
async def at_once() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


async def test_a_policy_that_forbids_pods_is_told_in_the_conditions(at_once: Cluster) -> None:
    spec = {
        "matchConstraints": {"resourceRules": [PODS]},
        "validations": [
            {
                "expression": "request.userInfo.username == 'nobody'",
                "messageExpression": "'no pods for ' + request.userInfo.username",
            }
        ],
    }
    await at_once.client.create(f"{GROUP}/validatingadmissionpolicies", "none", spec=spec)
    binding = {"policyName": "none", "validationActions": ["Deny"]}
    await at_once.client.create(f"{GROUP}/validatingadmissionpolicybindings", "none", spec=binding)
    await at_once.create("deployments", "web", spec=workload())
    deployment = await at_once.get("deployments", "web")
    assert conditions(deployment)["ReplicaFailure"] == ("True", "FailedCreate")
    (told,) = (
        each for each in deployment["status"]["conditions"] if each["type"] == "ReplicaFailure"
    )
    account = "system:serviceaccount:kube-system:replicaset-controller"
    assert f"no pods for {account}" in told["message"]
    assert await at_once.names("pods") == []


PATCH = base64.b64encode(b'[{"op":"add","path":"/metadata/labels/hooked","value":"yes"}]').decode()


@asynccontextmanager
async def labelling(seen: list[Any]) -> AsyncIterator[dict[str, str]]:
    """Run a webhook that labels every pod, and yield its client configuration."""

    async def answer(request: web.BaseRequest) -> web.Response:
        asked = (await request.json())["request"]
        seen.append(asked)
        response = {"uid": asked["uid"], "allowed": True, "patchType": "JSONPatch", "patch": PATCH}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response({**review, "response": response})

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    try:
        yield {"url": f"https://127.0.0.1:{port}/", "caBundle": bundle}
    finally:
        await runner.cleanup()


async def test_a_webhook_changes_the_pods_of_controllers() -> None:
    seen: list[Any] = []
    server = EmbeddedAPIServer(seed=1, workloads=True)
    async with labelling(seen) as config, server, Client(server) as client:
        hook = {
            "name": "label.example.com",
            "rules": [PODS],
            "clientConfig": config,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        }
        path = f"{GROUP}/mutatingwebhookconfigurations"
        await client.create(path, "label", webhooks=[hook])
        await client.create(PATHS["deployments"], "web", spec=workload())

        async def ready() -> bool:
            deployment = await client.call("GET", f"{PATHS['deployments']}/web")
            return bool(deployment["status"].get("readyReplicas") == 3)

        await eventually(ready)
        pods = (await client.call("GET", PATHS["pods"]))["items"]
        assert [pod["metadata"]["labels"]["hooked"] for pod in pods] == ["yes"] * 3
        assert {asked["userInfo"]["username"] for asked in seen} == {
            "system:serviceaccount:kube-system:replicaset-controller"
        }
