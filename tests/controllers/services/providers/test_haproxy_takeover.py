"""HAProxy outlives its provider, and the next provider takes it over."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from controllers.published import Slices
from controllers.services.providers.test_haproxy import haproxy_of, one_service
from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.client.kubeconfig import load_config
from listwatch.controllers.services.providers import haproxy_process
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.haproxy import HAProxyProvider
from listwatch.controllers.services.providers.haproxy_master import RunningLock
from listwatch.controllers.services.providers.haproxy_process import HAProxyError, HAProxyProcess
from listwatch.testing.load_balancer_conformance import (
    Address,
    ask,
    ask_udp,
    converse,
    make_service,
    named_server,
    named_udp_server,
)
from listwatch.testing.ports import free_port
from listwatch.testing.waiting import eventually
from processes import Running, running

pytestmark = [pytest.mark.needs("haproxy"), pytest.mark.proof]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short path; at the end no HAProxy runs in it."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "haproxy"
        yield path
        if path.exists():
            RunningLock(path / "running").kill_holders()


@asynccontextmanager
async def provider_in(
    directory: Path, slices: Slices, *, outlives: bool = True, check_seconds: float = 0.2
) -> AsyncIterator[HAProxyProvider]:
    async with HAProxyProvider(
        AddressPool(["127.79.0.0/16"]),
        endpoint_slices=slices.source,
        health_check_seconds=check_seconds,
        drain_seconds=0.5,
        directory=directory,
        outlives=outlives,
    ) as provider:
        yield provider


async def processes(provider: HAProxyProvider) -> list[str]:
    """Return the IDs of the master and its current worker."""

    async def ids() -> list[str]:
        text = await haproxy_of(provider).ask("master.sock", ["show proc"])
        rows = [line.split() for line in text.partition("# old workers")[0].splitlines()]
        return [row[0] for row in rows if row[1:2] in (["master"], ["worker"])]

    # The master refuses, drops or does not answer commands while it reloads.
    return await eventually(ids, "the master", ignoring=OSError)


class Load:
    """Clients that connect all the time, and one that stays connected."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.answers = 0
        self.failures: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._connect_often()) for _ in range(4)]
            tasks.append(group.create_task(self._stay()))
            yield self
            for task in tasks:
                task.cancel()

    async def _connect_often(self) -> None:
        while True:
            self._count(await ask(self._address))

    async def _stay(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            while True:
                self._count(await converse(reader, writer))
                await asyncio.sleep(0)
        finally:
            writer.transport.abort()

    def _count(self, answer: str) -> None:
        self.answers += 1
        if answer != "one hello":
            self.failures.append(answer)

    async def more(self) -> None:
        """Wait for some more answers."""
        before = self.answers

        async def enough() -> bool:
            return self.answers >= before + 50

        await eventually(enough, "answers")


async def test_no_connection_notices_that_a_provider_ends_and_the_next_takes_over(
    directory: Path,
) -> None:
    """The next provider finds everything as it was: the process stays, without a reload."""
    slices = Slices()
    async with named_server("one") as one, AsyncExitStack() as stack:
        async with provider_in(directory, slices) as provider:
            service, address = await one_service(provider, slices, one)
            before = await processes(provider)
            load = await stack.enter_async_context(Load(address).running())
            await load.more()
        await load.more()
        async with provider_in(directory, slices) as provider:
            await provider.forget_others("c", {service.uid})
            status = await provider.ensure("c", service, ())
            assert status.ingress[0].ip == address[0]
            await load.more()
            assert await processes(provider) == before
            assert provider.statistics().reloads == 0
            assert load.failures == []


async def test_a_provider_with_other_options_applies_them_by_a_reload(directory: Path) -> None:
    slices = Slices()
    async with named_server("one") as one, AsyncExitStack() as stack:
        async with provider_in(directory, slices) as provider:
            service, address = await one_service(provider, slices, one)
            before = await processes(provider)
            load = await stack.enter_async_context(Load(address).running())
        async with provider_in(directory, slices, check_seconds=0.3) as provider:
            await load.more()
            after = await processes(provider)
            assert after[0] == before[0]
            assert after[1] != before[1]
            assert "check inter 300ms" in haproxy_of(provider).written()
            await provider.ensure("c", service, ())
            assert provider.statistics().reloads == 1
            assert load.failures == []


async def test_backends_stay_until_the_present_ones_are_known(directory: Path) -> None:
    slices = Slices()
    async with named_server("one") as one, named_server("two") as two:
        async with provider_in(directory, slices) as provider:
            service, address = await one_service(provider, slices, one)
        await slices.publish(service, {"": [two]})
        slices.source.refuse()
        async with provider_in(directory, slices) as provider:
            await provider.ensure("c", service, ())
            assert await ask(address) == "one hello"
            slices.source.accept()

            async def is_at_two() -> bool:
                return await ask(address) == "two hello"

            await eventually(is_at_two, "the present backend")
            assert provider.statistics().reloads == 0


async def test_a_backend_that_vanished_meanwhile_is_removed(directory: Path) -> None:
    slices = Slices()
    async with named_server("one") as one:
        async with provider_in(directory, slices) as provider:
            service, address = await one_service(provider, slices, one)
            reader, writer = await asyncio.open_connection(*address)
            assert await converse(reader, writer) == "one hello"
        await slices.publish(service, {"": []})
        async with provider_in(directory, slices):
            assert await reader.read() == b""  # after the drain time
            writer.close()
            assert await ask(address) == ""


async def test_services_that_no_longer_exist_are_removed(directory: Path) -> None:
    slices = Slices()
    async with named_server("one") as one:
        async with provider_in(directory, slices) as provider:
            service, address = await one_service(provider, slices, one)
        async with provider_in(directory, slices) as provider:
            assert await provider.get("c", service) is not None
            assert await ask(address) == "one hello"
            await provider.forget_others("c", {"another"})
            assert await provider.get("c", service) is None
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address)
            # Its address and port are free again.
            other = make_service("other", uid="other", ports=[{"port": address[1], "name": ""}])
            await slices.publish(other, {"": [one]})
            await provider.ensure("c", other, ())


