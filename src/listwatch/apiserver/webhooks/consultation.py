"""What webhooks have said about one request so far, and the questions that are still open.

A write runs in one step, without awaits, so that it either happens as a whole or not at all. Where
a webhook's answer is missing, it raises `Unanswered` before it has changed anything; the webhook is
asked, and the write runs again from its beginning, now with the answer. What another request has
changed meanwhile makes other questions, which are asked too, as a real server does when it tries
an update again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable  # noqa: TC003 - of a Struct, which reads them
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from listwatch.apiserver import refusal
from listwatch.errors import ListWatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from listwatch.clock import Clock

_T = TypeVar("_T")
#: After so many rounds others change the same object faster than webhooks answer.
_ROUNDS = 50
#: So many questions of one request are asked at once.
_AT_ONCE = 16
#: Seconds that a request has, as a real server's default.
REQUEST_SECONDS = 60.0


class Question(msgspec.Struct, frozen=True):
    """A question to a webhook.

    Attributes:
        key: what is asked; the same key has the same answer for as long as the request lasts.
        ask: calls the webhook; returns the answer, or raises what forbids the request.
    """

    key: object
    ask: Callable[[], Awaitable[Any]]


class Unanswered(Exception):  # noqa: N818 - not an error: the request goes on with the answers
    """Answers are missing; nothing has changed yet."""

    def __init__(self, questions: Sequence[Question]) -> None:
        super().__init__(f"{len(questions)} webhooks have not been asked yet")
        self.questions = questions


class AllottedTimeError(ListWatchError):
    """504: the time that the client gave its request is over."""


class Consultation:
    """The answers that one request has got. For one event loop.

    Args:
        clock: times the request.
        seconds: how long webhooks may take altogether.
    """

    def __init__(self, clock: Clock, seconds: float = REQUEST_SECONDS) -> None:
        self._clock = clock
        self._end = clock.now() + seconds
        #: when the request came, in seconds since 1970: the same at each attempt
        self.time = clock.time()
        self._answers: dict[object, tuple[Any, Exception | None]] = {}
        self._drawn: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[], _T]) -> _T:
        """Return what was made under a name at the first attempt, such as a uid."""
        if name not in self._drawn:
            self._drawn[name] = make()
        made: _T = self._drawn[name]
        return made

    def answer(self, question: Question) -> Any:
        """Return the answer to a question, or raise what it was answered with.

        Raises:
            Unanswered: the webhook has not been asked.
        """
        known = self._answers.get(question.key)
        if known is None:
            raise Unanswered((question,))
        answer, error = known
        if error is not None:
            raise error
        return answer

    def first(self, keys: Sequence[object]) -> Sequence[object]:
        """Return the keys in the order in which their answers came."""
        wanted = set(keys)
        return [key for key in self._answers if key in wanted]

    async def settle(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Run something until nothing is unanswered; returns what it returns.

        Raises:
            AllottedTimeError: the request's time is over.
            ConflictError: 409, the object has been changed again and again meanwhile.
        """
        for _ in range(_ROUNDS):
            try:
                with _as_current(self):
                    return await attempt()
            except Unanswered as unanswered:
                await self._ask(unanswered.questions)
        raise refusal.server_error("the object changes faster than webhooks answer")

    async def _ask(self, questions: Sequence[Question]) -> None:
        """Ask all of these, several at a time."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def ask(question: Question) -> None:
            async with gate:
                try:
                    answer, error = await question.ask(), None
                except ListWatchError as refused:
                    answer, error = None, refused
            self._answers[question.key] = (answer, error)

        try:
            left = self._clock.timeout(max(0.0, self._end - self._clock.now()))
            async with left, asyncio.TaskGroup() as group:
                for question in questions:
                    group.create_task(ask(question))
        except TimeoutError:
            raise AllottedTimeError from None


#: of the request that is being answered, where webhooks can be asked
CURRENT: ContextVar[Consultation | None] = ContextVar("consultation", default=None)


@contextmanager
def _as_current(consultation: Consultation) -> Iterator[None]:
    token = CURRENT.set(consultation)
    try:
        yield
    finally:
        CURRENT.reset(token)


def can_ask() -> bool:
    """Tell whether a request is being answered for which webhooks can be asked."""
    return CURRENT.get() is not None


def once(name: str, make: Callable[[], _T]) -> _T:
    """Return what was made under a name at the request's first attempt, such as a uid."""
    consultation = CURRENT.get()
    return make() if consultation is None else consultation.once(name, make)


def ask(question: Question) -> Any:
    """Return the answer that the current request has to a question.

    Raises:
        Unanswered: it has none yet.
    """
    consultation = CURRENT.get()
    if consultation is None:
        raise Unanswered((question,))
    return consultation.answer(question)


def ask_all(attempts: Sequence[Callable[[], _T]]) -> list[_T]:
    """Return what each returns; where some are unanswered, all their questions are asked at once.

    Raises:
        Unanswered: with the questions of all.
    """
    results: list[_T] = []
    open_: list[Question] = []
    for attempt in attempts:
        try:
            results.append(attempt())
        except Unanswered as unanswered:
            open_ += unanswered.questions
    if open_:
        raise Unanswered(open_)
    return results
