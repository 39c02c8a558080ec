"""Answers the reviews of all webhooks, whatever they review: which hook, how many, how long."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from listwatch.clock import Clock, in_own_task, stray
from listwatch.errors import ListWatchError
from listwatch.printable import printable
from listwatch.webhooks.bodies import Bodies, Body
from listwatch.workqueue.metrics import Histogram, HistogramStatistics

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

_logger = logging.getLogger(__name__)

#: Upper bounds of the buckets of a hook's latency, in seconds.
LATENCY_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10)
#: Maximum requests that are answered at once, of all hooks together.
REQUESTS: Final = 100
#: The API server's own limit of a request is 3 MiB, and a review has the object twice.
REVIEW_BYTES: Final = 7 * 1024 * 1024
#: The part of the server's time limit that is kept for the way there and back, and its maximum.
_MARGIN: Final = 0.2
_MARGIN_SECONDS: Final = 1.0


class Answer(msgspec.Struct, frozen=True):
    """A hook's answer.

    Attributes:
        response: the fields of the review's `response`, without uid.
        denied: it is a refusal, for the metrics.
    """

    response: Mapping[str, Any]
    denied: bool = False


class ReviewHook(Protocol):
    """Answers the reviews that the API server sends to one path."""

    @property
    def name(self) -> str:
        """A unique name, for metrics and messages."""
        ...

    @property
    def path(self) -> str:
        """The path, such as "/validate/websites"."""
        ...

    @property
    def review(self) -> tuple[str, str]:
        """Kind and apiVersion of its reviews: ("AdmissionReview", "admission.k8s.io/v1")."""
        ...

    @property
    def concurrency(self) -> int:
        """Maximum calls of `answer` at once."""
        ...

    @property
    def limit(self) -> int:
        """Maximum bytes of a review."""
        ...

    @property
    def timeout(self) -> float:
        """Seconds that the API server waits, unless it says."""
        ...

    def close(self) -> None:
        """Called when the server has ended."""
        ...

    async def answer(self, request: dict[str, Any]) -> Answer:
        """Answer one review.

        Cancelled when the time is over.

        Args:
            request: the review's `request`.

        Raises:
            ReviewError: the request can't be read.
            Exception: it failed; the API server then applies the hook's failure policy.
        """
        ...


class ReviewError(ListWatchError):
    """A request that is no review of the expected kind; the message says why."""


class Reply(msgspec.Struct, frozen=True):
    """An HTTP response: a review in JSON, or text about a failure."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class HookStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one hook has done."""

    name: str
    #: Requests by HTTP status code.
    requests: Mapping[int, int]
    #: Requests that it denied.
    denied: int
    #: Requests that it failed to answer.
    errors: int
    #: Requests that it answers now.
    in_flight: int
    #: Time from the request's headers to its response.
    latency: HistogramStatistics


class _Place:
    """One hook, its limits and its numbers."""

    def __init__(self, hook: ReviewHook) -> None:
        self.hook = hook
        self.slots = asyncio.Semaphore(hook.concurrency)
        self.requests: Counter[int] = Counter()
        self.denied = 0
        self.in_flight = 0
        self.latency = Histogram(LATENCY_BOUNDS)

    def statistics(self) -> HookStatistics:
        return HookStatistics(
            name=self.hook.name,
            requests=dict(self.requests),
            denied=self.denied,
            errors=sum(n for code, n in self.requests.items() if code != 200),
            in_flight=self.in_flight,
            latency=self.latency.statistics(),
        )


class _Refused(Exception):  # noqa: N818 - a reply, not a failure of ours
    def __init__(self, status: int, words: str) -> None:
        self.reply = Reply(status, words.encode())


class _Review(msgspec.Struct, rename="camel"):
    kind: str
    api_version: str
    request: dict[str, Any]


