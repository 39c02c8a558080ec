"""Watches and metadata in protobuf, compared with a real server's (in wire/protobuf)."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.http.protobuf import decode_body

_CAPTURED = Path(__file__).parents[1] / "data" / "conformance" / "wire" / "protobuf"
_PROTOBUF = "application/vnd.kubernetes.protobuf"
_METADATA = f"{_PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_LIST = f"{_PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_WATCH_LIST = (
    "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    "&timeoutSeconds=5"
)
_VOLATILE = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a message that has only strings and messages."""
    at = 0
    while at < len(message):
        number, size, shift, at = message[at] >> 3, 0, 0, at + 1
        while True:
            byte, at = message[at], at + 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield number, message[at : at + size]
        at += size


def _event(frame: bytes) -> tuple[str, Any]:
    parts = dict(_fields(frame))
    return parts[1].decode(), decode_body(dict(_fields(parts[2]))[1])


def _events(body: bytes) -> list[tuple[str, Any]]:
    """Return the events of a stream; each frame starts with its length in four bytes."""
    found = []
    while body:
        size = int.from_bytes(body[:4], "big")
        found.append(_event(body[4 : 4 + size]))
        body = body[4 + size :]
    return found


def _essence(event: tuple[str, Any]) -> tuple[str, Any]:
    """Return an event without volatile and empty fields."""

    def filled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {key: filled(each) for key, each in value.items() if key not in _VOLATILE}
        return {key: each for key, each in kept.items() if each not in ("", None, {}, 0)}

    return event[0], filled(event[1])


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        yield client


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def _make(client: Client) -> None:
    for letter in "abc":
        await client.create(f"{CORE}/configmaps", f"wire-{letter}", data={"k": f"v-{letter}"})


async def _read(answer: aiohttp.ClientResponse, body: bytes, count: int) -> bytes:
    """Return a stream's bytes up to the end of event number `count`."""
    while True:
        at = found = 0
        while len(body) >= at + 4 and found < count:
            at += 4 + int.from_bytes(body[at : at + 4], "big")
            found += at <= len(body)
        if found == count:
            return body
        piece = await answer.content.readany()
        assert piece, "the stream ended"
        body += piece


async def _watched(
    client: Client, session: aiohttp.ClientSession, accept: str, initial: int
) -> list[tuple[str, Any]]:
    """Return a watch-list's initial events, an update, a deletion and a bookmark."""
    url = f"{client.server.url}{CORE}/configmaps?watch=1&{_WATCH_LIST}"
    async with session.get(url, headers={"Accept": accept}) as answer:
        assert answer.headers["Content-Type"] == f"{_PROTOBUF};stream=watch"
        body = await _read(answer, b"", initial)
        await client.merge(f"{CORE}/configmaps/wire-a", {"metadata": {"labels": {"x": "1"}}})
        await client.call("DELETE", f"{CORE}/configmaps/wire-b", expect=200)
        client.server.send_bookmarks()
        return _events(await _read(answer, body, initial + 3))


async def test_a_watch_list_has_the_captured_events(
    client: Client, session: aiohttp.ClientSession
) -> None:
    await _make(client)
    events = await _watched(client, session, _PROTOBUF, 4)
    captured = _events((_CAPTURED / "watch-list.body").read_bytes())
    assert list(map(_essence, events)) == list(map(_essence, captured))


async def test_a_watch_of_metadata_has_none_but_metadata(
    client: Client, session: aiohttp.ClientSession
) -> None:
    await _make(client)
    events = await _watched(client, session, f"{_METADATA},application/json", 4)
    captured = _events((_CAPTURED / "metadata-watch-list.body").read_bytes())
    # The capture began after the label was set and the object deleted.
    assert _essence(events[2]) == _essence(captured[1])
    assert _essence(events[3]) == _essence(captured[2])
    assert [kind for kind, _ in events] == [
        *["ADDED"] * 3,
        "BOOKMARK",
        "MODIFIED",
        "DELETED",
        "BOOKMARK",
    ]
    assert all(obj.keys() == {"apiVersion", "kind", "metadata"} for _, obj in events)


