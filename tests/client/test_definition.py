"""A resource counts as gone only with proof that it is no longer defined."""

from typing import Any

import pytest

from listwatch.cache.list_watch import KnowsDefinition, KnowsServer, ListOptions
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.client.definition import Definition
from listwatch.client.resource import Resource
from listwatch.clock import FakeClock
from listwatch.errors import DisconnectedError, NotFoundError
from listwatch.testing.scripted_server import ScriptedServer, respond

WIDGETS = Resource(group="e.com", version="v1", plural="widgets", kind="Widget")
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.e.com"
STATUS = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}
NOT_FOUND = respond({**STATUS, "code": 404}, code=404)
FORBIDDEN = respond({**STATUS, "reason": "Forbidden", "code": 403}, code=403)
NO_PAGE = respond(b"404 page not found", code=404, type_="text/plain")
UNAVAILABLE = respond(b"starting", code=503, type_="text/plain")


def aggregated(*resources: str, freshness: str = "Current", group: str = "e.com") -> Any:
    """Return a discovery response with a group, and with `apps`, which is always there."""
    listed = [
        {"resource": name, "scope": "Namespaced", "responseKind": {"kind": "X"}}
        for name in resources
    ]
    version = {"version": "v2", "resources": listed, "freshness": freshness}
    apps = {"version": "v1", "resources": [], "freshness": "Current"}
    items = [{"metadata": {"name": "apps"}, "versions": [apps]}]
    if group:
        items.append({"metadata": {"name": group}, "versions": [version]})
    return {"kind": "APIGroupDiscoveryList", "items": items}


def plain(*versions: str) -> Any:
    named = [{"groupVersion": f"e.com/{v}", "version": v} for v in versions]
    apps = {"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]}
    groups = [apps, {"name": "e.com", "versions": named}] if named else [apps]
    return {"kind": "APIGroupList", "groups": groups}


def resources(*names: str) -> Any:
    return {"kind": "APIResourceList", "resources": [{"name": n, "kind": "X"} for n in names]}


async def is_gone(
    answers: dict[str, Any],
    *,
    seconds: float = 10.0,
    then: dict[str, Any] | None = None,
    resource: Resource = WIDGETS,
) -> tuple[bool, list[str]]:
    """Ask twice, `seconds` apart; return the second answer and all requests."""
    clock = FakeClock()
    async with (
        ScriptedServer() as server,
        Client.from_config(Config(server=server.url), clock=clock) as client,
    ):
        definition = Definition(client.http, clock)
        server.answers.update(answers)
        first = await definition.is_gone(resource)
        await clock.advance(seconds)
        server.answers.update(then or {})
        second = await definition.is_gone(resource)
        assert second or not first
        return second, [target.removeprefix("GET ") for target in server.targets]


GONE = {
    "the definition is not found": {CRD: NOT_FOUND},
    "discovery lacks the group": {CRD: FORBIDDEN, "/apis": aggregated(group="")},
    "discovery lacks the resource": {CRD: FORBIDDEN, "/apis": aggregated("gadgets")},
    "a server without definitions": {CRD: NO_PAGE, "/apis": aggregated(group="")},
    "plain discovery lacks the group": {CRD: FORBIDDEN, "/apis": plain()},
    "plain discovery lacks the resource": {
        CRD: FORBIDDEN,
        "/apis": plain("v1", "v2"),
        "/apis/e.com/v1": resources("gadgets"),
        "/apis/e.com/v2": resources(),
    },
}

NO_PROOF = {
    "nothing is known": {},
    "all is unavailable": {CRD: UNAVAILABLE, "/apis": UNAVAILABLE},
    "the definition is there": {CRD: {"kind": "X"}, "/apis": aggregated(group="")},
    "another server's 404": {CRD: NO_PAGE, "/apis": NO_PAGE},
    "another version is served": {CRD: FORBIDDEN, "/apis": aggregated("widgets")},
    "an aggregated group fails": {
        CRD: FORBIDDEN,
        "/apis": aggregated(freshness="Stale", group="metrics.x"),
    },
    "no group at all": {CRD: FORBIDDEN, "/apis": {"kind": "APIGroupDiscoveryList", "items": []}},
    "an odd group": {
        CRD: FORBIDDEN,
        "/apis": {**aggregated(group=""), "items": [*aggregated(group="")["items"], None]},
    },
    "a group without versions": {
        CRD: FORBIDDEN,
        "/apis": {"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": "apps"}}]},
    },
    "no discovery": {CRD: FORBIDDEN, "/apis": respond(b"<html>", type_="text/html")},
    "plain: no group at all": {CRD: FORBIDDEN, "/apis": {"kind": "APIGroupList"}},
    "plain: a version fails": {
        CRD: FORBIDDEN,
        "/apis": plain("v1", "v2"),
        "/apis/e.com/v1": resources(),
        "/apis/e.com/v2": UNAVAILABLE,
    },
    "plain: a version is odd": {
        CRD: FORBIDDEN,
        "/apis": plain("v1"),
        "/apis/e.com/v1": {"kind": "APIResourceList"},
    },
    "plain: another version is served": {
        CRD: FORBIDDEN,
        "/apis": plain("v1", "v2"),
        "/apis/e.com/v1": resources(),
        "/apis/e.com/v2": resources("widgets"),
    },
}


