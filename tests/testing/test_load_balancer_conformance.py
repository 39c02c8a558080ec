"""The conformance suite of load balancers finds a provider's faults."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from controllers.published import Slices
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.providers.address_pool import AddressPool
from listwatch.controllers.services.providers.local import LocalProvider
from listwatch.controllers.services.service import LoadBalancerStatus, Service
from listwatch.testing import load_balancer_conformance
from listwatch.testing.load_balancer_conformance import LoadBalancerConformance, Subject


class OneName(LocalProvider):
    def name(self, cluster: str, service: Service) -> str:
        return f"{cluster}-{service.spec.type}"


class Secretive(LocalProvider):
    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        assert cluster
        assert service.uid
        return None


class Immortal(LocalProvider):
    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        assert cluster
        assert service.uid


class Rebuilding(LocalProvider):
    async def ensure(
        self, cluster: str, service: Service, nodes: Sequence[Node]
    ) -> LoadBalancerStatus:
        if (balancer := self._balancers.pop(service.uid, None)) is not None:
            self._close(balancer, drain=False)
            self._pool.release_all(service.uid)
        return await super().ensure(cluster, service, nodes)


class Open(LocalProvider):
    """Ignore source ranges and session affinity."""

    async def ensure(
        self, cluster: str, service: Service, nodes: Sequence[Node]
    ) -> LoadBalancerStatus:
        value = service.object.to_dict()
        for field in ("loadBalancerSourceRanges", "sessionAffinity"):
            value["spec"].pop(field, None)
        return await super().ensure(cluster, Service.of(service.object.from_dict(value)), nodes)


class Homeless(LocalProvider):
    """Forget the addresses of services."""

    async def ensure(
        self, cluster: str, service: Service, nodes: Sequence[Node]
    ) -> LoadBalancerStatus:
        value = service.object.to_dict()
        value["status"] = {}
        value["metadata"]["uid"] = f"{service.uid}-{id(self)}"
        return await super().ensure(cluster, Service.of(service.object.from_dict(value)), nodes)


@pytest.mark.parametrize(
    ("flawed", "test"),
    [
        (OneName, "test_a_name_belongs_to_one_uid"),
        (Secretive, "test_what_is_ensured_is_told_by_get_and_carries_traffic"),
        (Immortal, "test_what_is_deleted_is_gone_and_deleting_again_is_nothing"),
        (Immortal, "test_a_cancelled_call_leaves_nothing_that_deleting_does_not_remove"),
        (Rebuilding, "test_ensuring_again_changes_nothing"),
        (Rebuilding, "test_ports_come_and_go_beside_each_other"),
        (Open, "test_source_ranges_keep_others_out"),
        (Open, "test_a_client_keeps_its_backend_if_asked_for"),
        (Homeless, "test_a_new_provider_gives_the_address_that_the_status_tells"),
    ],
)
def test_a_flaw_is_found(
    flawed: type[LocalProvider], test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_balancer_conformance, "_SECONDS", 0.5)

    class Suite(LoadBalancerConformance):
        @asynccontextmanager
        async def open(self) -> AsyncIterator[Subject]:
            slices = Slices()
            pool = AddressPool(["127.76.0.0/16"])
            async with flawed(
                pool, endpoint_slices=slices.source, health_check_seconds=0.2
            ) as provider:
                yield Subject(provider=provider, publish=slices.publish)

    with pytest.raises((AssertionError, ConnectionError)):
        getattr(Suite(), test)()


def test_what_a_provider_lacks_is_not_asked_of_it() -> None:
    class Suite(LoadBalancerConformance):
        @asynccontextmanager
        async def open(self) -> AsyncIterator[Subject]:
            slices = Slices()
            async with Open(AddressPool(["127.76.0.0/16"]), endpoint_slices=slices.source) as made:
                lacks = frozenset({"source-ranges", "affinity", "udp", "restart"})
                yield Subject(provider=made, publish=slices.publish, lacks=lacks)

    suite = Suite()
    suite.test_source_ranges_keep_others_out()
    suite.test_a_client_keeps_its_backend_if_asked_for()
    suite.test_a_new_provider_gives_the_address_that_the_status_tells()
