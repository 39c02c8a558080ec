"""The HAProxy provider with the real program."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from controllers.published import Slices
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.haproxy import HAProxyProvider
from listwatch.testing.load_balancer_conformance import LoadBalancerConformance, Subject

pytestmark = pytest.mark.skipif(
    shutil.which("haproxy") is None and not os.environ.get("CI"),
    reason="haproxy is not installed: apt-get install haproxy",
)


class TestHAProxyProvider(LoadBalancerConformance):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[Subject]:
        slices = Slices()
        pool = AddressPool(["127.78.0.0/16"])
        async with HAProxyProvider(
            pool, endpoint_slices=slices.source, health_check_seconds=0.2
        ) as provider:
            yield Subject(provider=provider, publish=slices.publish, lacks=frozenset({"udp"}))
        assert len(pool) == 0
