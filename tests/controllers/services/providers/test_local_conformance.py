from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controllers.published import Slices
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.local import LocalProvider
from listwatch.testing.load_balancer_conformance import LoadBalancerConformance, Subject


class TestLocalProvider(LoadBalancerConformance):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[Subject]:
        slices = Slices()
        pool = AddressPool(["127.77.0.0/16"])
        async with LocalProvider(
            pool, endpoint_slices=slices.source, health_check_seconds=0.2
        ) as provider:
            yield Subject(provider=provider, publish=slices.publish)
        assert provider.statistics().load_balancers == 0
        assert len(pool) == 0