async def test_what_is_wrong_with_a_watch_is_an_event_in_its_form(
    client: Client, session: aiohttp.ClientSession
) -> None:
    await _make(client)
    client.server.compact()
    url = f"{client.server.url}{CORE}/configmaps?watch=1&resourceVersion=1"
    async with session.get(url, headers={"Accept": _PROTOBUF}) as answer:
        ((kind, status),) = _events(await answer.read())
    ((_, captured),) = _events((_CAPTURED / "watch-expired.body").read_bytes())
    assert kind == "ERROR"
    for key in ("apiVersion", "kind", "status", "reason", "code"):
        assert status[key] == captured[key]


@pytest.mark.parametrize(
    ("path", "accept", "file"),
    [
        (f"{CORE}/configmaps?limit=500&resourceVersion=0", _PROTOBUF, "list"),
        (f"{CORE}/configmaps?limit=2", f"{_LIST},application/json", "metadata-list"),
        (f"{CORE}/configmaps/none", _PROTOBUF, "not-found"),
    ],
)
async def test_lists_and_refusals_have_the_captured_form(
    client: Client, session: aiohttp.ClientSession, path: str, accept: str, file: str
) -> None:
    await _make(client)
    async with session.get(client.server.url + path, headers={"Accept": accept}) as answer:
        assert answer.headers["Content-Type"] == _PROTOBUF
        value = decode_body(await answer.read())
    captured = decode_body((_CAPTURED / f"{file}.body").read_bytes())
    items, expected = value.pop("items", []), captured.pop("items", [])
    for each in (value, captured):
        each.pop("metadata")
    assert _essence(("", value)) == _essence(("", captured))
    for item, like in zip(items, expected, strict=False):
        assert _essence(("", item)) == _essence(("", like))


async def test_metadata_of_custom_resources_comes_in_protobuf_and_nothing_else(
    client: Client, session: aiohttp.ClientSession
) -> None:
    await client.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _WIDGETS)
    path = "/apis/example.com/v1/namespaces/default/widgets"
    await client.create(path, "w", apiVersion="example.com/v1", kind="Widget", spec={"a": 1})
    url = client.server.url + path
    async with session.get(url, headers={"Accept": _LIST}) as answer:
        (item,) = decode_body(await answer.read())["items"]
    assert item["metadata"]["name"] == "w"
    assert "spec" not in item
    async with session.get(url, headers={"Accept": _PROTOBUF}) as answer:
        assert answer.status == 406


async def test_a_definition_comes_back_as_it_was_sent_in_protobuf(
    client: Client, session: aiohttp.ClientSession
) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    made = await client.call("POST", path, _WIDGETS, expect=201)
    url = f"{client.server.url}{path}/widgets.example.com"
    async with session.get(url, headers={"Accept": _PROTOBUF}) as answer:
        body = await answer.read()
    assert decode_body(body)["spec"] == made["spec"]
    headers = {"Content-Type": _PROTOBUF}
    async with session.put(url, data=body, headers=headers) as answer:
        assert answer.status == 200
        assert (await answer.json())["spec"] == made["spec"]


@pytest.mark.parametrize(
    ("path", "accept", "kind"),
    [
        ("/api", _PROTOBUF, "APIVersions"),
        ("/apis", _PROTOBUF, "APIGroupList"),
        ("/apis/apps", _PROTOBUF, "APIGroup"),
        ("/apis/apps/v1", _PROTOBUF, "APIResourceList"),
        (
            "/apis",
            f"application/json, {_PROTOBUF};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            "APIGroupDiscoveryList",
        ),
    ],
)
async def test_discovery_comes_in_protobuf(
    client: Client, session: aiohttp.ClientSession, path: str, accept: str, kind: str
) -> None:
    async with session.get(client.server.url + path, headers={"Accept": accept}) as answer:
        assert answer.status == 200
        value = decode_body(await answer.read())
    assert value["kind"] == kind
    assert any(value[key] for key in ("versions", "groups", "resources", "items") if key in value)


_WIDGETS = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "names": {"plural": "widgets", "kind": "Widget"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                        "properties": {
                            "spec": {
                                "type": "object",
                                "additionalProperties": {"type": "integer", "minimum": 0.5},
                            },
                            "list": {
                                "type": "array",
                                "items": {"type": "string", "enum": ["a", "b"]},
                                "default": ["a"],
                            },
                        },
                    }
                },
            }
        ],
    },
}
