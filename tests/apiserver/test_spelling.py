"""A ControllerRevision's data is compared as text; a patch rewrites it without spaces."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer

_PATH = "/apis/apps/v1/namespaces/default/controllerrevisions"
_SPACED = b'{"metadata": {"name": "a"}, "revision": %d, "data": {"a": 1}}'
_DENSE = b'{"metadata": {"name": "a"}, "revision": %d, "data": {"a":1}}'
_JSON = "application/json"
_APPLIED = (
    b'{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{"name":"a"},'
    b'"revision":%d,"data":{"a":1}}'
)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        yield client


@pytest.mark.parametrize(
    ("made", "method", "body", "media_type", "code"),
    [
        (_SPACED, "PUT", _SPACED, _JSON, 200),
        (_DENSE, "PUT", _DENSE, _JSON, 200),
        (_SPACED, "PUT", _DENSE, _JSON, 422),
        (_DENSE, "PUT", _SPACED, _JSON, 422),
        (_SPACED, "PATCH", b'{"revision": %d}', "application/merge-patch+json", 422),
        (_DENSE, "PATCH", b'{"revision": %d}', "application/merge-patch+json", 200),
        (_SPACED, "PATCH", b'{"revision": %d}', "application/strategic-merge-patch+json", 422),
        (_DENSE, "PATCH", b'{"revision": %d}', "application/strategic-merge-patch+json", 200),
        (_SPACED, "PATCH", _APPLIED, "application/apply-patch+yaml", 422),
        (_DENSE, "PATCH", _APPLIED, "application/apply-patch+yaml", 200),
    ],
)
async def test_a_change_keeps_how_the_data_was_written(
    client: Client, made: bytes, method: str, body: bytes, media_type: str, code: int
) -> None:
    await client.call("POST", _PATH, made % 1, expect=201)
    headers = {"Content-Type": media_type}
    path = f"{_PATH}/a?fieldManager=m&{'force=true' if b'Kind' in body or b'kind' in body else ''}"
    answer: Any = await client.call(method, path, body % 2, headers=headers, expect=code)
    if code == 422:
        assert [cause["field"] for cause in answer["details"]["causes"]] == ["data"]
    else:
        assert (answer["revision"], answer["data"]) == (2, {"a": 1})


async def test_what_is_kept_outlasts_other_changes(client: Client) -> None:
    await client.call("POST", _PATH, _SPACED % 1, expect=201)
    for revision in (2, 3):
        await client.call("PUT", f"{_PATH}/a", _SPACED % revision, expect=200)
    await client.call("PUT", f"{_PATH}/a", _DENSE % 4, expect=422)
