"""Webhook calls for a request: each is made once, concurrently where possible."""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from listwatch.apiserver.webhooks.consultation import (
    AllottedTimeError,
    Consultation,
    Question,
    SharedQuestion,
    ask,
    ask_all,
    ask_each,
    drawn,
)
from listwatch.clock import FakeClock
from listwatch.errors import ListWatchError, StatusError


class _Webhook:
    """Count the calls."""

    def __init__(self, answer: Any = "yes") -> None:
        self.answer = answer
        self.asked = 0

    def question(self, key: object) -> Question:
        async def answer(_: float) -> Any:
            self.asked += 1
            await asyncio.sleep(0)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return Question(key, answer)


async def test_a_step_runs_again_with_each_answer_and_asks_once() -> None:
    webhook, runs = _Webhook(), 0

    async def step() -> list[str]:
        nonlocal runs
        runs += 1
        return [ask(webhook.question("a")), ask(webhook.question("b"))]

    assert await Consultation(FakeClock()).settle(step) == ["yes", "yes"]
    assert (runs, webhook.asked) == (3, 2)


async def test_questions_that_are_there_together_are_asked_together() -> None:
    webhook, runs = _Webhook(), 0

    async def step() -> list[str]:
        nonlocal runs
        runs += 1
        return ask_all([partial(ask, webhook.question(key)) for key in range(40)])

    assert await Consultation(FakeClock()).settle(step) == ["yes"] * 40
    assert (runs, webhook.asked) == (2, 40)


class _Translator:
    """Answer many questions in one call, and record the calls."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def question(self, subject: str, kin: str = "", size: int = 1) -> SharedQuestion:
        return SharedQuestion((kin, subject), kin, subject, size, self.ask)

    async def ask(self, subjects: Sequence[str]) -> list[str]:
        self.calls.append(list(subjects))
        if "bad" in subjects:
            raise ListWatchError("broken")
        return [subject.upper() for subject in subjects]

    async def settle(self, *questions: SharedQuestion) -> list[str]:
        async def step() -> list[str]:
            return ask_all([partial(ask, question) for question in questions])

        return await Consultation(FakeClock()).settle(step)


async def test_questions_of_a_kin_are_asked_in_one_call_and_each_once() -> None:
    translator = _Translator()
    asked = [translator.question(each) for each in ("a", "b", "a")]
    other = translator.question("c", "other")
    assert await translator.settle(*asked, other) == ["A", "B", "A", "C"]
    assert sorted(translator.calls) == [["a", "b"], ["c"]]


async def test_calls_with_many_questions_are_limited_in_number_and_bytes() -> None:
    translator = _Translator()
    many = [translator.question(f"{number}") for number in range(250)]
    large = [translator.question(f"{number}", "large", 400_000) for number in range(5)]
    assert len(await translator.settle(*many, *large)) == 255
    assert sorted(map(len, translator.calls)) == [1, 2, 2, 50, 100, 100]


async def test_a_failed_call_fails_all_its_questions_and_no_others() -> None:
    translator = _Translator()
    good = translator.question("c", "other")

    async def step() -> str:
        with contextlib.suppress(ListWatchError):
            ask_all([partial(ask, translator.question(each)) for each in ("a", "bad")])
        with pytest.raises(ListWatchError, match="broken"):
            ask(translator.question("a"))
        answer: str = ask(good)
        return answer

    assert await Consultation(FakeClock()).settle(step) == "C"
    assert translator.calls == [["a", "bad"], ["c"]]


async def test_a_failure_is_remembered_as_an_answer_is() -> None:
    webhook = _Webhook(ListWatchError("broken"))

    async def step() -> None:
        ask(webhook.question("a"))

    with pytest.raises(ListWatchError, match="broken"):
        await Consultation(FakeClock()).settle(step)
    assert webhook.asked == 1


async def test_answers_come_in_the_order_in_which_they_were_given() -> None:
    async def late(_: float) -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "late"

    async def early(_: float) -> str:
        return "early"

    async def step() -> list[Any]:
        asked = ask_each([Question("a", late), Question("b", early)])
        return [answer for _, answer, _ in asked]

    assert await Consultation(FakeClock()).settle(step) == ["early", "late"]


async def test_an_attempt_draws_what_the_one_before_drew_and_then_anew() -> None:
    webhook, made = _Webhook(), iter(range(10))

    async def step() -> tuple[int, int]:
        first = drawn(lambda: next(made))
        ask(webhook.question(first))
        return first, drawn(lambda: next(made))

    assert await Consultation(FakeClock()).settle(step) == (0, 1)
    assert webhook.asked == 1


async def test_a_request_whose_time_is_over_ends_although_the_webhook_is_silent() -> None:
    clock = FakeClock()
    begun = asyncio.Event()

    async def silence(_: float) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    async def step() -> None:
        ask(Question("a", silence))

    waiting = asyncio.create_task(Consultation(clock, 5.0).settle(step))
    await begun.wait()
    await clock.advance(5.0)
    with pytest.raises(AllottedTimeError):
        await waiting


async def test_a_step_that_always_has_new_questions_ends() -> None:
    webhook, keys = _Webhook(), iter(range(1000))

    async def step() -> None:
        ask(webhook.question(next(keys)))

    with pytest.raises(StatusError, match="changes faster than webhooks answer"):
        await Consultation(FakeClock()).settle(step)
