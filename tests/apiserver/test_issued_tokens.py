"""Service account tokens: issued, accepted, and expired or revoked in time."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.access.auth import read_tokens
from listwatch.clock import FakeClock

_ADMIN = {"Authorization": "Bearer t"}
_ACCOUNTS = f"{CORE}/serviceaccounts"
_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


class World:
    """A server with a service account `a`."""

    def __init__(self, client: Client, clock: FakeClock) -> None:
        self.client = client
        self.clock = clock

    async def call(self, method: str, path: str, body: Any = None, expect: int = 201) -> Any:
        """Send a request as the administrator."""
        return await self.client.call(method, path, body, headers=_ADMIN, expect=expect)

    async def token(self, **spec: Any) -> str:
        """Issue a token of the account."""
        answer = await self.call("POST", f"{_ACCOUNTS}/a/token", {"spec": spec})
        return str(answer["status"]["token"])

    async def who(self, token: str) -> str:
        """Return the user that a token authenticates; "" if it is refused."""
        headers = {"Authorization": f"Bearer {token}"}
        answer = await self.client.call("POST", _WHO, {}, headers=headers)
        return str(answer["status"]["userInfo"]["username"]) if answer["kind"] != "Status" else ""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    tokens = read_tokens('t,admin,1,"system:masters"\n', "tokens")
    clock = FakeClock()
    server = EmbeddedAPIServer(tokens=tokens, controllers=False, clock=clock)
    async with server, Client(server) as client:
        made = World(client, clock)
        await made.call("POST", _ACCOUNTS, {"metadata": {"name": "a"}})
        yield made


async def test_a_token_stands_for_its_account_until_its_time_is_over(world: World) -> None:
    token = await world.token(expirationSeconds=600)
    assert await world.who(token) == "system:serviceaccount:default:a"
    await world.clock.advance(599)
    assert await world.who(token) == "system:serviceaccount:default:a"
    await world.clock.advance(1)
    assert await world.who(token) == ""


async def test_a_token_ends_with_its_account(world: World) -> None:
    token = await world.token()
    await world.call("DELETE", f"{_ACCOUNTS}/a", expect=200)
    await world.call("POST", _ACCOUNTS, {"metadata": {"name": "a"}})
    assert await world.who(token) == ""


async def test_a_bound_token_ends_with_its_object(world: World) -> None:
    await world.call("POST", f"{CORE}/secrets", {"metadata": {"name": "s"}})
    bound = {"kind": "Secret", "apiVersion": "v1", "name": "s"}
    token = await world.token(boundObjectRef=bound)
    assert await world.who(token) == "system:serviceaccount:default:a"
    await world.call("DELETE", f"{CORE}/secrets/s", expect=200)
    assert await world.who(token) == ""


async def test_a_token_for_others_or_of_others_is_nobodys(world: World) -> None:
    assert await world.who(await world.token(audiences=["vault"])) == ""
    token = await world.token()
    header, body, signature = token.split(".")
    for forged in (f"{header}.{body}.", f"{header}.{body[:-2]}.{signature}", "..", "x.y.z", "ü"):
        assert await world.who(forged) == ""


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        ({"expirationSeconds": 10}, 422, "may not specify a duration less than 10 minutes"),
        ({"boundObjectRef": {"kind": "Pod", "name": "nope"}}, 404, 'pods "nope" not found'),
        ({"boundObjectRef": {"kind": "ConfigMap", "name": "x"}}, 400, "cannot bind token"),
    ],
)
async def test_a_request_that_can_not_be_met_is_refused(
    world: World, spec: dict[str, Any], code: int, words: str
) -> None:
    refused = await world.call("POST", f"{_ACCOUNTS}/a/token", {"spec": spec}, expect=code)
    assert words in refused["message"]