async def test_a_service_deleted_after_a_takeover_is_gone(directory: Path) -> None:
    slices = Slices()
    async with named_server("one") as one:
        async with provider_in(directory, slices) as provider:
            service, address = await one_service(provider, slices, one)
        async with provider_in(directory, slices) as provider:
            await provider.ensure_deleted("c", service)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address)


async def test_udp_ports_are_opened_again(directory: Path) -> None:
    slices = Slices()
    port = free_port()
    ports = [
        {"port": port, "protocol": "TCP", "name": "tcp"},
        {"port": port, "protocol": "UDP", "name": "udp"},
    ]
    service = make_service(ports=ports)
    async with named_server("one") as one, named_udp_server("u") as udp:
        await slices.publish(service, {"tcp": [one], "udp": [udp]})
        async with provider_in(directory, slices) as provider:
            status = await provider.ensure("c", service, ())
        async with provider_in(directory, slices) as provider:
            assert await provider.ensure("c", service, ()) == status

            async def answers() -> bool:
                return await ask_udp((status.ingress[0].ip, port), seconds=1) == "u hello"

            await eventually(answers, "an answer by UDP")
            assert await ask((status.ingress[0].ip, port)) == "one hello"


async def test_without_outliving_it_ends_also_if_it_was_taken_over(directory: Path) -> None:
    slices = Slices()
    async with named_server("one") as one:
        async with provider_in(directory, slices) as provider:
            _, address = await one_service(provider, slices, one)
        async with provider_in(directory, slices, outlives=False):
            assert await ask(address) == "one hello"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        assert not RunningLock(directory / "running").is_held


# --- Ends at the wrong moment ---


