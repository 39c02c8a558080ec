"""Webhooks that serve while their certificate is renewed, a file changes, or a write fails."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from listwatch import Client, Manager
from listwatch.clock import Clock, FakeClock
from listwatch.errors import ConfigError
from listwatch.testing import APIServer, Fault, eventually
from listwatch.webhooks import AdmissionRequest, HookOptions, WebhookOptions
from listwatch.webhooks.certificates import ServingCertificate, make_certificate
from listwatch.webhooks.hooks import AdmissionHook, Target
from listwatch.webhooks.rotation import SETTLE
from listwatch.webhooks.upkeep import INTERVAL, Upkeep
from listwatch.webhooks.webhooks import Webhooks

LIFETIME = 3600.0


class Noting(FakeClock):
    """Notes sleeps."""

    def __init__(self) -> None:
        super().__init__(time=Clock().time())
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await super().sleep(seconds)


@contextlib.asynccontextmanager
async def serving(client: Client, clock: Clock, **options: Any) -> AsyncIterator[Upkeep]:
    """Serve one hook, which denies nothing, as the replica with the lease."""
    webhooks = Webhooks("maps", WebhookOptions(**options))
    hook: AdmissionHook[Any] = AdmissionHook(
        Target("v1/configmaps"), lambda _: None, mutating=False, options=HookOptions(), name="check"
    )
    webhooks.add(hook)
    async with webhooks.open(client, "default", clock) as upkeep:
        upkeep.lead(leads=True)
        task = asyncio.create_task(upkeep.run())
        try:
            yield upkeep
        finally:
            task.cancel()
            await asyncio.wait({task})


async def create(client: Client, name: str) -> None:
    metadata = {"name": name, "namespace": "default"}
    await client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


async def look(upkeep: Upkeep) -> None:
    """Return when a look has ended that began after this call."""
    rest, rests = upkeep._sleep, asyncio.Event()  # private: no event tells of the end of a look

    async def note_and_rest(seconds: float) -> None:
        rests.set()
        await rest(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "_sleep", note_and_rest)
        for _ in range(2):  # the first may have begun before
            rests.clear()
            upkeep.lead(leads=True)
            await rests.wait()


async def served(
    upkeep: Upkeep, other_than: ServingCertificate | None, clock: FakeClock, client: Client
) -> None:
    """Let time pass until another certificate serves; every call in between succeeds."""
    number = 0

    async def has_changed() -> bool:
        nonlocal number
        number += 1
        await create(client, f"during-{number}")
        await clock.advance(INTERVAL)
        await look(upkeep)
        return upkeep.certificate not in {None, other_than}

    await eventually(has_changed, "another certificate serves")


async def test_a_certificate_is_renewed_while_the_server_calls(client: Client) -> None:
    clock = FakeClock(time=Clock().time())
    async with serving(client, clock, lifetime=LIFETIME) as upkeep:
        await upkeep.registered.wait()
        first, begun = upkeep.certificate, clock.now()
        await create(client, "a")
        await clock.advance(LIFETIME * 2 / 3)
        await look(upkeep)
        await served(upkeep, first, clock, client)
        await create(client, "b")
        assert upkeep.certificate is not None
        assert first is not None
        assert upkeep.certificate.not_after - first.not_after == LIFETIME * 2 / 3
        assert clock.now() - begun >= LIFETIME * 2 / 3 + SETTLE
        secret = await client.get("secrets", "maps-webhooks", "default")
        assert sorted(secret["data"]) == ["ca.crt", "tls.crt", "tls.key"]


async def test_files_of_another_product_are_used_and_read_again(
    client: Client, tmp_path: Path
) -> None:
    def put() -> None:
        made = make_certificate(["127.0.0.1"], Clock().time())
        (tmp_path / "tls.crt").write_bytes(made.certificate)
        (tmp_path / "tls.key").write_bytes(made.key)
        (tmp_path / "ca.crt").write_bytes(made.authority.pem)

    put()
    clock = FakeClock(time=Clock().time())
    async with serving(client, clock, certificates=tmp_path) as upkeep:
        await upkeep.registered.wait()
        first = upkeep.certificate
        await create(client, "a")
        put()
        await served(upkeep, first, clock, client)
        await create(client, "b")
        assert (await client.list("secrets", "default")).items == []


async def test_a_failure_is_told_and_tried_again_after_a_delay(
    server: APIServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    server.add_faults(Fault(verb="get", resource="secrets", status=500, message="etcd is full"))
    clock = FakeClock(time=Clock().time())
    with caplog.at_level(logging.WARNING):
        async with serving(client, clock) as upkeep:
            await eventually(lambda: "etcd is full" in upkeep.problem)
            assert not upkeep.serving.is_set()
            await clock.advance(1.0)
            await upkeep.registered.wait()
            assert upkeep.problem == ""
    assert "etcd is full; next try in 1 s" in caplog.text


async def test_a_missing_file_is_named(client: Client, tmp_path: Path) -> None:
    async with serving(client, FakeClock(), certificates=tmp_path) as upkeep:
        await eventually(lambda: "tls.crt does not exist" in upkeep.problem)


async def test_a_taken_port_is_one_clear_line(client: Client, server: APIServer) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"cannot serve webhooks on 127.0.0.1:{port}: "):
        async with serving(client, FakeClock(), port=port):
            pass


async def test_in_a_pod_hooks_are_served_a_while_after_the_stop(
    server: APIServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    clock = Noting()
    options = WebhookOptions(service="maps", host="127.0.0.1", port=0, include_own_namespace=True)
    app = Manager("maps", config=server.config, health_port=None, webhooks=options, clock=clock)

    @app.validate("v1/configmaps")
    async def check(_: AdmissionRequest[dict[str, Any]]) -> None: ...

    serving = asyncio.create_task(app.serve())
    await eventually(
        lambda: app.webhooks.upkeep is not None and app.webhooks.upkeep.registered.is_set()
    )
    server.add_service("default/maps", "127.0.0.1", app.webhooks.port)
    clock.slept.clear()
    app.stop()
    await eventually(lambda: 5.0 in clock.slept, "it lingers")
    await create(client, "late")
    await clock.advance(4.9)
    assert not serving.done()
    await clock.advance(0.1)
    await serving


class Undone:
    """A registrar whose writes somebody always undoes."""

    writes = 0

    class Read:
        def bundles(self, _: object) -> list[Any]:
            return []

    wanted = None

    async def read(self) -> Read:
        return self.Read()

    async def publish(self, _published: Read, _authorities: object) -> int:
        self.writes += 1
        return 1


async def test_two_programs_that_undo_each_other_do_not_write_in_a_hot_loop() -> None:
    class Source:
        async def look(self, *_: object, leads: bool) -> tuple[None, None]:
            assert leads
            return None, None

    clock, registrar = FakeClock(), Undone()
    upkeep = Upkeep(Source(), cast("Any", registrar), lambda _: None, clock=clock)
    upkeep.lead(leads=True)
    task = asyncio.create_task(upkeep.run())
    await clock.advance(600)
    task.cancel()
    await asyncio.wait({task})
    assert "does another program change the configurations" in upkeep.problem
    # Delays grow to 30 s, less a quarter.
    assert registrar.writes <= 8 * (600 / 22.5 + 7)
