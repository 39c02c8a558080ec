"""Admission webhooks: which are called, and what failures do."""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from listwatch import Client
from listwatch.errors import StatusError
from listwatch.testing import APIServer, WebhookServer, webhook_server

Object = dict[str, Any]


@pytest_asyncio.fixture
async def hooks() -> AsyncIterator[WebhookServer]:
    async with WebhookServer(services=["default/hooks"]) as server:
        yield server


@pytest_asyncio.fixture
async def server() -> AsyncIterator[APIServer]:
    async with APIServer() as running:
        yield running


@pytest_asyncio.fixture
async def client(server: APIServer) -> AsyncIterator[Client]:
    async with server.client() as made:
        yield made


def _configuration(kind: str, name: str, config: Mapping[str, Any], **more: Any) -> Object:
    webhook = {
        "name": f"{name}.hooks.example.com",
        "clientConfig": config,
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["*"],
                "resources": more.pop("resources", ["configmaps"]),
            }
        ],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        **more,
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }


def _config_map(name: str, **data: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": data,
    }


async def test_a_mutating_webhook_changes_what_is_stored(
    hooks: WebhookServer, client: Client
) -> None:
    hooks.on("/m", lambda _: {"patch": [{"op": "add", "path": "/data/more", "value": "1"}]})
    await client.create(_configuration("Mutating", "m", hooks.client_config("/m")))
    made = await client.create(_config_map("a", x="1"))
    assert made["data"] == {"x": "1", "more": "1"}


async def test_a_validating_webhook_denies_in_its_own_words(
    hooks: WebhookServer, client: Client
) -> None:
    hooks.on("/v", lambda _: {"allowed": False, "status": {"message": "no", "code": 409}})
    await client.create(_configuration("Validating", "v", hooks.client_config("/v")))
    with pytest.raises(StatusError) as refused:
        await client.create(_config_map("a"))
    assert refused.value.code == 409
    assert refused.value.message == 'admission webhook "v.hooks.example.com" denied the request: no'


async def test_a_service_is_called_at_the_address_that_the_test_gives(
    hooks: WebhookServer, server: APIServer, client: Client
) -> None:
    server.add_service("default/hooks", "127.0.0.1", hooks.port)
    hooks.on("/v", lambda _: None)
    config = hooks.client_config("/v", service="default/hooks")
    await client.create(_configuration("Validating", "v", config))
    await client.create(_config_map("a"))
    assert [(path, asked["name"]) for path, asked in hooks.requests] == [("/v", "a")]


async def test_a_service_that_nobody_names_is_not_found(
    hooks: WebhookServer, client: Client
) -> None:
    config = hooks.client_config("/v", service="default/other")
    await client.create(_configuration("Validating", "v", config))
    with pytest.raises(StatusError, match='service "other" not found'):
        await client.create(_config_map("a"))


_FAULTS = {
    "refusing": "connect: connection refused",
    "garbage": "couldn't get version/kind",
    "expired": "x509: certificate has expired or is not yet valid",
}


@pytest.mark.parametrize("fault", _FAULTS)
async def test_a_webhook_that_fails_forbids_the_request(
    fault: Any, hooks: WebhookServer, client: Client
) -> None:
    hooks.on("/v", lambda _: None)
    await client.create(_configuration("Validating", "v", hooks.client_config("/v")))
    await hooks.fail(fault)
    with pytest.raises(StatusError) as refused:
        await client.create(_config_map("a"))
    assert refused.value.code == 500
    assert _FAULTS[fault] in refused.value.message
    await hooks.recover()
    await client.create(_config_map("a"))


@pytest.mark.parametrize("fault", _FAULTS)
async def test_a_webhook_that_fails_is_skipped_where_its_policy_says_so(
    fault: Any, hooks: WebhookServer, client: Client
) -> None:
    config = hooks.client_config("/v")
    await client.create(_configuration("Validating", "v", config, failurePolicy="Ignore"))
    await hooks.fail(fault)
    made = await client.create(_config_map("a"))
    assert made.name == "a"


async def test_a_slow_webhook_holds_only_its_own_request(
    hooks: WebhookServer, client: Client
) -> None:
    hooks.on("/v", lambda _: None)
    await client.create(_configuration("Validating", "v", hooks.client_config("/v")))
    await hooks.fail("slow")
    waiting = asyncio.create_task(client.create(_config_map("a")))
    while not hooks.requests:
        await client.list("secrets", "default")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    made = await client.create({**secret, "metadata": {"name": "s", "namespace": "default"}})
    assert made.name == "s"
    assert not waiting.done()
    await hooks.recover()
    assert (await waiting).name == "a"


