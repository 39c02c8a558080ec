"""A local provider with real sockets and a fake clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from controllers.published import Slices
from listwatch.clock import FakeClock
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.local import LocalProvider
from listwatch.controllers.services.service import Service
from listwatch.testing.load_balancer_conformance import (
    converse,
    named_server,
)
from listwatch.testing.ports import free_port

Address = tuple[str, int]


class Bench:
    """A local provider with its clock, pool, endpoints and servers."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.slices = Slices()
        self.pool = AddressPool(["127.79.0.0/16", "::1/128"])
        source = None if options.get("backends") == "node-ports" else self.slices.source
        options.setdefault("health_check_seconds", 0)
        self.provider = LocalProvider(
            self.pool, endpoint_slices=source, clock=self.clock, **options
        )
        self.stack = AsyncExitStack()

    async def server(self, name: str) -> Address:
        return await self.stack.enter_async_context(named_server(name))

    async def publish(self, service: Service, *backends: Address, port: str = "") -> None:
        await self.slices.publish(service, {port: backends})
        await self.clock.settle()

    async def ensure(self, service: Service, *nodes: Node) -> Address:
        status = await self.provider.ensure("c", service, nodes)
        return status.ingress[0].ip, service.spec.ports[0].port


@asynccontextmanager
async def bench(**options: Any) -> AsyncIterator[Bench]:
    made = Bench(**options)
    async with made.stack, made.provider:
        await made.clock.settle()
        yield made


def tcp(port: int = 0, **more: Any) -> dict[str, Any]:
    return {"port": port or free_port(), "protocol": "TCP", "name": "", **more}


async def is_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    try:
        return await converse(reader, writer) == ""
    except ConnectionError:
        return True
