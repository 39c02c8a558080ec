"""Service controller, local provider and embedded API server together, also with failures."""

import asyncio
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.client.kubeconfig import load_config
from listwatch.controllers.services.api import ClientServices
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.local import LocalProvider
from listwatch.controllers.services.service import FINALIZER, LoadBalancerStatus, Service
from listwatch.controllers.services.service_controller import ServiceController
from listwatch.errors import ListWatchError, NotFoundError
from listwatch.runtime.events import ClientEvents, EventRecorder
from listwatch.testing.fault_proxy import FaultProxy
from listwatch.testing.load_balancer_conformance import (
    ask,
    named_server,
)
from listwatch.testing.ports import free_port
from listwatch.testing.waiting import eventually

DEMO = Path(__file__).parents[3] / "examples" / "services.py"


@pytest.mark.parametrize(
    "provider",
    ["local", pytest.param("haproxy", marks=[pytest.mark.needs("haproxy"), pytest.mark.proof])],
)
def test_the_demo_finds_everything_as_it_should_be(provider: str) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--services", "40", "--nodes", "5", "--provider", provider],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the controller was killed and came back" in done.stdout
    assert "40 services and 5 nodes" in done.stdout
    assert done.stdout.endswith("Everything was as it should be.\n")


class Unsteady:
    """The local provider, with callbacks before and after its calls."""

    def __init__(self, provider: LocalProvider) -> None:
        self._provider = provider
        self.before: Callable[[str], Any] = lambda _call: None
        self.after: Callable[[str], Any] = lambda _call: None

    def name(self, cluster: str, service: Service) -> str:
        return self._provider.name(cluster, service)

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        return await self._provider.get(cluster, service)

    async def ensure(
        self, cluster: str, service: Service, nodes: Sequence[Node]
    ) -> LoadBalancerStatus:
        await self._happen(self.before, "ensure")
        status = await self._provider.ensure(cluster, service, nodes)
        await self._happen(self.after, "ensure")
        return status

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        await self._happen(self.before, "update")
        await self._provider.update(cluster, service, nodes)

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        await self._happen(self.before, "delete")
        await self._provider.ensure_deleted(cluster, service)
        await self._happen(self.after, "delete")

    async def _happen(self, what: Callable[[str], Any], call: str) -> None:
        result = what(call)
        if result is not None:
            await result


class System:
    """A server, clients, a provider, and a controller that can be stopped and started."""

    def __init__(
        self, server: EmbeddedAPIServer, client: Client, other: Client, patience: float
    ) -> None:
        self.server = server
        #: The tests' client.
        self.client = client
        #: The controller's client, which may go through a proxy.
        self.controlled = other
        self.pool = AddressPool(["127.80.0.0/16"])
        #: Seconds for a call of the provider.
        self.patience = patience
        self.provider: Unsteady
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        assert task is not None
        assert not task.done(), task
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled(), task

    async def _run(self) -> None:
        client = self.controlled
        slices = client.list_watch("endpointslices.v1.discovery.k8s.io")
        async with (
            EventRecorder(ClientEvents(client), "service-controller") as recorder,
            LocalProvider(self.pool, endpoint_slices=slices) as provider,
        ):
            self.provider = Unsteady(provider)
            await ServiceController(
                self.provider,
                ClientServices(client),
                client.list_watch("services.v1."),
                client.list_watch("nodes.v1."),
                recorder=recorder,
                min_retry_delay=0.05,
                max_retry_delay=0.4,
                provider_timeout=self.patience,
            ).run()

    async def create(self, name: str, backend: tuple[str, int] | None = None) -> int:
        port = free_port()
        await self.client.create(
            {
                "kind": "Service",
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"type": "LoadBalancer", "ports": [{"port": port, "name": "p"}]},
            }
        )
        if backend is not None:
            await self.client.create(
                {
                    "kind": "EndpointSlice",
                    "apiVersion": "discovery.k8s.io/v1",
                    "metadata": {
                        "name": f"{name}-1",
                        "namespace": "default",
                        "labels": {"kubernetes.io/service-name": name},
                    },
                    "addressType": "IPv4",
                    "endpoints": [{"addresses": [backend[0]]}],
                    "ports": [{"name": "p", "port": backend[1], "protocol": "TCP"}],
                }
            )
        return port

    async def address(self, name: str) -> str:
        try:
            service = Service.of(await self.client.get("services", name, "default"))
        except (NotFoundError, ListWatchError):
            return ""
        ingress = service.status.ingress
        return ingress[0].ip if ingress and service.has_finalizer else ""

    async def has_address(self, name: str) -> bool:
        return bool(await self.address(name))

    async def is_gone(self, name: str) -> bool:
        try:
            await self.client.get("services", name, "default")
        except NotFoundError:
            return True
        except ListWatchError:
            return False
        return False

    async def restart_server(self, downtime: float) -> None:
        await self.server.restart(downtime=downtime)


@asynccontextmanager
async def system(
    *, proxied: bool = False, patience: float = 30.0
) -> AsyncIterator[tuple[System, FaultProxy | None]]:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = await stack.enter_async_context(EmbeddedAPIServer())

        async def client(text: str) -> Client:
            path = directory / "config"
            path.write_text(text)
            return await stack.enter_async_context(Client.from_config(load_config(path)))

        own = await client(server.kubeconfig())
        proxy = None
        other = own
        if proxied:
            proxy = await stack.enter_async_context(FaultProxy(server.host, server.port))
            other = await client(server.kubeconfig().replace(server.url, proxy.url))
        made = System(server, own, other, patience)
        await own.create({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}})
        await made.start()
        yield made, proxy
        if made._task is not None:
            await made.stop()
        assert len(made.pool) == 0


