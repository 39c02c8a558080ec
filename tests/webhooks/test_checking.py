"""`listwatch webhooks check`: what is wrong with a webhook, in words."""

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from listwatch import Client
from listwatch.cli import main
from listwatch.client.client import PatchType
from listwatch.clock import Clock, FakeClock
from listwatch.errors import NotFoundError
from listwatch.testing import APIServer, free_port
from listwatch.webhooks.certificates import LIFETIME, ServingCertificate, make_certificate
from listwatch.webhooks.checking import check_webhooks
from listwatch.webhooks.dispatch import Dispatcher
from listwatch.webhooks.registration import DEFINITIONS
from listwatch.webhooks.server import ReviewServer, ServingContext

DAY = 24 * 3600.0


@contextlib.asynccontextmanager
async def serving(
    names: Sequence[str] = ("127.0.0.1",), *, ago: float = 0.0
) -> AsyncIterator[tuple[int, ServingCertificate]]:
    """Serve a certificate made some seconds ago."""
    clock, context = Clock(), ServingContext()
    certificate = make_certificate(names, clock.time() - ago)
    context.use(certificate.certificate, certificate.key)
    dispatcher = Dispatcher([], clock=clock)
    async with ReviewServer(dispatcher, context, host="127.0.0.1", port=0, clock=clock) as made:
        yield made.port, certificate


def bundle(*certificates: ServingCertificate) -> str:
    pem = b"".join(certificate.authority.pem for certificate in certificates)
    return base64.b64encode(pem).decode()


async def configure(client: Client, config: dict[str, Any]) -> None:
    webhook = {
        "name": "check.websites.example.com",
        "clientConfig": config,
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}
        ],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    await client.create(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "sites"},
            "webhooks": [webhook],
        }
    )


def by_url(port: int, text: str) -> dict[str, Any]:
    return {"url": f"https://127.0.0.1:{port}/validate/check", "caBundle": text}


def by_service(text: str) -> dict[str, Any]:
    return {"service": {"namespace": "default", "name": "hooks"}, "caBundle": text}


async def check(client: Client, **options: Any) -> str:
    (finding,) = await check_webhooks(client, **options)
    prefix = "validatingwebhookconfiguration sites: check.websites.example.com: "
    assert str(finding).startswith(prefix)
    assert finding.ok is str(finding).startswith(f"{prefix}ok, until ")
    return str(finding).removeprefix(prefix)


async def test_a_webhook_that_works_is_ok_until_its_certificate_expires(client: Client) -> None:
    async with serving() as (port, certificate):
        await configure(client, by_url(port, bundle(certificate)))
        assert (await check(client)).startswith("ok, until 20")
        assert len(await check_webhooks(client, ["sites"])) == 1
        with pytest.raises(
            NotFoundError, match="no webhook configuration or conversion is named other"
        ):
            await check_webhooks(client, ["other"])


async def test_an_expired_certificate(client: Client) -> None:
    # Its own authority expires with it, so another, valid one is needed in the bundle.
    async with serving(ago=LIFETIME + DAY) as (port, certificate):
        await configure(
            client, by_url(port, bundle(certificate, make_certificate(["a"], Clock().time())))
        )
        words = await check(client)
        assert words.startswith("the certificate expired at ")
        assert words.endswith(": renew it")


async def test_expired_authorities(client: Client) -> None:
    async with serving(ago=LIFETIME + DAY) as (port, certificate):
        await configure(client, by_url(port, bundle(certificate)))
        assert (await check(client)).startswith("every authority in caBundle has expired, the last")


async def test_a_certificate_that_nobody_renewed(client: Client) -> None:
    async with serving(ago=LIFETIME - DAY) as (port, certificate):
        await configure(client, by_url(port, bundle(certificate)))
        assert (await check(client)).startswith("the certificate expires soon, at ")


async def test_a_certificate_for_another_name(client: Client) -> None:
    async with serving(["hooks.default.svc", "10.0.0.1"]) as (port, certificate):
        await configure(client, by_url(port, bundle(certificate)))
        assert await check(client) == (
            "the certificate is for hooks.default.svc, 10.0.0.1, not for 127.0.0.1: "
            "issue one for that name"
        )


async def test_a_certificate_of_another_authority(client: Client) -> None:
    async with serving() as (port, _):
        await configure(client, by_url(port, bundle(make_certificate(["a"], Clock().time()))))
        words = await check(client)
        assert words.startswith("no authority in caBundle signed the certificate (")
        assert words.endswith("put the authority of the running server into caBundle")


@pytest.mark.parametrize(
    "text", ["AAAA", base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()]
)
async def test_a_bundle_without_a_certificate(client: Client, text: str) -> None:
    await configure(client, by_url(1, text))
    assert await check(client) == "caBundle has no certificate in PEM: put one into it"


