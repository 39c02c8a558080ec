"""The webhooks of a manager, called by the embedded server over TLS."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any, assert_type, cast

import aiohttp
import pytest

from listwatch import Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.webhooks.client import Endpoint, WebhookCallError
from listwatch.clock import FakeClock
from listwatch.errors import InvalidError, StatusError
from listwatch.resources import ObjectMeta
from listwatch.runtime import Manager, ManagerError
from listwatch.testing import APIServer, eventually
from listwatch.webhooks import AdmissionRequest, Denied, Problem, WebhookOptions
from webhooks.websites import Website, WebsiteSpec

EXPIRY = "listwatch_webhook_certificate_expiry_timestamp_seconds 1."


def website(name: str, **spec: Any) -> Website:
    return Website(ObjectMeta(name=name), WebsiteSpec(**spec))


def manager(server: APIServer, **options: Any) -> Manager:
    app = Manager("sites", config=server.config, **options)

    @app.validate(Website)
    def check_host(request: AdmissionRequest[Website]) -> None:
        if request.obj.spec.host == "localhost":
            raise Denied(Problem("spec.host", "must be a public name"))

    @app.mutate(Website)
    async def add_team(request: AdmissionRequest[Website]) -> None:
        request.obj.metadata.labels.setdefault("team", "unknown")
        request.warn("teams become required")

    return app


async def test_the_server_calls_the_hooks_without_any_preparation(
    server: APIServer, websites: Client
) -> None:
    async with manager(server):
        made = await websites.create(website("a"))
        assert made.metadata.labels == {"team": "unknown"}
        with pytest.raises(InvalidError) as refused:
            await websites.create(website("b", host="localhost"))
    assert [cause["field"] for cause in refused.value.causes] == ["spec.host"]
    assert refused.value.message == (
        'admission webhook "check-host.websites.example.com" denied the request: '
        'Website.example.com "b" is invalid: spec.host: must be a public name'
    )


async def test_a_manager_on_this_machine_takes_its_configurations_with_it(
    server: APIServer, websites: Client
) -> None:
    async with manager(server):
        found = (await websites.list("validatingwebhookconfigurations")).items
        assert [obj.name for obj in found] == ["sites"]
    assert (await websites.list("validatingwebhookconfigurations")).items == []
    assert (await websites.list("mutatingwebhookconfigurations")).items == []
    assert (await websites.create(website("b", host="localhost"))).metadata.labels == {}


async def test_metrics_and_readiness_tell_of_the_hooks(server: APIServer, websites: Client) -> None:
    async with manager(server) as app, aiohttp.ClientSession() as session:
        await websites.create(website("a"))
        with pytest.raises(StatusError):
            await websites.create(website("b", host="localhost"))
        async with session.get(app.health_url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        async with session.get(app.health_url + "/readyz") as response:
            ready = await response.text()
    for line in (
        'controller_runtime_webhook_requests_total{code="200",webhook="check-host"} 2.0',
        'listwatch_webhook_denied_total{webhook="check-host"} 1.0',
        'listwatch_webhook_denied_total{webhook="add-team"} 0.0',
        'listwatch_webhook_errors_total{webhook="add-team"} 0.0',
        'controller_runtime_webhook_latency_seconds_count{webhook="add-team"} 2.0',
    ):
        assert line in lines
    assert any(line.startswith(EXPIRY) for line in lines)
    assert "[+] webhooks" in ready


async def test_a_hook_may_also_check_a_built_in_kind(server: APIServer, websites: Client) -> None:
    app = Manager("maps", config=server.config, health_port=None)

    @app.validate(
        "v1/configmaps", operations=["DELETE"], object_selector={"matchLabels": {"k": "v"}}
    )
    async def keep(request: AdmissionRequest[dict[str, Any]]) -> None:
        raise Denied(f"{request.obj['metadata']['name']} stays")

    metadata = {"namespace": "default", "labels": {"k": "v"}}
    kept = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", **metadata}}
    async with app:
        await websites.create(kept)
        with pytest.raises(StatusError, match="denied the request: kept stays") as refused:
            await websites.delete("configmaps", "kept", "default")
    assert refused.value.code == 403


async def test_a_failing_hook_lets_requests_pass_only_if_it_says_so(
    server: APIServer, websites: Client, caplog: pytest.LogCaptureFixture
) -> None:
    app = Manager("sites", config=server.config, health_port=None)

    @app.validate(Website, failure_policy="Ignore", operations=["CREATE"])
    async def lenient(_: AdmissionRequest[Website]) -> None:
        raise KeyError("a")

    @app.validate(Website, operations=["DELETE"])
    async def strict(_: AdmissionRequest[Website]) -> None:
        raise KeyError("b")

    with caplog.at_level(logging.ERROR):
        async with app:
            await websites.create(website("a"))
            with pytest.raises(StatusError) as refused:
                await websites.delete(Website, "a")
    assert refused.value.code == 500
    assert "failed calling webhook" in refused.value.message
    assert [text.split(",")[0] for text in caplog.messages] == [
        "webhook lenient failed",
        "webhook strict failed",
    ]


async def test_two_replicas_share_one_certificate_and_both_serve(
    server: APIServer, websites: Client
) -> None:
    async with manager(server, health_port=None) as one, manager(server, health_port=None) as two:
        assert one.webhooks.upkeep is not None
        assert two.webhooks.upkeep is not None
        assert one.webhooks.upkeep.certificate == two.webhooks.upkeep.certificate
        await websites.create(website("a"))
        secret = await websites.get("secrets", "sites-webhooks", "default")
        assert sorted(secret["data"]) == ["ca.crt", "tls.crt", "tls.key"]


async def test_a_service_is_called_by_its_name(server: APIServer, websites: Client) -> None:
    options = WebhookOptions(service="web/hooks", port=0, host="127.0.0.1")
    app = manager(server, health_port=None, webhooks=options)
    async with app:
        server.add_service("web/hooks", "127.0.0.1", app.webhooks.port)
        # The manager's own namespace is left out.
        assert (await websites.create(website("a"))).metadata.labels == {}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
        await websites.create(namespace)
        made = await websites.create(website("a"), namespace="other")
        assert made.metadata.labels == {"team": "unknown"}
    # Other replicas may still serve.
    assert (await websites.get("validatingwebhookconfigurations", "sites")).name == "sites"


async def test_a_test_replaces_the_service_that_a_program_names(
    server: APIServer, websites: Client
) -> None:
    app = manager(server, webhooks=WebhookOptions(service="hooks"))
    app.configure(webhooks=WebhookOptions())
    async with app:
        assert (await websites.create(website("a"))).metadata.labels == {"team": "unknown"}


async def test_a_configuration_that_somebody_breaks_is_mended(
    server: APIServer, websites: Client
) -> None:
    async with manager(server, health_port=None) as app:
        await websites.delete("mutatingwebhookconfigurations", "sites")
        assert app.webhooks.upkeep is not None
        app.webhooks.upkeep.lead(leads=True)  # look now, not in half a minute

        async def is_back() -> bool:
            await websites.get("mutatingwebhookconfigurations", "sites")
            return True

        await eventually(is_back, "the configuration is back", ignoring=StatusError)
        made = await websites.create(website("a"))
    assert made.metadata.labels == {"team": "unknown"}


def test_two_hooks_can_not_have_one_name() -> None:
    app = Manager("sites")

    @app.validate(Website)
    def check(_: AdmissionRequest[Website]) -> None: ...

    with pytest.raises(Exception, match="a webhook check already exists: give another name="):
        app.mutate(Website, name="check")(lambda _: None)


async def test_webhooks_that_fail_refuse_requests_until_they_are_healed(
    server: APIServer, websites: Client
) -> None:
    failures: dict[Any, str] = {
        "refusing": "connect: connection refused",
        "garbage": "couldn't get version/kind",
        "expired": "x509: certificate has expired or is not yet valid",
    }
    async with manager(server, health_port=None):
        for how, words in failures.items():
            server.fail_webhooks(how)
            with pytest.raises(StatusError, match=words) as refused:
                await websites.create(website("a"))
            assert refused.value.code == 500
        server.heal_webhooks()
        assert (await websites.create(website("a"))).metadata.labels == {"team": "unknown"}


async def test_slow_webhooks_run_into_their_time_limit_or_answer_once_healed() -> None:
    clock = FakeClock()
    server = EmbeddedAPIServer(clock=clock)
    hooks = server._webhooks
    endpoint = Endpoint("https://127.0.0.1:1/slow")
    hooks.misbehave("slow")
    first = asyncio.create_task(hooks.post(endpoint, b"{}", 10))
    await clock.advance(9.9)
    assert not first.done()
    await clock.advance(0.2)
    with pytest.raises(WebhookCallError, match="context deadline exceeded"):
        await first
    second = asyncio.create_task(hooks.post(endpoint, b"{}", 10))
    await clock.settle()
    hooks.misbehave(None)
    with pytest.raises(WebhookCallError, match="connection refused"):
        await second
    await hooks.close()
    server.close()


def test_an_unknown_way_to_fail_is_refused(server: APIServer) -> None:
    with pytest.raises(ValueError, match="Invalid enum value 'lazy'"):
        server.fail_webhooks(cast("Any", "lazy"))


def test_a_program_without_the_extra_says_what_to_install(
    server: APIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ManagerError) as refused:
        asyncio.run(manager(server, health_port=None).serve())
    assert str(refused.value) == (
        "the manager failed: webhooks require cryptography for their certificates: "
        "run pip install 'listwatch[webhooks]'"
    )


def test_decorators_keep_the_types_of_functions() -> None:
    app = Manager("sites")

    @app.validate(Website)
    def check(request: AdmissionRequest[Website]) -> None:
        assert_type(request.obj, Website)
        assert_type(request.old, Website | None)

    @app.validate("v1/pods")
    async def check_pod(request: AdmissionRequest[dict[str, Any]]) -> list[Problem]:
        return [] if request.obj else [Problem("", "is empty")]

    assert_type(check, Callable[[AdmissionRequest[Website]], None])
    pods = Callable[[AdmissionRequest[dict[str, Any]]], Coroutine[Any, Any, list[Problem]]]
    assert_type(check_pod, pods)
    assert [hook.name for hook in app.webhooks.hooks] == ["check", "check-pod"]