async def test_a_reload_that_was_interrupted_is_made_by_the_next_provider(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration is written, but HAProxy was never told."""
    slices = Slices()
    async with named_server("one") as one, AsyncExitStack() as stack:
        async with provider_in(directory, slices) as provider:
            _, address = await one_service(provider, slices, one)
            load = await stack.enter_async_context(Load(address).running())
            second = make_service("second", uid="2", ports=[{"port": free_port(), "name": ""}])
            await slices.publish(second, {"": [one]})
            begun = asyncio.Event()

            async def never(_self: HAProxyProcess, _generation: int) -> None:
                begun.set()
                await asyncio.Event().wait()

            with monkeypatch.context() as patch:
                patch.setattr(HAProxyProcess, "reload", never)
                interrupted = asyncio.create_task(provider.ensure("c", second, ()))
                await begun.wait()
                saved = haproxy_of(provider).saved_file.read_bytes()
                interrupted.cancel()
                await asyncio.wait({interrupted})
        (directory / "load-balancers.json").write_bytes(saved)
        async with provider_in(directory, slices) as provider:
            status = await provider.get("c", second)
            assert status is not None
            assert await ask((status.ingress[0].ip, second.spec.ports[0].port)) == "one hello"
            assert await ask(address) == "one hello"
            await load.more()
            assert load.failures == []


async def test_commands_that_were_not_sent_are_made_up_for_by_a_reload(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change of a backend is saved, but HAProxy was never told."""
    slices = Slices()
    async with named_server("one") as one, named_server("two") as two:
        async with provider_in(directory, slices) as provider:
            service, address = await one_service(provider, slices, one)
            begun = asyncio.Event()

            async def never(_self: HAProxyProcess, _commands: Sequence[str]) -> None:
                begun.set()
                await asyncio.Event().wait()

            with monkeypatch.context() as patch:
                patch.setattr(HAProxyProcess, "tell", never)
                await slices.publish(service, {"": [two]})
                await begun.wait()
                await provider.__aexit__(None, None, None)
        slices.source.refuse()
        async with provider_in(directory, slices) as provider:
            assert await ask(address) == "two hello"
            assert provider.statistics().reloads == 1


async def test_a_haproxy_that_died_meanwhile_is_started_anew(directory: Path) -> None:
    slices = Slices()
    async with named_server("one") as one:
        async with provider_in(directory, slices) as provider:
            service, address = await one_service(provider, slices, one)
            master = haproxy_of(provider).process
            assert master is not None
            pid = master.pid
        os.kill(pid, signal.SIGKILL)
        async with provider_in(directory, slices) as provider:
            await provider.ensure("c", service, ())

            async def answers() -> bool:
                return await ask(address) == "one hello"

            await eventually(answers, "a new process")


async def test_a_haproxy_that_hangs_is_killed_and_started_anew(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slices = Slices()
    async with named_server("one") as one:
        async with provider_in(directory, slices) as provider:
            service, address = await one_service(provider, slices, one)
            pids = await processes(provider)
        for pid in pids:
            os.kill(int(pid), signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(haproxy_process, "RELOAD_SECONDS", 0.5)
            process = HAProxyProcess("haproxy", directory, provider._clock)
            assert await process.adopt() is False
        assert "does not answer and is killed" in caplog.text
        async with provider_in(directory, slices) as provider:
            await provider.ensure("c", service, ())

            async def answers() -> bool:
                return await ask(address) == "one hello"

            await eventually(answers, "a new process")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"generation":1,"balancers":[],"version":9}']
)
async def test_saved_load_balancers_that_are_unreadable_are_made_anew(
    directory: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    slices = Slices()
    async with named_server("one") as one:
        async with provider_in(directory, slices) as provider:
            service, address = await one_service(provider, slices, one)
            reader, writer = await asyncio.open_connection(*address)
        (directory / "load-balancers.json").write_bytes(content)
        async with provider_in(directory, slices) as provider:
            assert "the previous load balancers are unknown" in caplog.text
            await provider.ensure("c", service, ())

            async def answers() -> bool:
                return await ask(address) == "one hello"

            await eventually(answers, "the service")
            assert await converse(reader, writer) == "one hello"
            writer.close()


async def test_one_unreadable_service_does_not_affect_the_others(directory: Path) -> None:
    slices = Slices()
    async with named_server("one") as one:
        async with provider_in(directory, slices) as provider:
            _, address = await one_service(provider, slices, one)
            broken = make_service("broken", uid="broken", ports=[{"port": free_port(), "name": ""}])
            await slices.publish(broken, {"": [one]})
            await provider.ensure("c", broken, ())
        file = directory / "load-balancers.json"
        file.write_bytes(file.read_bytes().replace(b'"name":"broken"', b'"name":7'))
        async with provider_in(directory, slices) as provider:
            assert provider.statistics().load_balancers == 1
            assert await ask(address) == "one hello"
            await provider.ensure("c", broken, ())
            assert provider.statistics().load_balancers == 2


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.haproxy import HAProxyProvider
from listwatch.testing.load_balancer_conformance import make_service
async def main():
    pool = AddressPool(["127.79.0.0/16"])
    async with HAProxyProvider(
        pool, backends="node-ports", directory=Path(sys.argv[1]), outlives=True
    ) as provider:
        service = make_service(ports=[{"port": int(sys.argv[2]), "name": "", "nodePort": 9}])
        status = await provider.ensure("c", service, ())
        print(status.ingress[0].ip, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


async def test_haproxy_outlives_a_provider_that_is_killed(directory: Path) -> None:
    slices = Slices()
    port = free_port()
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", KILLED, str(directory), str(port)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    address = killed.stdout.strip(), port
    assert await ask(address) == ""  # accepted, although there is no backend
    service = make_service(ports=[{"port": port, "name": ""}])
    async with named_server("one") as one, provider_in(directory, slices) as provider:
        await slices.publish(service, {"": [one]})
        await provider.ensure("c", service, ())

        async def answers() -> bool:
            return await ask(address) == "one hello"

        await eventually(answers, "the backend")


async def test_haproxy_serves_while_one_controller_follows_another(directory: Path) -> None:
    """The first is killed, the second ends in order, and the third ends HAProxy, too."""
    port = free_port()
    options = [
        *("service-controller", "--provider", "haproxy", "--no-leader-elect"),
        *("--address-pool", "127.82.0.1/32", "--runtime-directory", str(directory)),
    ]
    async with EmbeddedAPIServer() as server, AsyncExitStack() as stack:
        one = await stack.enter_async_context(named_server("one"))
        kubeconfig = directory.with_name("kubeconfig")
        kubeconfig.write_text(server.kubeconfig())
        config = load_config(kubeconfig)
        client = await stack.enter_async_context(Client.from_config(config))
        await client.create(_service(port))
        await client.create(_slice(one))
        options += ["--kubeconfig", str(kubeconfig)]

        async def answers() -> bool:
            return await ask(("127.82.0.1", port)) == "one hello"

        async def taken_over(program: Running) -> None:
            told = "took over haproxy with 1 load balancers"
            await asyncio.to_thread(
                program.until, lambda: any(told in line for line in program.err)
            )
            assert await answers()

        with running(*options) as program:
            await eventually(answers, "the service")
            await asyncio.to_thread(program.stop, signal.SIGKILL)
        assert await answers()
        with running(*options) as program:
            await taken_over(program)
            assert await asyncio.to_thread(program.stop) == 0, program.err
            assert "haproxy continues without the controller" in program.err[-1]
        assert await answers()
        with running(*options, "--stop-with-controller") as program:
            await taken_over(program)
            assert await asyncio.to_thread(program.stop) == 0, program.err
        assert not await answers()


def _service(port: int) -> dict[str, Any]:
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": port}]},
    }


def _slice(backend: Address) -> dict[str, Any]:
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": "web-1",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [backend[0]], "conditions": {"ready": True}}],
        "ports": [{"port": backend[1]}],
    }


async def test_a_full_disk_is_told_and_changes_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = Slices()
    async with named_server("one") as one, provider_in(directory, slices) as provider:
        _, address = await one_service(provider, slices, one)
        second = make_service("second", uid="2", ports=[{"port": free_port(), "name": ""}])

        def full(descriptor: int, _mode: str) -> None:
            os.close(descriptor)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdopen", full)
            with pytest.raises(HAProxyError, match=r"^can't write /.*: No space left on device$"):
                await provider.ensure("c", second, ())
        assert _unfinished(directory) == []
        assert await ask(address) == "one hello"
        await slices.publish(second, {"": [one]})
        status = await provider.ensure("c", second, ())

        async def answers() -> bool:
            return await ask((status.ingress[0].ip, second.spec.ports[0].port)) == "one hello"

        await eventually(answers, "the second service")


def _unfinished(directory: Path) -> list[Path]:
    return list(directory.glob("*.new"))


def test_outliving_needs_a_directory() -> None:
    with pytest.raises(ValueError, match="needs directory="):
        HAProxyProvider(backends="node-ports", outlives=True)