async def test_traffic_status_finalizer_and_events() -> None:
    async with system() as (it, _), named_server("one") as one:
        port = await it.create("web", one)
        await eventually(lambda: it.has_address("web"))
        address = (await it.address("web"), port)

        async def answers() -> bool:
            return await ask(address) == "one hello"

        await eventually(answers)
        await it.client.delete("services", "web", "default")
        await eventually(lambda: it.is_gone("web"))
        assert await ask(address) == ""

        async def told() -> bool:
            events = (await it.client.list("events.v1.", "default")).items
            return {event["reason"] for event in events} == {
                "EnsuringLoadBalancer",
                "EnsuredLoadBalancer",
                "DeletingLoadBalancer",
                "DeletedLoadBalancer",
            }

        await eventually(told)


@pytest.mark.parametrize("call", ["ensure", "delete"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_the_server_restarts_around_a_call_of_the_provider(call: str, moment: str) -> None:
    """The server is down when the controller writes before or after the call."""
    async with system() as (it, _):
        await it.create("first")
        await eventually(lambda: it.has_address("first"))
        restarts: list[asyncio.Task[None]] = []

        async def restart() -> None:
            if not restarts:
                restarts.append(asyncio.create_task(it.restart_server(0.3)))
                # The server is mostly down then. If it still runs, or runs again, this is a
                # restart a little later or earlier, after which all must be in order too.
                await asyncio.sleep(0.05)

        setattr(it.provider, moment, lambda name: restart() if name == call else None)
        if call == "ensure":
            await it.create("web")
            await eventually(lambda: it.has_address("web"))
            await restarts[0]
            await it.client.delete("services", "web", "default")
        else:
            await it.create("web")
            await eventually(lambda: it.has_address("web"))
            await it.client.delete("services", "web", "default")
        await eventually(lambda: it.is_gone("web"))
        await restarts[0]
        assert len(it.pool) == 1


async def test_a_slow_server_costs_time_only() -> None:
    async with system(proxied=True) as (it, proxy):
        assert proxy is not None
        proxy.delay(to_client=0.2, to_server=0.2)
        names = [f"s{n}" for n in range(5)]
        for name in names:
            await it.create(name)
        for name in names:
            await eventually(partial(it.has_address, name))
            await it.client.delete("services", name, "default")
        for name in names:
            await eventually(partial(it.is_gone, name))


async def test_what_happens_while_the_controller_is_down_is_made_good() -> None:
    async with system() as (it, _), named_server("one") as one:
        port = await it.create("stays", one)
        await it.create("goes")
        await it.create("changes")
        for name in ("stays", "goes", "changes"):
            await eventually(partial(it.has_address, name))
        before = await it.address("stays")
        await it.stop()
        assert len(it.pool) == 0
        await it.client.delete("services", "goes", "default")
        await it.client.patch("services", "changes", {"spec": {"type": "ClusterIP"}}, "default")
        await it.create("comes")
        await it.start()
        await eventually(lambda: it.has_address("comes"))
        await eventually(lambda: it.is_gone("goes"))

        async def is_plain() -> bool:
            service = Service.of(await it.client.get("services", "changes", "default"))
            return not service.has_finalizer and not service.status.ingress

        await eventually(is_plain)

        async def answers() -> bool:
            return await ask((before, port)) == "one hello"

        await eventually(answers)
        assert await it.address("stays") == before


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(3))
async def test_any_mix_of_faults_ends_in_order(seed: int) -> None:
    """After any faults, every service has its load balancer, and nothing else is left."""
    chance = random.Random(seed)
    async with system(proxied=True, patience=1) as (it, proxy):
        assert proxy is not None
        await it.create("first")
        await eventually(lambda: it.has_address("first"))

        def trouble(_call: str) -> Any:
            roll = chance.random()
            if roll < 0.15:
                raise RuntimeError("no luck")
            return asyncio.sleep(3 if roll < 0.2 else 0)  # longer than the controller's patience

        it.provider.before = it.provider.after = trouble
        names = [f"s{n}" for n in range(12)]
        alive: set[str] = set()
        for _ in range(60):
            name = chance.choice(names)
            if name not in alive:
                if await it.is_gone(name):
                    await it.create(name)
                    alive.add(name)
            elif chance.random() < 0.5:
                await it.client.delete("services", name, "default")
                alive.discard(name)
            else:
                spec = {"sessionAffinity": chance.choice(["None", "ClientIP"])}
                await it.client.patch("services", name, {"spec": spec}, "default")
            roll = chance.random()
            if roll < 0.1:
                proxy.drop(reset=chance.random() < 0.5)
            elif roll < 0.13:
                await it.restart_server(0.05)
            elif roll < 0.18:
                it.server.compact()
            await asyncio.sleep(0.01)  # so that actions meet calls under way, not only their queue
        it.provider.before = it.provider.after = lambda _call: None
        proxy.heal()

        async def is_in_order() -> bool:
            services = (await it.client.list("services", "default")).items
            found = {s.name: Service.of(s) for s in services if s.name != "kubernetes"}
            return (
                found.keys() == alive | {"first"}
                and all(s.has_finalizer and s.status.ingress for s in found.values())
                and len({s.status.ingress[0].ip for s in found.values()}) == len(found)
                and len(it.pool) == len(found)
            )

        await eventually(is_in_order, seconds=40)
        for name in alive:
            await it.client.delete("services", name, "default")
        for name in alive:
            await eventually(partial(it.is_gone, name))
        assert FINALIZER in (await it.client.get("services", "first", "default")).meta.finalizers
