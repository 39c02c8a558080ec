"""The API server's cost per object created, listed, changed and sent as an event."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Self

import pytest

from guards.counting import bytes_kept, calls, guard
from listwatch.apiserver import EmbeddedAPIServer

_MAPS = "/api/v1/namespaces/default/configmaps"
_PODS = "/api/v1/namespaces/default/pods"


class _Connection:
    """A minimal HTTP connection."""

    def __init__(self, server: EmbeddedAPIServer) -> None:
        self._server = server

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._server.port, limit=1 << 24
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    def send(self, method: str, path: str, body: object = None, kind: str = "json") -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/{kind}\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )

    async def answer(self, status: int = 200) -> bytes:
        """Check the status of an answer and return its body, which has a Content-Length."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d" % status), head
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        return await self._reader.readexactly(length)

    async def ask(
        self, method: str, path: str, body: object = None, kind: str = "json", status: int = 200
    ) -> bytes:
        self.send(method, path, body, kind)
        return await self.answer(status)

    async def events(self, count: int) -> None:
        """Read a watch's response header and this many events."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await self.more_events(count)

    async def more_events(self, count: int) -> None:
        while count > 0:
            size = int(await self._reader.readline(), 16)
            chunk = await self._reader.readexactly(size + 2)
            count -= chunk.count(b'"type":"')


def _pod(number: int) -> object:
    return {
        "metadata": {"name": f"p{number}", "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]},
    }


async def _created(connection: _Connection, count: int, path: str = _MAPS) -> None:
    for number in range(count):
        body = _pod(number) if path == _PODS else {"metadata": {"name": f"m{number}"}}
        await connection.ask("POST", path, body, status=201)


async def test_creating_a_pod_costs_what_it_did() -> None:
    async def work(items: int) -> Mapping[str, int]:
        async with EmbeddedAPIServer(seed=1) as server, _Connection(server) as connection:
            with calls() as counted:
                await _created(connection, items, _PODS)
        return counted

    await guard("apiserver-pod-created", work)


async def test_a_created_pod_keeps_the_memory_it_did() -> None:
    async def work(items: int) -> Mapping[str, int]:
        async with EmbeddedAPIServer(seed=1) as server, _Connection(server) as connection:
            with bytes_kept() as counted:
                await _created(connection, items, _PODS)
        return counted

    await guard("apiserver-pod-kept", work, items=20)


async def test_patching_an_object_costs_what_it_did() -> None:
    async def work(items: int) -> Mapping[str, int]:
        async with EmbeddedAPIServer(seed=1) as server, _Connection(server) as connection:
            await _created(connection, 1)
            with calls() as counted:
                for number in range(items):
                    patch = {"data": {"n": str(number)}}
                    await connection.ask("PATCH", f"{_MAPS}/m0", patch, "merge-patch+json")
        return counted

    await guard("apiserver-object-patched", work)


_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"


async def test_an_object_that_a_policy_judges_costs_what_it_did() -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["*"]}
    policy = {
        "metadata": {"name": "p"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "object.metadata.name != 'x'"}],
        },
    }
    bound = {"policyName": "p", "validationActions": ["Deny"]}
    binding = {"metadata": {"name": "b"}, "spec": bound}

    async def work(items: int) -> Mapping[str, int]:
        async with EmbeddedAPIServer(seed=1) as server, _Connection(server) as connection:
            await connection.ask("POST", f"{_POLICIES}ies", policy, status=201)
            await connection.ask("POST", f"{_POLICIES}ybindings", binding, status=201)
            with calls() as counted:
                await _created(connection, items)
        return counted

    await guard("apiserver-object-judged", work)


async def test_a_listed_object_costs_what_it_did() -> None:
    async def work(items: int) -> Mapping[str, int]:
        async with EmbeddedAPIServer(seed=1) as server, _Connection(server) as connection:
            await _created(connection, items)
            with calls() as counted:
                assert (await connection.ask("GET", _MAPS)).count(b'"uid"') == items
        return counted

    await guard("apiserver-object-listed", work)


async def test_an_event_of_the_history_costs_what_it_did() -> None:
    async def work(items: int) -> Mapping[str, int]:
        async with EmbeddedAPIServer(seed=1) as server, _Connection(server) as connection:
            version = json.loads(await connection.ask("GET", _MAPS))["metadata"]["resourceVersion"]
            await _created(connection, items)
            with calls() as counted:
                connection.send("GET", f"{_MAPS}?watch=1&resourceVersion={version}")
                await connection.events(items)
        return counted

    await guard("apiserver-event-replayed", work)


async def test_telling_one_more_watch_of_a_change_costs_what_it_did() -> None:
    async def work(items: int) -> Mapping[str, int]:
        async with EmbeddedAPIServer(seed=1) as server, _Connection(server) as connection:
            await _created(connection, 1)
            watches = [_Connection(server) for _ in range(items)]
            for watch in watches:
                await watch.__aenter__()
                watch.send("GET", f"{_MAPS}?watch=1&resourceVersion=0")
                await watch.events(1)
            with calls() as counted:
                for number in range(10):
                    patch = {"data": {"n": str(number)}}
                    await connection.ask("PATCH", f"{_MAPS}/m0", patch, "merge-patch+json")
                    for watch in watches:
                        await watch.more_events(1)
            for watch in watches:
                await watch.__aexit__()
        return Counter({stage: number // 10 for stage, number in counted.items()})

    await guard("apiserver-event-told", work, items=10)


@pytest.mark.parametrize("what", ["selected", "passed over"])
async def test_a_change_costs_a_watch_with_a_selector_what_it_did(what: str) -> None:
    """Watches select by label: one is told of every change or of none."""
    wanted = "a" if what == "selected" else "b"

    async def work(items: int) -> Mapping[str, int]:
        async with EmbeddedAPIServer(seed=1) as server, _Connection(server) as connection:
            body = {"metadata": {"name": "m0", "labels": {"app": "a"}}}
            await connection.ask("POST", _MAPS, body, status=201)
            watches = [_Connection(server) for _ in range(items)]
            for watch in watches:
                await watch.__aenter__()
                watch.send("GET", f"{_MAPS}?watch=1&resourceVersion=0&labelSelector=app={wanted}")
                await watch.events(1 if what == "selected" else 0)
            with calls() as counted:
                for number in range(10):
                    patch = {"data": {"n": str(number)}}
                    await connection.ask("PATCH", f"{_MAPS}/m0", patch, "merge-patch+json")
                    for watch in watches if what == "selected" else ():
                        await watch.more_events(1)
                await connection.ask("GET", f"{_MAPS}/m0")  # by then every watch has been told
            for watch in watches:
                await watch.__aexit__()
        return Counter({stage: number // 10 for stage, number in counted.items()})

    await guard(f"apiserver-event-{what.replace(' ', '-')}", work, items=10)


async def test_applying_an_object_with_managed_fields_costs_what_it_did() -> None:
    async def work(items: int) -> Mapping[str, int]:
        async with EmbeddedAPIServer(seed=1) as server, _Connection(server) as connection:
            path = f"{_MAPS}/m0?fieldManager=guard"

            async def apply(number: int, status: int) -> None:
                body = {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": "m0"},
                    "data": {"n": str(number)},
                }
                await connection.ask("PATCH", path, body, "apply-patch+yaml", status)

            await apply(-1, 201)
            with calls() as counted:
                for number in range(items):
                    await apply(number, 200)
            stored = json.loads(await connection.ask("GET", f"{_MAPS}/m0"))
            assert stored["metadata"]["managedFields"][0]["operation"] == "Apply"
        return counted

    await guard("apiserver-object-applied", work, items=10)
