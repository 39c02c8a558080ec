"""Content negotiation: the format that Accept selects, and the formats themselves."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.http.negotiation import negotiate
from listwatch.errors import StatusError

_JSON, _YAML = "application/json", "application/yaml"
_PROTOBUF = "application/vnd.kubernetes.protobuf"
_META = "g=meta.k8s.io;v=v1"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        yield client


def _chosen(header: str, *, streamed: bool = False) -> str:
    try:
        return negotiate(header, None, streamed=streamed).content_type
    except StatusError as error:
        return str(error.code)


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        ("", _JSON),
        ("*/*", _JSON),
        ("*", "406"),
        ("application/*", "406"),
        (f"application/*,{_JSON}", _JSON),
        (_YAML, _YAML),
        (f"{_JSON};q=0.5,{_YAML}", _YAML),
        (f"{_JSON};q=0", _JSON),
        (f"*/*;q=0.9,{_YAML};q=0.1", _YAML),
        (f"text/html,{_PROTOBUF},*/*;q=0.8", _PROTOBUF),
        ("text/html", "406"),
        ("garbage", "406"),
        (f"{_JSON};sv=v2,{_YAML};sv=v1", _YAML),
        (f"{_YAML};stream=watch,{_JSON};stream=watch", _JSON),
        (f"{_JSON};stream=other", "406"),
        (f"{_JSON};pretty=1", _JSON),
        (f"{_JSON};as=Table;{_META}", "406"),
    ],
)
def test_the_header_chooses(header: str, chosen: str) -> None:
    assert _chosen(header) == chosen


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        (_JSON, _JSON),
        (_YAML, "406"),
        (_PROTOBUF, f"{_PROTOBUF};stream=watch"),
        (f"{_YAML},{_JSON}", "406"),
        (f"{_JSON},{_YAML}", _JSON),
    ],
)
def test_a_stream_is_not_in_yaml(header: str, chosen: str) -> None:
    assert _chosen(header, streamed=True) == chosen


async def test_metadata_of_nothing_is_null_and_a_list_of_nothing_is_empty(client: Client) -> None:
    path = f"{CORE}/secrets"
    listed = await client.call("GET", path, expect=200)
    accept = {"Accept": f"{_JSON};as=PartialObjectMetadataList;{_META}"}
    metadata = await client.call("GET", path, headers=accept, expect=200)
    assert listed["items"] == []
    assert metadata["items"] is None


async def test_a_watch_for_lists_of_metadata_ends_with_the_first_event(client: Client) -> None:
    accept = {"Accept": f"{_JSON};as=PartialObjectMetadataList;{_META}"}
    await client.create(f"{CORE}/secrets", "a")
    url = f"{client.server.url}{CORE}/secrets?watch=1"
    async with aiohttp.ClientSession() as session, session.get(url, headers=accept) as answer:
        assert answer.status == 200
        assert await answer.read() == b""


@pytest.mark.parametrize("media_type", [_JSON, _YAML, _PROTOBUF])
async def test_aggregated_discovery_is_not_sent_to_who_has_it(
    client: Client, media_type: str
) -> None:
    form = f"{media_type};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    assert client.server.url
    import aiohttp

    async with aiohttp.ClientSession() as session:
        url = f"{client.server.url}/apis"
        async with session.get(url, headers={"Accept": f"{_JSON};q=1,{form}"}) as first:
            assert first.headers["Content-Type"] == form
            assert first.headers["Vary"] == "Accept"
            tag = first.headers["ETag"]
        headers = {"Accept": form, "If-None-Match": tag}
        async with session.get(url, headers=headers) as second:
            assert second.status == 304


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_metadata_and_tables_come_in_the_version_that_was_asked_for(
    client: Client, version: str
) -> None:
    await client.create(f"{CORE}/secrets", "a")

    async def asked(path: str, kind: str) -> Any:
        accept = {"Accept": f"{_JSON};as={kind};g=meta.k8s.io;v={version}"}
        url = f"{client.server.url}{CORE}/{path}"
        async with aiohttp.ClientSession() as session, session.get(url, headers=accept) as answer:
            return json.loads(await answer.content.readline())

    one = await asked("secrets/a", "PartialObjectMetadata")
    every = await asked("secrets", "PartialObjectMetadataList")
    table = await asked("secrets", "Table")
    event = await asked("secrets?watch=1", "PartialObjectMetadata")
    rows = await asked("secrets?watch=1", "Table")
    for found in (
        one,
        every,
        every["items"][0],
        table,
        table["rows"][0]["object"],
        event["object"],
        rows["object"],
        rows["object"]["rows"][0]["object"],
    ):
        assert found["apiVersion"] == f"meta.k8s.io/{version}"
