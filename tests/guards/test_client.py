"""The client's cost per request, per listed object and per event of a watch."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import pytest

from guards.counting import calls, guard
from listwatch.cache.list_watch import WatchOptions
from listwatch.client.client import Client
from listwatch.testing import APIServer


def _configmap(number: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"m{number}", "namespace": "default"},
        "data": {"k": "v" * 100},
    }


async def _requests(verb: str, items: int) -> Mapping[str, int]:
    """Send this many requests to a server in another thread, whose calls are not counted."""
    with APIServer(seed=1) as server:
        async with Client(server.config) as client:
            await client.create(_configmap(-1))
            verbs: dict[str, Callable[[int], Awaitable[object]]] = {
                "create": lambda n: client.create(_configmap(n)),
                "get": lambda _: client.get("configmaps", "m-1", "default"),
                "patch": lambda n: client.patch(
                    "configmaps", "m-1", {"data": {"n": str(n)}}, "default"
                ),
            }
            act = verbs[verb]
            await act(-2)
            with calls() as counted:
                for number in range(items):
                    await act(number)
    return counted


@pytest.mark.parametrize("verb", ["create", "get", "patch"])
async def test_a_request_costs_what_it_did(verb: str) -> None:
    await guard(f"client-{verb}", partial(_requests, verb), items=20)


async def test_a_listed_object_costs_what_it_did() -> None:
    async def work(items: int) -> Mapping[str, int]:
        with APIServer(seed=1) as server:
            async with Client(server.config) as client:
                for number in range(items):
                    await client.create(_configmap(number))
                await client.list("configmaps")
                with calls() as counted:
                    assert len((await client.list("configmaps")).items) == items
        return counted

    await guard("client-object-listed", work)


async def test_an_event_of_a_watch_costs_what_it_did() -> None:
    async def work(items: int) -> Mapping[str, int]:
        with APIServer(seed=1) as server:
            async with Client(server.config) as client:
                before = (await client.list("configmaps")).resource_version
                for number in range(items):
                    await client.create(_configmap(number))
                options = WatchOptions(resource_version=before)
                seen = 0
                with calls() as counted:
                    async with client.list_watch("configmaps").watch(options) as batches:
                        async for batch in batches:
                            seen += len(batch)
                            if seen >= items:
                                break
        return counted

    await guard("client-event", work)


async def test_a_request_by_tls_costs_what_it_did() -> None:
    """Connections are aiofastnet's, whose TLS makes no Python calls of its own."""
    pytest.importorskip("aiofastnet")

    async def work(items: int) -> Mapping[str, int]:
        with APIServer(seed=1, tls=True) as server:
            async with Client(server.config) as client:
                await client.create(_configmap(-1))
                await client.get("configmaps", "m-1", "default")
                with calls() as counted:
                    for _ in range(items):
                        await client.get("configmaps", "m-1", "default")
        return counted

    await guard("client-get-tls", work, items=10)