@pytest.mark.parametrize("case", GONE)
async def test_what_is_certainly_gone_is_gone(case: str) -> None:
    assert (await is_gone(GONE[case]))[0]


@pytest.mark.parametrize("case", NO_PROOF)
async def test_whatever_else_is_no_proof(case: str) -> None:
    assert not (await is_gone(NO_PROOF[case], seconds=60))[0]


async def test_two_answers_of_discovery_must_be_ten_seconds_apart() -> None:
    lacks = {CRD: FORBIDDEN, "/apis": aggregated(group="")}
    gone, asked = await is_gone(lacks, seconds=9.9)
    assert not gone
    assert asked == [CRD, "/apis"]
    gone, asked = await is_gone(lacks, seconds=10)
    assert gone
    assert asked == [CRD, "/apis", "/apis"]
    assert not (await is_gone(lacks, seconds=301))[0]


async def test_two_answers_of_discovery_must_both_lack_it() -> None:
    lacks = {CRD: FORBIDDEN, "/apis": aggregated(group="")}
    assert not (await is_gone(lacks, then={"/apis": aggregated("widgets")}))[0]
    assert not (await is_gone({**lacks, "/apis": aggregated("widgets")}, then=lacks))[0]


@pytest.mark.parametrize("group", ["", "apps", "resource.k8s.io"])
async def test_what_is_built_in_has_no_definition(group: str) -> None:
    """A list may get 404 from an older replica that does not know the resource yet."""
    resource = Resource(group=group, version="v1", plural="widgets", kind="Widget")
    served = {"/apis": aggregated("widgets", group="resource.k8s.io")}
    _, asked = await is_gone(served, resource=resource)
    assert not [path for path in asked if "customresourcedefinitions" in path]


# --- Through the client's list and watch ---------------------------------------------------------


async def listed(source: Any) -> None:
    await source.list(ListOptions(limit=500))


async def test_the_list_must_say_so_first() -> None:
    clock = FakeClock()
    path = "/apis/e.com/v1/widgets"
    empty = {"kind": "WidgetList", "apiVersion": "e.com/v1", "metadata": {}, "items": []}
    async with (
        ScriptedServer() as server,
        Client.from_config(Config(server=server.url), clock=clock) as client,
    ):
        named = {"groupVersion": "e.com/v1", "version": "v1"}
        server.answers["/api"] = {"versions": []}
        server.answers["/apis"] = {"groups": [{"name": "e.com", "versions": [named]}]}
        one = {"name": "widgets", "kind": "Widget", "namespaced": True}
        server.answers["/apis/e.com/v1"] = {"resources": [one]}
        server.answers[path] = empty
        server.answers[CRD] = NOT_FOUND
        source = client.list_watch("widgets")
        assert isinstance(source, KnowsDefinition)
        assert isinstance(source, KnowsServer)
        assert await source.is_gone() is False
        await listed(source)
        assert await source.is_gone() is False
        server.answers[path] = respond(b"<html>", code=404, type_="text/html")
        server.answers["/apis"] = {"groups": []}
        server.answers.pop("/apis/e.com/v1")
        with pytest.raises(NotFoundError):
            await listed(source)
        assert await source.is_gone() is False
        for answer in (NOT_FOUND, NO_PAGE):
            # Discovery no longer has it, but the list is still requested.
            server.answers[path] = answer
            with pytest.raises(NotFoundError):
                await listed(source)
            assert server.targets[-1] == f"GET {path}?limit=500"
            assert await source.is_gone() is True
        asked = len(server.targets)
        for _ in range(10):
            with pytest.raises(NotFoundError):
                await listed(source)
        assert len(server.targets) == asked + 10  # no discovery
        await clock.advance(60)
        server.answers[path] = empty
        await listed(source)
        assert await source.is_gone() is False


async def test_a_connection_that_breaks_is_no_proof_but_an_error() -> None:
    async with (
        ScriptedServer() as server,
        Client.from_config(Config(server=server.url)) as client,
    ):
        server.answers[CRD] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\n"
        definition = Definition(client.http, FakeClock())
        with pytest.raises(DisconnectedError):
            await definition.is_gone(WIDGETS)
        server.answers[CRD] = respond({**STATUS, "reason": "Unauthorized", "code": 401}, code=401)
        server.answers["/apis"] = aggregated("widgets")
        assert await definition.is_gone(WIDGETS) is False