async def test_a_port_where_nobody_listens(client: Client) -> None:
    port = free_port()
    await configure(client, by_url(port, bundle(make_certificate(["a"], Clock().time()))))
    assert await check(client) == (
        f"127.0.0.1:{port} is unreachable: connection refused; does the program run?"
    )


async def test_a_port_that_does_not_speak_tls(client: Client, server: APIServer) -> None:
    port = int(server.url.rpartition(":")[2])
    await configure(client, by_url(port, bundle(make_certificate(["a"], Clock().time()))))
    assert (await check(client)).startswith(f"127.0.0.1:{port} does not speak TLS: ")


async def test_a_server_that_has_no_certificate_yet(client: Client) -> None:
    clock = Clock()
    dispatcher = Dispatcher([], clock=clock)
    async with ReviewServer(
        dispatcher, ServingContext(), host="127.0.0.1", port=0, clock=clock
    ) as made:
        await configure(client, by_url(made.port, bundle(make_certificate(["a"], clock.time()))))
        words = await check(client)
        assert words.startswith(f"127.0.0.1:{made.port} ends the handshake: ")
        assert words.endswith("has it a certificate yet?")


async def test_a_server_that_does_not_answer(client: Client) -> None:
    clock = FakeClock(time=Clock().time())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        await configure(client, by_url(port, bundle(make_certificate(["a"], clock.time()))))
        task = asyncio.create_task(check(client, clock=clock))
        while not task.done():  # the handshake is real
            await asyncio.sleep(0.01)
            if clock.next_timer is not None:
                await clock.advance(11)
        assert "does not answer within 10 s: is a firewall" in await task


async def test_a_service_that_is_not_there_has_no_such_port_or_no_endpoint(client: Client) -> None:
    text = bundle(make_certificate(["a"], Clock().time()))
    await configure(client, by_service(text))
    assert (await check(client)).startswith("service default/hooks does not exist: create it")
    metadata = {"name": "hooks", "namespace": "default"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"ports": [{"port": 80}]},
    }
    await client.create(service)
    assert await check(client) == (
        "service default/hooks has no port 443, only 80: correct one of them"
    )
    ports = {"spec": {"ports": [{"port": 443}]}}
    await client.patch("services", "hooks", ports, "default")
    assert (await check(client)).startswith("service default/hooks has no ready endpoint: do pods")
    await client.create(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": "hooks"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
            "ports": [],
        }
    )
    async with serving(["hooks.default.svc"]) as (port, certificate):
        patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle",
                  "value": bundle(certificate)}]  # fmt: skip
        await client.patch("validatingwebhookconfigurations", "sites", patch, type=PatchType.JSON)
        assert (await check(client, address=("127.0.0.1", port))).startswith("ok, until ")


async def test_a_service_needs_an_authority(client: Client) -> None:
    await configure(client, {"service": {"namespace": "default", "name": "hooks"}})
    assert (await check(client)).startswith("caBundle is empty, and no public authority signs")


async def test_conversions_are_checked_too(websites: Client) -> None:
    async with serving() as (port, certificate):
        conversion = {
            "strategy": "Webhook",
            "webhook": {
                "clientConfig": by_url(port, bundle(certificate)),
                "conversionReviewVersions": ["v1"],
            },
        }
        spec = {"spec": {"conversion": conversion}}
        await websites.patch(DEFINITIONS, "websites.example.com", spec)
        (finding,) = await check_webhooks(websites, ["websites.example.com"])
        assert str(finding).startswith("customresourcedefinition websites.example.com: ok, until ")


async def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        await asyncio.to_thread(main, ["webhooks", *arguments])
    return int(ended.value.code or 0)


async def test_the_command_prints_a_line_for_each_webhook_and_fails_if_one_is_wrong(
    client: Client, server: APIServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(server.kubeconfig())
    options = ("--kubeconfig", str(kubeconfig))
    assert await run("check", *options) == 0
    assert capsys.readouterr().err == "there are no webhooks\n"
    await configure(client, by_url(1, "AAAA"))
    assert await run("check", *options) == 1
    assert capsys.readouterr().out == (
        "validatingwebhookconfiguration sites: check.websites.example.com: "
        "caBundle has no certificate in PEM: put one into it\n"
    )
    assert await run("check", "other", *options) == 7
    assert capsys.readouterr().err == (
        "error: no webhook configuration or conversion is named other\n"
    )
    assert await run("check", "--address", "here", *options) == 2
    assert "'here' is not HOST:PORT, such as 127.0.0.1:9443" in capsys.readouterr().err
    assert await run("remove", "sites", *options) == 0
    assert capsys.readouterr().out == "no manager made webhooks named sites\n"
