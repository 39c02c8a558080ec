"""The page of a manager: /ui at the health port."""

import html
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import msgspec

from listwatch.clock import Clock
from listwatch.local_web import PAGE_POLICY
from listwatch.printable import printable
from listwatch.runtime.key_state import KeyStates, Leadership
from listwatch.runtime.story import stories_of
from listwatch.runtime.why import Verdict
from listwatch.runtime.why_text import reconcile_lines

if TYPE_CHECKING:
    from aiohttp import web

    from listwatch.client.request_statistics import RequestStatistics
    from listwatch.runtime.caches import Cache
    from listwatch.runtime.reconcile_record import ReconcileRecord
    from listwatch.runtime.reconciler import Reconciler

#: Maximum lines of each list on the page.
MAX_ROWS: Final = 50
#: Objects of a cache whose bytes are looked at; the others are taken to be like them.
_SAMPLES: Final = 256


class ReconcilerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A reconciler; counters start with it. Ages in seconds."""

    name: str
    reconciles: int
    errors: int
    depth: int
    oldest: float
    later: int
    active: int
    workers: int
    troubled: int
    settling: int
    throttled: int
    keys: int


class CacheRow(msgspec.Struct, frozen=True, kw_only=True):
    """A cache; the age of the last data from the server in seconds. Bytes are estimated."""

    name: str
    objects: int
    bytes: int
    version: str
    ready: bool
    problem: str
    age: float | None
    queued: int


class TroubleRow(msgspec.Struct, frozen=True):
    """A key in trouble."""

    reconciler: str
    key: str
    verdict: Verdict
    words: str


class RequestRow(msgspec.Struct, frozen=True):
    """How often a kind of request got a code."""

    verb: str
    resource: str
    code: str
    count: int


class ReconcileRow(msgspec.Struct, frozen=True, kw_only=True):
    """A recent reconcile, with its requests as text."""

    reconciler: str
    key: str
    ago: float
    result: str
    error: str
    lines: list[str]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page but the story of a key."""

    manager: str
    time: float
    leadership: Leadership
    reconcilers: list[ReconcilerRow]
    troubled: list[TroubleRow]
    caches: list[CacheRow]
    requests: list[RequestRow]
    recent: list[ReconcileRow]
    failures: list[ReconcileRow]


class UiPage:
    """Serves the page of a manager; for its event loop.

    Args:
        manager: its name.
        states: knows the keys.
        leadership: returns who leads.
        reconcilers: returns all reconcilers.
        caches: returns all caches.
        requests: returns the client's statistics; None before the start.
        clock: the time.
    """

    def __init__(
        self,
        manager: str,
        states: KeyStates,
        *,
        leadership: Callable[[], Leadership],
        reconcilers: "Callable[[], Iterable[Reconciler]]",
        caches: "Callable[[], Iterable[Cache]]",
        requests: "Callable[[], RequestStatistics | None]",
        clock: Clock,
    ) -> None:
        self._manager = manager
        self._states = states
        self._leadership = leadership
        self._reconcilers = reconcilers
        self._caches = caches
        self._requests = requests
        self._clock = clock

    def overview(self) -> Overview:
        """Return the state of the manager's parts."""
        found = self._states.troubled(MAX_ROWS)
        return Overview(
            manager=printable(self._manager),
            time=self._clock.time(),
            leadership=self._leadership(),
            reconcilers=[_reconciler_row(each) for each in self._reconcilers()],
            troubled=[
                TroubleRow(state.reconciler, printable(state.key), answer.verdict, answer.words)
                for state, answer in found
            ],
            caches=[_cache_row(each) for each in self._caches()],
            requests=self._request_rows(),
            recent=self._rows(lambda each: each.history.recent(MAX_ROWS) if each.history else []),
            failures=self._rows(
                lambda each: list(each.history.failures)[-MAX_ROWS:] if each.history else []
            ),
        )

    def _request_rows(self) -> list[RequestRow]:
        statistics = self._requests()
        if statistics is None:
            return []
        rows = [
            RequestRow(kind.verb, printable(kind.resource), code, number)
            for (kind, code), number in statistics.counts.items()
        ]
        return sorted(rows, key=lambda row: -row.count)[:MAX_ROWS]

    def _rows(self, records: "Callable[[Reconciler], list[ReconcileRecord]]") -> list[ReconcileRow]:
        now, wall = self._clock.now(), self._clock.time()
        rows = []
        for reconciler in self._reconcilers():
            for record in records(reconciler):
                (story,) = stories_of([record], now, wall)
                rows.append(
                    ReconcileRow(
                        reconciler=reconciler.name,
                        key=printable(record.key),
                        ago=story.ago,
                        result=story.result,
                        error=f"{story.error} at {story.place}" if story.place else story.error,
                        lines=list(reconcile_lines(story))[1:],
                    )
                )
        return sorted(rows, key=lambda row: row.ago)[:MAX_ROWS]

    async def state(self, request: "web.Request") -> "web.Response":
        """Answer with the overview, as JSON."""
        from aiohttp import web  # noqa: PLC0415 - slow to load

        del request
        return web.Response(
            body=msgspec.json.encode(self.overview()),
            content_type="application/json",
            headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
        )

    async def page(self, request: "web.Request") -> "web.Response":
        """Answer with the page."""
        from aiohttp import web  # noqa: PLC0415 - as above

        del request
        text = files("listwatch.runtime").joinpath("ui.html").read_text(encoding="utf-8")
        return web.Response(
            text=text.replace("{{title}}", html.escape(printable(self._manager))),
            content_type="text/html",
            headers={"Content-Security-Policy": PAGE_POLICY, "X-Content-Type-Options": "nosniff"},
        )


def _reconciler_row(reconciler: "Reconciler") -> ReconcilerRow:
    statistics = reconciler.statistics()
    oldest = reconciler.queue.oldest
    due_in = None if oldest is None else reconciler.queue.due_in(oldest)
    own = statistics.own_writes
    return ReconcilerRow(
        name=printable(reconciler.name),
        reconciles=statistics.duration.count,
        errors=statistics.errors,
        depth=statistics.queue.depth,
        oldest=0.0 if due_in is None else max(0.0, -due_in),
        later=statistics.queue.waiting,
        active=statistics.active,
        troubled=0 if reconciler.history is None else len(reconciler.history.troubled()),
        workers=statistics.concurrency,
        settling=0 if own is None else own.waiting,
        throttled=statistics.throttled,
        keys=0 if reconciler.history is None else len(reconciler.history),
    )


def _cache_row(cache: "Cache") -> CacheRow:
    health, statistics = cache.health(), cache.statistics()
    return CacheRow(
        name=printable(cache.name),
        objects=0 if statistics is None else statistics.store.objects,
        bytes=_bytes_of(cache) if cache.is_open else 0,
        version=printable(cache.version),
        ready=health.ready,
        problem=printable(health.problem),
        age=None if statistics is None else statistics.controller.reflector.last_frame_age,
        queued=0 if statistics is None else statistics.controller.queue.depth,
    )


def _bytes_of(cache: "Cache") -> int:
    """Return the approximate bytes of a cache's objects, in a time that its size hardly changes."""
    objects = cache.indexer.list()
    samples = objects[:: max(1, len(objects) // _SAMPLES)]
    if not samples:
        return 0
    return sum(obj.stored_bytes for obj in samples) * len(objects) // len(samples)
