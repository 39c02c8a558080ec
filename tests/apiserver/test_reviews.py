"""Reviews are answered as recorded, and not stored."""

from collections.abc import AsyncIterator

import pytest

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.access.auth import read_tokens

_AUTHENTICATION = "/apis/authentication.k8s.io/v1"
_AUTHORIZATION = "/apis/authorization.k8s.io/v1"
_ADMIN = {"Authorization": "Bearer t"}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    tokens = read_tokens('t,admin,1,"system:masters"\n', "tokens")
    async with (
        EmbeddedAPIServer(tokens=tokens, controllers=False) as server,
        Client(server) as client,
    ):
        yield client


async def test_an_access_review_notes_whose_its_question_is(client: Client) -> None:
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods"}}
    answer = await client.call(
        "POST",
        f"{_AUTHORIZATION}/selfsubjectaccessreviews?fieldManager=me",
        {"spec": spec},
        headers=_ADMIN,
        expect=201,
    )
    assert answer["status"]["allowed"] is True
    (owner,) = answer["metadata"]["managedFields"]
    assert (owner["manager"], owner["operation"]) == ("me", "Update")
    assert owner["fieldsV1"] == {
        "f:spec": {"f:resourceAttributes": {".": {}, "f:resource": {}, "f:verb": {}}}
    }


async def test_a_rules_review_repeats_nothing_of_its_question(client: Client) -> None:
    answer = await client.call(
        "POST",
        f"{_AUTHORIZATION}/selfsubjectrulesreviews",
        {"spec": {"namespace": "default"}},
        headers=_ADMIN,
        expect=201,
    )
    assert (answer["metadata"], answer["spec"]) == ({}, {})
    assert answer["status"]["incomplete"] is False


async def test_a_token_that_nobody_has_is_said_to_be_invalid(client: Client) -> None:
    path = f"{_AUTHENTICATION}/tokenreviews"
    found = [
        (await client.call("POST", path, {"spec": {"token": token}}, headers=_ADMIN, expect=201))
        for token in ("t", "x")
    ]
    assert found[0]["status"]["authenticated"] is True
    assert found[1]["status"] == {"user": {}, "error": "invalid bearer token"}


async def test_the_options_of_a_review_are_checked(client: Client) -> None:
    refused = await client.call(
        "POST",
        f"{_AUTHENTICATION}/selfsubjectreviews?dryRun=x",
        {},
        headers=_ADMIN,
        expect=422,
    )
    assert refused["details"]["causes"][0]["field"] == "dryRun"
