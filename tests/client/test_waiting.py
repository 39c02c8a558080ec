"""A wait ends with the first matching state, or says why there was none."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import pytest

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.cache.list_watch import ListerWatcher
from listwatch.client import Client, Config, reading
from listwatch.client.waiting import has_condition, wait_until
from listwatch.clock import FakeClock
from listwatch.errors import BadRequestError, ForbiddenError, NotFoundError
from listwatch.objects import Object, decode_object
from listwatch.testing.scripted_server import ScriptedServer, respond


@pytest.fixture
async def real() -> AsyncIterator[Client]:
    async with (
        EmbeddedAPIServer() as server,
        Client.from_config(Config(server=server.url, namespace="default")) as client,
    ):
        yield client


def pod(name: str = "p", **meta: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, **meta},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


async def ready(client: Client, status: str) -> Object:
    conditions = {"conditions": [{"type": "Ready", "status": status, "reason": "Because"}]}
    return await client.patch("pods", "p", {"status": conditions}, subresource="status")


async def test_a_condition_that_holds_is_returned_at_once(real: Client) -> None:
    await real.create(pod())
    done = await ready(real, "True")
    assert (await real.wait_for("pods", "p", "ready")).resource_version == done.resource_version


async def test_an_object_that_comes_later_is_waited_for(real: Client) -> None:
    waiting = asyncio.create_task(real.wait_for("pods", "p", "Ready=False", seconds=20))
    await real.create(pod())
    await ready(real, "True")
    done = await ready(real, "False")
    assert (await waiting).resource_version == done.resource_version


async def test_states_that_were_short_are_seen(real: Client) -> None:
    await real.create(pod())
    seen: list[str] = []
    has_begun = asyncio.Event()

    def is_wanted(obj: Object) -> bool:
        seen.append(obj.meta.labels.get("step", ""))
        has_begun.set()
        return seen[-1] == "3"

    waiting = asyncio.create_task(real.wait_for("pods", "p", is_wanted, seconds=20))
    await has_begun.wait()
    for step in "1234":
        await real.patch("pods", "p", {"metadata": {"labels": {"step": step}}})
    assert (await waiting).meta.labels["step"] == "3"
    assert seen == ["", "1", "2", "3"]


class Limit:
    """Lets the time limit of a wait expire as soon as the wait has seen a state."""

    def __init__(self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clock = clock
        self._has_seen = asyncio.Event()

        async def noting(
            list_watch: ListerWatcher, accept: Callable[[Object | None], bool], **options: Any
        ) -> Object | None:
            def note(obj: Object | None) -> bool:
                self._has_seen.set()
                return accept(obj)

            return await wait_until(list_watch, note, **options)

        monkeypatch.setattr(reading, "wait_until", noting)

    async def expire(self, wait: Coroutine[Any, Any, object]) -> str:
        """Return the words of the error of a wait for 9 s."""
        self._has_seen.clear()
        waiting = asyncio.create_task(wait)
        await self._has_seen.wait()
        await self._clock.advance(9)
        with pytest.raises(TimeoutError) as caught:
            await waiting
        return str(caught.value)


@pytest.fixture
async def limited(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Client, Limit]]:
    clock = FakeClock()
    async with (
        EmbeddedAPIServer() as server,
        Client(Config(server=server.url, namespace="default"), clock=clock) as client,
    ):
        yield client, Limit(clock, monkeypatch)


async def test_a_time_limit_names_the_object_and_its_last_state(
    limited: tuple[Client, Limit],
) -> None:
    client, limit = limited
    await client.create(pod())
    await ready(client, "False")
    assert await limit.expire(client.wait_for("pods", "p", "Ready", seconds=9)) == (
        "pods default/p: Ready: not within 9 s; its conditions are Ready=False (Because)"
    )
    assert await limit.expire(client.wait_for("pods", "q", "Ready", seconds=9)) == (
        "pods default/q: Ready: not within 9 s; there is no such object"
    )


async def test_what_the_function_raises_ends_the_wait(real: Client) -> None:
    await real.create(pod())
    with pytest.raises(ZeroDivisionError):
        await real.wait_for("pods", "p", lambda _: 1 / 0)


@pytest.mark.parametrize(
    ("condition", "error"),
    [("", ValueError), ("=True", ValueError), (5, TypeError)],
    ids=str,
)
async def test_no_condition_is_refused(
    real: Client, condition: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="condition"):
        await real.wait_for("pods", "p", condition)


async def test_the_end_of_an_object_is_waited_for(limited: tuple[Client, Limit]) -> None:
    client, limit = limited
    await client.wait_for_deletion("pods", "p")
    made = await client.create(pod(finalizers=["example.org/keep"]))
    await client.delete("pods", "p", grace_period_seconds=0)
    words = await limit.expire(client.wait_for_deletion("pods", "p", seconds=9))
    assert words.endswith("; its finalizers are example.org/keep")
    waiting = asyncio.create_task(client.wait_for_deletion("pods", "p", uid=made.uid, seconds=20))
    await client.remove_finalizer("pods", "p", "example.org/keep")
    await client.create(pod())
    await waiting
    words = await limit.expire(client.wait_for_deletion("pods", "p", seconds=9))
    assert words.endswith("; it is not being deleted")
    await client.wait_for_deletion("pods", "p", uid=made.uid)


async def test_a_refusal_that_lasts_ends_the_wait() -> None:
    async with ScriptedServer() as server:
        server.answers["/api"] = {"versions": ["v1"]}
        server.answers["/apis"] = {"groups": []}
        server.answers["/api/v1"] = {
            "kind": "APIResourceList",
            "resources": [{"name": "pods", "namespaced": True, "kind": "Pod"}],
        }
        server.answers["/api/v1/namespaces/shop/pods"] = respond(
            {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}, code=403
        )
        async with Client.from_config(Config(server=server.url, namespace="shop")) as client:
            with pytest.raises(ForbiddenError):
                await client.wait_for("pods", "p", "Ready", seconds=20)
            with pytest.raises(ForbiddenError):
                await client.wait_for_deletion("pods", "p", seconds=20)


@pytest.mark.parametrize(
    ("status", "generation", "holds"),
    [
        ({}, 1, False),
        ({"conditions": None}, 1, False),
        ({"conditions": "Ready"}, 1, False),
        ({"conditions": [5, {"type": "Ready", "status": "True"}]}, 1, True),
        ({"conditions": [{"type": "READY", "status": "true"}]}, 1, True),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, 1, False),
        ({"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}, 2, False),
        ({"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]}, 2, False),
        ({"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True"}]}, 2, True),
    ],
    ids=str,
)
def test_a_condition_of_an_older_generation_does_not_count(
    status: Any, generation: int, holds: bool
) -> None:
    meta = {"name": "o", "uid": "u", "generation": generation}
    obj = decode_object(
        msgspec.json.encode({"kind": "K", "apiVersion": "v1", "metadata": meta, "status": status})
    )
    assert has_condition(obj, "Ready") is holds


async def test_an_unknown_pod_has_no_log(real: Client) -> None:
    with pytest.raises(NotFoundError):
        [line async for line in real.logs("none")]
    await real.create(pod())
    with pytest.raises(BadRequestError, match="pod p does not have a host assigned"):
        [line async for line in real.logs("p")]


async def test_a_log_comes_in_lines_whatever_its_pieces() -> None:
    whole = b"one\n\ntwo \xc3\xa9\r\nbad \xff\nlast"
    async with ScriptedServer() as server:
        target = (
            "/api/v1/namespaces/shop/pods/p/log?container=c&follow=true&previous=true"
            "&sinceSeconds=0&tailLines=5&timestamps=true"
        )
        server.answers[target] = respond(whole, type_="text/plain")
        async with Client.from_config(Config(server=server.url, namespace="shop")) as client:
            lines = client.logs(
                "p",
                container="c",
                follow=True,
                previous=True,
                since_seconds=0,
                tail_lines=5,
                timestamps=True,
            )
            assert [line async for line in lines] == ["one", "", "two é\r", "bad \ufffd", "last"]


async def test_a_line_without_end_comes_in_pieces() -> None:
    async with ScriptedServer() as server:
        server.answers["/api/v1/namespaces/shop/pods/p/log"] = respond(
            "é".encode() * 3_000_000 + b"\nend\n", type_="text/plain"
        )
        async with Client.from_config(Config(server=server.url, namespace="shop")) as client:
            pieces = [line async for line in client.logs("p")]
    assert "".join(pieces) == "é" * 3_000_000 + "end"
    assert len(pieces) > 2
