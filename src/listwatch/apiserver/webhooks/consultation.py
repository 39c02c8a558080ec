"""The webhooks' answers for one request so far, and the open questions.

A write runs in one step, without awaits, so that it happens completely or not at all. If a
webhook's answer is missing, it raises `Unanswered` before it has changed anything. The webhook is
called, and the write runs again from its start, now with the answer. Concurrent changes lead to new
questions, which are asked too, as when a real server retries an update.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence  # noqa: TC003 - Structs evaluate them
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from listwatch.apiserver import refusal
from listwatch.errors import ListWatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from listwatch.clock import Clock

_T = TypeVar("_T")
#: After this many rounds give up: others change the object faster than webhooks answer.
_ROUNDS = 50
#: Maximum concurrent calls of one request.
_AT_ONCE = 16
#: Maximum questions in one call, and their bytes: some milliseconds of work for the event loop.
BATCH = 100
_BATCH_BYTES = 1 << 20
#: Time limit of a request in seconds, a real server's default.
REQUEST_SECONDS = 60.0


class Question(msgspec.Struct, frozen=True):
    """A question to a webhook.

    Attributes:
        key: identifies the question; a key has the same answer throughout the request.
        ask: calls the webhook; gets the seconds that the request has left, and returns the
            answer, or raises the refusal of the request.
    """

    key: object
    ask: Callable[[float], Awaitable[Any]]


class SharedQuestion(msgspec.Struct, frozen=True):
    """A question to a webhook that can be asked together with others in one call.

    Attributes:
        key: as in `Question`.
        kin: equal for questions that can be asked together.
        subject: the object of the question.
        size: bytes of the subject.
        ask: calls the webhook; gets the subjects, and returns an answer for each, or raises the
            refusal of the request.
    """

    key: object
    kin: object
    subject: Any
    size: int
    ask: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]


class Unanswered(Exception):  # noqa: N818 - not an error: the request continues with the answers
    """Answers are missing; nothing has changed yet."""

    def __init__(self, questions: Sequence[Question | SharedQuestion]) -> None:
        super().__init__(f"{len(questions)} webhooks have not been asked yet")
        self.questions = questions


class AllottedTimeError(ListWatchError):
    """504: the request's time limit has expired."""