class Dispatcher:
    """Finds the hook of a path, and answers within the time limit. For one event loop.

    Args:
        hooks: with different paths and names.
        clock: the time.
    """

    def __init__(self, hooks: Iterable[ReviewHook], *, clock: Clock) -> None:
        self._clock = clock
        self._bodies = Bodies()
        self._requests = asyncio.Semaphore(REQUESTS)
        self._places = {hook.path: _Place(hook) for hook in hooks}

    def statistics(self) -> list[HookStatistics]:
        """Return what each hook has done."""
        return [place.statistics() for place in self._places.values()]

    async def reply(self, path: str, told: str, pieces: "AsyncIterable[bytes]") -> Reply:
        """Return the response to a request; never raises but when cancelled.

        Args:
            path: of the request.
            told: the query parameter `timeout`, such as "10s"; "" for none.
            pieces: the body.
        """
        place = self._places.get(path)
        if place is None:
            return Reply(404, f"no webhook at {printable(path)}".encode())
        began = self._clock.now()
        place.in_flight += 1
        try:
            reply = await self._within(place, _limit(told, place.hook.timeout), pieces)
        finally:
            place.in_flight -= 1
        place.latency.observe(self._clock.now() - began)
        place.requests[reply.status] += 1
        return reply

    async def _within(self, place: _Place, seconds: float, pieces: "AsyncIterable[bytes]") -> Reply:
        name = place.hook.name
        limit = self._clock.timeout(seconds)
        try:
            # Slow senders take no turn of those whose review is there.
            async with limit:
                with self._bodies.body() as body:
                    await _read(pieces, place.hook.limit, body)
                    async with self._requests:
                        review = _decode(body.data, place.hook.review)
                        async with place.slots:
                            answer, text = await self._answer(place.hook, review)
        except _Refused as refused:
            return refused.reply
        except TimeoutError:
            if not limit.expired:
                raise
            _logger.warning("webhook %s did not answer within %g s", name, seconds)
            return Reply(504, f"webhook {name} did not answer within {seconds:g} s".encode())
        if answer.denied:
            place.denied += 1
        return Reply(200, text, "application/json")

    async def _answer(self, hook: ReviewHook, review: _Review) -> tuple[Answer, bytes]:
        uid = review.request.get("uid")
        try:
            answer = await in_own_task(lambda: hook.answer(review.request))
            # A function may have put anything into its warnings, annotations and problems.
            return answer, _encoded(review, answer)
        except ReviewError as error:
            raise _Refused(400, str(error)) from None
        except asyncio.CancelledError as cancellation:
            self._log(hook, uid, stray(cancellation))
        except Exception as error:  # noqa: BLE001 - logged, and the API server gets 500
            self._log(hook, uid, error)
        # The exception's text may contain secrets, and anybody may read the refusal.
        words = f"webhook {hook.name} failed; its log tells why, at request {printable(str(uid))}"
        raise _Refused(500, words)

    @staticmethod
    def _log(hook: ReviewHook, uid: object, error: Exception) -> None:
        words = printable(str(uid))
        _logger.error("webhook %s failed, request %s", hook.name, words, exc_info=error)


def _limit(told: str, timeout: float) -> float:
    """Return the seconds for an answer, fewer than the server waits."""
    number = told.removesuffix("s")
    waits = float(number) if number.isdecimal() and len(number) <= 4 else timeout
    waits = min(waits or timeout, timeout)
    return waits - min(_MARGIN_SECONDS, waits * _MARGIN)


async def _read(pieces: "AsyncIterable[bytes]", limit: int, body: Body) -> None:
    try:
        async for piece in pieces:
            if len(body.data) + len(piece) > limit:
                raise _Refused(413, f"the review has more than {limit} bytes")
            await body.add(piece)
    except OSError as error:
        raise _Refused(400, f"the body ends early: {error}") from None


def _decode(body: bytearray, expected: tuple[str, str]) -> _Review:
    try:
        review = msgspec.json.decode(body, type=_Review)
    except (msgspec.MsgspecError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise _Refused(400, f"the body is no review: {why}") from None
    if (review.kind, review.api_version) != expected:
        given = printable(f"{review.kind} of {review.api_version}")
        raise _Refused(400, f"expected {expected[0]} of {expected[1]}, got {given}")
    if not isinstance(review.request.get("uid"), str):
        raise _Refused(400, "the review's request has no uid")
    return review


def _encoded(review: _Review, answer: Answer) -> bytes:
    made = {
        "kind": review.kind,
        "apiVersion": review.api_version,
        "response": {**answer.response, "uid": review.request["uid"]},
    }
    return msgspec.json.encode(made)