async def test_what_changed_while_a_webhook_thought_is_asked_about_anew(
    hooks: WebhookServer, server: APIServer, client: Client
) -> None:
    await client.create(_config_map("a", n="0"))
    seen: list[str] = []

    async def change_once(asked: Object) -> None:
        seen.append(asked["oldObject"]["data"]["n"])
        if len(seen) == 1:
            entry = server.embedded.store.bucket("configmaps").entries["default/a"]
            obj = server.embedded.registry.decode(entry)
            obj["data"]["n"] = "1"
            resource = server.embedded.table.get("", "v1", "configmaps")
            assert resource is not None
            server.embedded.registry.store_as_is(resource, obj)

    hooks.on("/v", change_once)
    await client.create(_configuration("Validating", "v", hooks.client_config("/v")))
    patched = await client.patch("configmaps", "a", {"data": {"x": "2"}}, namespace="default")
    assert seen == ["0", "1"]
    assert patched["data"] == {"n": "1", "x": "2"}


async def test_a_request_that_begins_again_draws_the_same_addresses_and_uid(
    hooks: WebhookServer, client: Client
) -> None:
    hooks.on("/v", lambda _: None)
    hooks.on("/m", lambda _: None)
    services: Object = {"resources": ["services"]}
    await client.create(_configuration("Mutating", "m", hooks.client_config("/m"), **services))
    await client.create(_configuration("Validating", "v", hooks.client_config("/v"), **services))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"generateName": "s-", "namespace": "default"},
        "spec": {"type": "NodePort", "ports": [{"port": 80}]},
    }
    made = await client.create(service)
    validated = [asked["object"] for path, asked in hooks.requests if path == "/v"]
    assert len(hooks.requests) == 2
    assert validated[0]["spec"] == made["spec"]
    assert validated[0]["metadata"]["uid"] == made.uid
    assert validated[0]["metadata"]["name"] == made.name


async def test_a_dry_run_is_refused_where_the_webhook_has_effects(
    hooks: WebhookServer, server: APIServer, client: Client
) -> None:
    hooks.on("/v", lambda _: None)
    configuration = _configuration("Validating", "v", hooks.client_config("/v"))
    await client.create(configuration)
    # Such a configuration is refused today, but may be stored already.
    entry = server.embedded.store.bucket(
        "admissionregistration.k8s.io/validatingwebhookconfigurations"
    ).entries["v"]
    obj = server.embedded.registry.decode(entry)
    obj["webhooks"][0]["sideEffects"] = "Some"
    resource = server.embedded.table.get(
        "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"
    )
    assert resource is not None
    server.embedded.registry.store_as_is(resource, obj)
    with pytest.raises(StatusError, match="does not support dry run"):
        await client.create(_config_map("a"), dry_run=True)
    assert hooks.requests == []


_DEEP = b'{"a":' * 5_000


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (_DEEP, "exceeded max depth"),
        (
            b'{"response":{"allowed":true,"patch":"%b"}}' % base64.b64encode(b"[" * 5_000),
            "received undecodable patch in webhook response",
        ),
    ],
)
async def test_an_answer_nested_too_deeply_is_a_failure_of_the_webhook(
    answer: bytes,
    why: str,
    hooks: WebhookServer,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(webhook_server, "_GARBAGE", answer)
    await hooks.fail("garbage")
    config = hooks.client_config("/m")
    versions = ["v1beta1"]  # Its responses need no uid.
    await client.create(_configuration("Mutating", "m", config, admissionReviewVersions=versions))
    with pytest.raises(StatusError, match="failed calling webhook") as raised:
        await client.create(_config_map("a"))
    assert why in raised.value.message
    assert caplog.records == []


@pytest.mark.parametrize(
    ("code", "answered"), [(-1, 400), (99, 400), (600, 600), (999, 999), (1_000, 500)]
)
async def test_a_denial_has_a_code_that_http_allows(
    code: int, answered: int, hooks: WebhookServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.on("/v", lambda _: {"allowed": False, "status": {"message": "no", "code": code}})
    await client.create(_configuration("Validating", "v", hooks.client_config("/v")))
    with pytest.raises(StatusError, match="denied the request: no") as raised:
        await client.create(_config_map("a"))
    assert raised.value.code == answered
    assert caplog.records == []