class Consultation:
    """The answers that one request has received. For one event loop.

    Args:
        clock: times the request.
        seconds: time limit of all webhooks together.
    """

    def __init__(self, clock: Clock, seconds: float = REQUEST_SECONDS) -> None:
        self._clock = clock
        self._end = clock.now() + seconds
        #: when the request came, in seconds since 1970; the same at each attempt
        self.time = clock.time()
        self._answers: dict[object, tuple[Any, Exception | None]] = {}
        self._drawn: list[Any] = []
        self._draws = 0

    def draw(self, make: Callable[[], _T]) -> _T:
        """Return the value that an earlier attempt made here, such as a uid, or make it.

        All attempts take the same steps up to the first new question.
        """
        if self._draws == len(self._drawn):
            self._drawn.append(make())
        made: _T = self._drawn[self._draws]
        self._draws += 1
        return made

    def answer(self, question: Question | SharedQuestion) -> Any:
        """Return the answer to a question, or raise its exception.

        Raises:
            Unanswered: the webhook has not been called.
        """
        known = self._answers.get(question.key)
        if known is None:
            raise Unanswered((question,))
        answer, error = known
        if error is not None:
            raise error
        return answer

    def answers(self, questions: Sequence[Question]) -> list[tuple[object, Any, Exception | None]]:
        """Return key, answer and error of questions, in order of the answers.

        Raises:
            Unanswered: with all open questions.
        """
        wanted = {question.key for question in questions}
        missing = [question for question in questions if question.key not in self._answers]
        if missing:
            raise Unanswered(missing)
        return [(key, *known) for key, known in self._answers.items() if key in wanted]

    async def settle(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Run something until no question is open; return its result.

        Raises:
            AllottedTimeError: the request's time limit has expired.
            ConflictError: 409, the object has changed again and again.
        """
        for _ in range(_ROUNDS):
            self._draws = 0
            try:
                with _as_current(self):
                    return await attempt()
            except Unanswered as unanswered:
                await self._ask(unanswered.questions)
        raise refusal.server_error("the object changes faster than webhooks answer")

    async def _ask(self, questions: Sequence[Question | SharedQuestion]) -> None:
        """Ask all these questions, several at a time."""
        gate = asyncio.Semaphore(_AT_ONCE)
        left = max(0.0, self._end - self._clock.now())

        async def ask(question: Question) -> None:
            async with gate:
                try:
                    answer, error = await question.ask(left), None
                except ListWatchError as refused:
                    answer, error = None, refused
            self._answers[question.key] = (answer, error)

        async def ask_together(batch: Sequence[SharedQuestion]) -> None:
            async with gate:
                try:
                    answers = await batch[0].ask([question.subject for question in batch])
                except ListWatchError as refused:
                    self._answers |= {question.key: (None, refused) for question in batch}
                    return
            for question, answer in zip(batch, answers, strict=True):
                self._answers[question.key] = (answer, None)

        try:
            async with self._clock.timeout(left), asyncio.TaskGroup() as group:
                for question in questions:
                    if isinstance(question, Question):
                        group.create_task(ask(question))
                for batch in _batches(questions):
                    group.create_task(ask_together(batch))
        except TimeoutError:
            raise AllottedTimeError from None


def _batches(questions: Iterable[Question | SharedQuestion]) -> list[list[SharedQuestion]]:
    """Return the questions that can be asked together, each once, by call."""
    batches: list[list[SharedQuestion]] = []
    filling: dict[object, tuple[list[SharedQuestion], int]] = {}
    seen: set[object] = set()
    for question in questions:
        if isinstance(question, Question) or question.key in seen:
            continue
        seen.add(question.key)
        batch, size = filling.get(question.kin, ([], 0))
        if not batch or len(batch) == BATCH or size + question.size > _BATCH_BYTES:
            batch, size = [], 0
            batches.append(batch)
        batch.append(question)
        filling[question.kin] = batch, size + question.size
    return batches


#: of the current request, if it can call webhooks
CURRENT: ContextVar[Consultation | None] = ContextVar("consultation", default=None)


@contextmanager
def _as_current(consultation: Consultation) -> Iterator[None]:
    token = CURRENT.set(consultation)
    try:
        yield
    finally:
        CURRENT.reset(token)


def can_ask() -> bool:
    """Return whether the current request can call webhooks."""
    return CURRENT.get() is not None


def drawn(make: Callable[[], _T]) -> _T:
    """Return the value made here at the request's first attempt, such as a uid."""
    consultation = CURRENT.get()
    return make() if consultation is None else consultation.draw(make)


def ask(question: Question | SharedQuestion) -> Any:
    """Return the current request's answer to a question.

    Raises:
        Unanswered: there is none yet.
    """
    consultation = CURRENT.get()
    if consultation is None:
        raise Unanswered((question,))
    return consultation.answer(question)


def ask_each(questions: Sequence[Question]) -> list[tuple[object, Any, Exception | None]]:
    """Return key, answer and error of several questions, in order of the answers.

    Raises:
        Unanswered: with all open questions.
    """
    consultation = CURRENT.get()
    if consultation is None:
        raise Unanswered(questions)
    return consultation.answers(questions)


def in_thread(key: object, work: Callable[[], _T]) -> _T:
    """Return the result of work done in a thread while the request waits.

    Runs it at once if no request can wait. The work must not change anything visible.

    Args:
        key: identifies the work; a key has the same result throughout the request.
        work: the work.
    """
    if not can_ask():
        return work()
    found: _T = ask(Question(key, lambda _: asyncio.to_thread(work)))
    return found


def ask_all(attempts: Sequence[Callable[[], _T]]) -> list[_T]:
    """Return the result of each attempt; ask the open questions of all attempts at once.

    Raises:
        Unanswered: with the questions of all attempts.
    """
    results: list[_T] = []
    open_: list[Question | SharedQuestion] = []
    for attempt in attempts:
        try:
            results.append(attempt())
        except Unanswered as unanswered:
            open_ += unanswered.questions
    if open_:
        raise Unanswered(open_)
    return results
