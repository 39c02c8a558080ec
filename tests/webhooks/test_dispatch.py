"""Which hook answers, within which limits, and what its failures become."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from listwatch.clock import FakeClock
from listwatch.webhooks.dispatch import REQUESTS, Answer, Dispatcher, Reply, ReviewError

REVIEW = {
    "kind": "AdmissionReview",
    "apiVersion": "admission.k8s.io/v1",
    "request": {"uid": "u1", "n": 1},
}


class Hook:
    name, path, limit, concurrency, timeout = "hook", "/hook", 200, 2, 10.0
    review = ("AdmissionReview", "admission.k8s.io/v1")

    def __init__(self, function: Callable[[dict[str, Any]], Awaitable[Answer]]) -> None:
        self._function = function

    async def answer(self, request: dict[str, Any]) -> Answer:
        return await self._function(request)

    def close(self) -> None:
        pass


async def allow(_: dict[str, Any]) -> Answer:
    return Answer({"allowed": True})


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def ask(
    dispatcher: Dispatcher, review: object = REVIEW, *, path: str = "/hook", told: str = "10s"
) -> Reply:
    body = review if isinstance(review, bytes) else msgspec.json.encode(review)
    return await dispatcher.reply(path, told, pieces(body[:10], body[10:]))


async def test_the_answer_is_a_review_with_the_uid_of_the_request() -> None:
    async def echo(request: dict[str, Any]) -> Answer:
        return Answer({"allowed": True, "n": request["n"]})

    reply = await ask(Dispatcher([Hook(echo)], clock=FakeClock()))
    assert (reply.status, reply.content_type) == (200, "application/json")
    assert msgspec.json.decode(reply.body) == {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "response": {"allowed": True, "n": 1, "uid": "u1"},
    }


@pytest.mark.parametrize(
    ("review", "status", "words"),
    [
        (b"\x00nothing", 400, "the body is no review"),
        (b"[" * 150, 400, "the body is no review"),
        ({}, 400, "the body is no review"),
        ({**REVIEW, "apiVersion": "admission.k8s.io/v1beta1"}, 400, "got AdmissionReview of"),
        ({**REVIEW, "kind": "ConversionReview"}, 400, "got ConversionReview of"),
        ({**REVIEW, "request": {}}, 400, "the review's request has no uid"),
        (b" " * 201, 413, "the review has more than 200 bytes"),
    ],
)
async def test_what_is_no_review_is_refused_in_words(
    review: object, status: int, words: str
) -> None:
    dispatcher = Dispatcher([Hook(allow)], clock=FakeClock())
    reply = await ask(dispatcher, review)
    assert reply.status == status
    assert words in reply.body.decode()
    assert dispatcher.statistics()[0].requests == {status: 1}


async def test_a_path_without_a_hook_is_not_found() -> None:
    reply = await ask(Dispatcher([Hook(allow)], clock=FakeClock()), path="/\x1b[2J")
    assert (reply.status, reply.body) == (404, b"no webhook at /\\x1b[2J")


async def test_an_unexpected_exception_is_logged_with_the_uid_and_told_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(_: dict[str, Any]) -> Answer:
        raise RuntimeError("the password is 1234")

    dispatcher = Dispatcher([Hook(fail)], clock=FakeClock())
    with caplog.at_level(logging.ERROR):
        reply = await ask(dispatcher)
    assert reply.status == 500
    assert reply.body == b"webhook hook failed; its log tells why, at request u1"
    assert caplog.messages == ["webhook hook failed, request u1"]
    assert "1234" in caplog.text
    assert dispatcher.statistics()[0].errors == 1


@pytest.mark.parametrize("given", [object(), "\ud800", {1.5j: 1}])
async def test_an_answer_that_is_no_json_is_a_failure_of_the_hook(
    caplog: pytest.LogCaptureFixture, given: object
) -> None:
    async def warn(_: dict[str, Any]) -> Answer:
        return Answer({"allowed": True, "warnings": [given]})

    dispatcher = Dispatcher([Hook(warn)], clock=FakeClock())
    assert (await ask(dispatcher)).status == 500
    assert caplog.messages == ["webhook hook failed, request u1"]
    assert dispatcher.statistics()[0].errors == 1


async def test_a_request_that_a_hook_can_not_read_is_a_bad_request() -> None:
    async def fail(_: dict[str, Any]) -> Answer:
        raise ReviewError("no operation")

    reply = await ask(Dispatcher([Hook(fail)], clock=FakeClock()))
    assert (reply.status, reply.body) == (400, b"no operation")


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("10s", 9.0), ("1s", 0.8), ("", 9.0), ("30s", 9.0), ("0s", 9.0), ("1e9s", 9.0), ("2m", 9.0)],
)
async def test_an_answer_must_come_before_the_server_gives_up(told: str, seconds: float) -> None:
    clock = FakeClock()
    ended: list[float] = []

    async def sleep(_: dict[str, Any]) -> Answer:
        try:
            await clock.sleep(1000)
        finally:
            ended.append(clock.now())
        return Answer({})

    dispatcher = Dispatcher([Hook(sleep)], clock=clock)
    begun = clock.now()
    task = asyncio.create_task(ask(dispatcher, told=told))
    await clock.advance(seconds - 0.01)
    assert not task.done()
    await clock.advance(0.02)
    reply = await task
    assert reply.status == 504
    assert ended == pytest.approx([begun + seconds])
    assert reply.body == f"webhook hook did not answer within {seconds:g} s".encode()


async def test_a_body_that_never_ends_is_given_up() -> None:
    clock = FakeClock()

    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        await clock.sleep(1000)

    dispatcher = Dispatcher([Hook(allow)], clock=clock)
    task = asyncio.create_task(dispatcher.reply("/hook", "10s", endless()))
    await clock.advance(9.1)
    assert (await task).status == 504


async def test_calls_beyond_the_hook_s_number_wait_for_their_turn() -> None:
    clock = FakeClock()
    running = most = 0

    async def count(_: dict[str, Any]) -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await clock.sleep(1)
        running -= 1
        return Answer({}, denied=True)

    dispatcher = Dispatcher([Hook(count)], clock=clock)
    tasks = [asyncio.create_task(ask(dispatcher)) for _ in range(6)]
    await clock.advance(0.5)
    assert dispatcher.statistics()[0].in_flight == 6
    await clock.advance(3)
    assert [(await task).status for task in tasks] == [200] * 6
    state = dispatcher.statistics()[0]
    assert (most, state.in_flight, state.denied) == (2, 0, 6)
    assert state.latency.count == 6
    assert state.latency.sum == pytest.approx(2 * (1 + 2 + 3))


async def test_slow_senders_keep_no_proper_review_waiting() -> None:
    clock = FakeClock()

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await clock.sleep(1000)

    dispatcher = Dispatcher([Hook(allow)], clock=clock)
    tasks = [
        asyncio.create_task(dispatcher.reply("/hook", "10s", slow())) for _ in range(REQUESTS * 2)
    ]
    await clock.settle()
    assert (await ask(dispatcher)).status == 200
    await clock.advance(9.1)
    assert {(await task).status for task in tasks} == {504}


async def test_a_cancelled_future_in_a_hook_is_a_failure_of_that_request_alone() -> None:
    async def fail(_: dict[str, Any]) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    reply = await ask(Dispatcher([Hook(fail)], clock=FakeClock()))
    assert reply.status == 500
