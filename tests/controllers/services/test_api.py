"""The controllers' writes to the embedded API server."""

import asyncio
from typing import Any

import msgspec
import pytest

from listwatch.controllers.builds.api import ClientBuilds
from listwatch.controllers.services.api import ClientServices
from listwatch.controllers.services.service import FINALIZER, Service
from listwatch.errors import InvalidError
from listwatch.objects import Object
from listwatch.testing.api_server import APIServer
from listwatch.testing.load_balancer_conformance import make_service

SERVICE: dict[str, Any] = {
    "kind": "Service",
    "apiVersion": "v1",
    "metadata": {"name": "web", "namespace": "default", "finalizers": ["example.com/other"]},
    "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
}
INGRESS = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}]}}}


async def test_finalizer_and_status_are_written_beside_what_others_wrote() -> None:
    async with APIServer() as server, server.client() as client:
        api = ClientServices(client)
        service = Service.of(await client.create(SERVICE))
        written = await api.patch(service, {"metadata": {"finalizers": [FINALIZER]}})
        assert written is not None
        assert set(written.meta.finalizers) == {FINALIZER, "example.com/other"}
        written = await api.patch(service, INGRESS)
        assert written is not None
        assert written["status"] == INGRESS["status"]
        patch = {
            "metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]},
            "status": {"loadBalancer": {"ingress": None}},
        }
        for _ in range(2):  # The second time, there is nothing to remove.
            written = await api.patch(service, patch)
            assert written is not None
            assert written.meta.finalizers == ("example.com/other",)
            assert written["status"] == {"loadBalancer": {}}


async def test_another_service_of_the_name_is_never_written_to() -> None:
    async with APIServer() as server, server.client() as client:
        api = ClientServices(client)
        assert await api.patch(make_service("web"), INGRESS) is None
        there = await client.create(SERVICE)
        value = there.to_dict()
        value["metadata"]["uid"] = "of-one-before"
        before = Service.of(Object.from_dict(value))
        assert await api.patch(before, INGRESS) is None
        now = await client.get("services", "web", "default")
        assert now.resource_version == there.resource_version
        with pytest.raises(InvalidError):
            await api.patch(Service.of(there), {"metadata": {"labels": {"-": "no label"}}})


async def test_what_is_not_there_is_none_and_pods_are_deleted_by_their_uid() -> None:
    async with APIServer() as server, server.client() as client:
        api = ClientBuilds(client, "configmaps")
        assert await api.get_build("default", "missing") is None
        assert await api.get_pod("default", "missing") is None
        assert await api.change_build("default", "missing", lambda _: True) is None
        assert not await api.delete_pod("default", "missing", "uid")
        pod = await client.create(
            {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {"name": "p", "namespace": "default"},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }
        )
        assert not await api.delete_pod("default", "p", "another")
        assert await api.delete_pod("default", "p", pod.uid)


async def test_a_change_meets_conflicts_and_begins_anew() -> None:
    async with APIServer() as server, server.client() as client:
        api = ClientBuilds(client, "configmaps")
        meta = {"name": "b", "namespace": "default"}
        await client.create({"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta})

        def add(name: str) -> Any:
            def mutate(value: dict[str, Any]) -> bool:
                value.setdefault("data", {})[name] = "x"
                return True

            return mutate

        await asyncio.gather(*(api.change_build("default", "b", add(f"k{n}")) for n in range(4)))
        found = await client.get("configmaps", "b", "default")
        assert set(msgspec.json.decode(found.raw)["data"]) == {f"k{n}" for n in range(4)}
        assert await api.change_build("default", "b", lambda _: False) is None
