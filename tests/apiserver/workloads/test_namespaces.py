from collections.abc import AsyncIterator

import pytest

from workload_cluster import Cluster, cluster

ACCOUNT = "/api/v1/namespaces/{}/serviceaccounts/default"
BUNDLE = "/api/v1/namespaces/{}/configmaps/kube-root-ca.crt"


@pytest.fixture
async def at_once() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


async def test_every_namespace_has_a_service_account_and_the_ca(at_once: Cluster) -> None:
    await at_once.client.create("/api/v1/namespaces", "late")
    await at_once.clock.settle()
    for name in ("default", "kube-system", "late"):
        await at_once.client.call("GET", ACCOUNT.format(name), expect=200)
        bundle = await at_once.client.call("GET", BUNDLE.format(name), expect=200)
        assert bundle["data"] == {"ca.crt": ""}


async def test_what_is_changed_or_deleted_comes_back(at_once: Cluster) -> None:
    await at_once.client.merge(BUNDLE.format("default"), {"data": {"ca.crt": "mine"}})
    await at_once.client.call("DELETE", ACCOUNT.format("default"), expect=200)
    await at_once.clock.settle()
    bundle = await at_once.client.call("GET", BUNDLE.format("default"), expect=200)
    assert bundle["data"] == {"ca.crt": ""}
    await at_once.client.call("GET", ACCOUNT.format("default"), expect=200)


async def test_a_namespace_that_ends_gets_nothing_more(at_once: Cluster) -> None:
    await at_once.client.create("/api/v1/namespaces", "late")
    await at_once.client.call("DELETE", "/api/v1/namespaces/late", expect=200)
    await at_once.clock.settle()
    await at_once.client.call("GET", "/api/v1/namespaces/late", expect=404)
