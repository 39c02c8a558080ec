"""Nearly valid objects of every built-in kind are stored or refused, and never cause a failure."""

import asyncio
import json
import logging
import random
from collections.abc import Iterator
from typing import Any, Self

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.schema.facts import Form, Schema

_WORDS = (
    *("", "a", "web", "default", "-1", "1", "100m", "1Gi", "x" * 300, "Ünï", "true", "80%", "None"),
    *("2026-01-01T00:00:00Z", "10.0.0.1", "a/b", "*", "{}", "\0", "TCP", "Always", "ClusterIP"),
)
_ANYTHING: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 80, 2**31, 2**63, -(2**70), 1.5, 1e308, "", [], {}, [None]),
    *({"": None}, {"a": {"b": [1]}}, *_WORDS),
)
_FITTING: dict[Form, tuple[Any, ...]] = {
    Form.STRING: _WORDS,
    Form.INTEGER: (0, 1, -1, 80, 65536, 2**31, 2**63 - 1),
    Form.NUMBER: (0, 1.5, -1),
    Form.BOOLEAN: (True, False),
    Form.INT_OR_STRING: (80, "http", "50%", -1),
    Form.QUANTITY: ("1", "100m", "1Gi", "-1", "x", 5, "1e3", "0.5"),
    Form.TIME: ("2026-01-01T00:00:00Z", "x", None),
    Form.MICRO_TIME: ("2026-01-01T00:00:00.000000Z", "x", None),
    Form.BYTES: ("", "YQ==", "!"),
    Form.ANY: _ANYTHING,
}
_APPLY = "application/apply-patch+yaml"
_PATCHES = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    _APPLY,
)
_ACCEPTS = (
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
)


def _value(pick: random.Random, schema: Schema, depth: int = 0) -> Any:
    """Return a value of the schema's type, and now and then one of another type."""
    if pick.random() < 0.05 or depth > 9:
        return pick.choice(_ANYTHING)
    if schema.form is Form.STRUCT:
        some = pick.sample(list(schema.fields), min(len(schema.fields), pick.choice((1, 2, 4, 8))))
        names = {*some, *(name for name in schema.required if pick.random() < 0.8)}
        return {
            name: _value(pick, schema.fields[name], depth + 1)
            for name in sorted(names)
            if name in schema.fields
        }
    if schema.item is not None:
        items = [_value(pick, schema.item, depth + 1) for _ in range(pick.choice((0, 1, 1, 2)))]
        return items if schema.form is Form.LIST else {pick.choice(_WORDS): each for each in items}
    return pick.choice(schema.enum or _FITTING[schema.form])


def _object(pick: random.Random, resource: APIResource) -> dict[str, Any]:
    made = _value(pick, resource.schema)
    obj: dict[str, Any] = made if isinstance(made, dict) else {"spec": made}
    metadata = obj.get("metadata")
    kept = metadata if isinstance(metadata, dict) and pick.random() < 0.4 else {}
    obj |= {"kind": resource.kind, "apiVersion": resource.api_version}
    obj["metadata"] = {**kept, "name": "a"}
    return obj


class _Kinds:
    """A server and its built-in resources."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._server = EmbeddedAPIServer(seed=1)
        self._session: aiohttp.ClientSession | None = None
        self.resources = [each for each in self._server.table if each.storage != "namespaces"]

    async def _open(self) -> None:
        await self._server.start()
        self._session = aiohttp.ClientSession()

    async def _close(self) -> None:
        assert self._session is not None
        await self._session.close()
        await self._server.stop()

    def __enter__(self) -> Self:
        self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._close())
        self._runner.close()

    def story(self, pick: random.Random, resource: APIResource) -> None:
        self._runner.run(self._story(pick, resource))

    async def _story(self, pick: random.Random, resource: APIResource) -> None:
        base = f"/apis/{resource.group}/{resource.version}" if resource.group else "/api/v1"
        space = "/namespaces/default" if resource.namespaced else ""
        collection = f"{base}{space}/{resource.name}"
        part = pick.choice(("", "", *(f"/{name}" for name in sorted(resource.subresources))))
        path = f"{collection}/a{part}"
        steps = [
            ("POST", collection, "application/json"),
            ("PUT", path, "application/json"),
            *(("PATCH", f"{path}?fieldManager=m", kind) for kind in _PATCHES),
            ("PATCH", f"{path}?fieldManager=other&force=true", _APPLY),
            ("POST", path, "application/json"),
            ("GET", collection, ""),
            ("DELETE", f"{collection}/a", "application/json"),
        ]
        for method, target, kind in steps:
            await self._send(pick, method, target, kind, _object(pick, resource))

    async def _send(
        self, pick: random.Random, method: str, target: str, kind: str, obj: dict[str, Any]
    ) -> None:
        assert self._session is not None
        body = None if method == "GET" else json.dumps({} if method == "DELETE" else obj)
        headers = {"Content-Type": kind, "Accept": pick.choice(_ACCEPTS)}
        async with (
            asyncio.timeout(40),
            self._session.request(
                method, self._server.url + target, data=body, headers=headers
            ) as answer,
        ):
            text = await answer.read()
            assert answer.status < 600
            assert b"the server failed" not in text, (method, target, kind, body)


@pytest.fixture(scope="module")
def kinds() -> Iterator[_Kinds]:
    with _Kinds() as kinds:
        yield kinds


@given(seed=st.integers(0, 2**32))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_object_of_any_kind_makes_the_server_fail(
    kinds: _Kinds, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    pick = random.Random(seed)
    kinds.story(pick, pick.choice(kinds.resources))
    failed = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert failed == [], f"seed {seed}"
