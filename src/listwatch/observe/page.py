"""The web page of an observer: its changes and commands live, by server-sent events."""

import asyncio
import html
from collections import deque
from collections.abc import Sequence
from importlib.resources import files
from itertools import islice
from typing import Final

import msgspec
from aiohttp import web

from listwatch.clock import Clock
from listwatch.local_web import PAGE_POLICY
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.execute import Outcome
from listwatch.observe.printing import Printer
from listwatch.printable import printable

_KEPT: Final = 1000
_KEPT_HISTORY: Final = 500
_MOST_DELETED: Final = 100
_MOST_OBJECTS: Final = 20_000
_MOST_DIFFERENCES: Final = 50
_MOST_OUTPUT: Final = 8 * 1024
_BEAT_SECONDS: Final = 10.0


class _Reader:
    """One open page: the events not sent to it yet."""

    def __init__(self, backlog: Sequence[bytes]) -> None:
        self.waiting: deque[bytes] = deque(backlog)
        self.ready = asyncio.Event()
        self.ready.set()
        self.lost = 0

    def push(self, event: bytes) -> None:
        if len(self.waiting) >= 2 * _KEPT:
            self.waiting.popleft()
            self.lost += 1
        self.waiting.append(event)
        self.ready.set()


class _Known:
    """One object: its last change, and how many there were."""

    __slots__ = ("change", "changes", "kind", "number", "time")

    def __init__(self) -> None:
        self.changes = 0

    def tell(self, change: Observation, kind: str, number: int, time: float) -> None:
        self.change, self.kind, self.number, self.time = change, kind, number, time
        self.changes += 1


class Page:
    """Shows an observer's changes, commands and objects. For one event loop.

    `Reaction` reports to it. It keeps the last thousand events, and sends them to every open page.
    A reader that is too slow loses the oldest ones, and sees how many. Every event carries the
    totals since the start, so they don't depend on what is kept. It knows the last 20,000 objects
    that changed, and 100 deleted ones, and the last
    500 changes for their histories. The values of Secrets are never
    sent.

    Args:
        title: description of the observed objects.
        printer: decides which fields of an update to show.
        clock: dates the events.
    """

    def __init__(self, title: str, printer: Printer, clock: Clock) -> None:
        self._title = title
        self._printer = printer
        self._clock = clock
        self._kept: deque[bytes] = deque(maxlen=_KEPT)
        self._history: deque[tuple[tuple[str, str], int, bytes]] = deque(maxlen=_KEPT_HISTORY)
        self._objects: dict[tuple[str, str], _Known] = {}
        self._deleted: dict[tuple[str, str], None] = {}
        self._forgotten = 0
        self._totals = {"changes": 0, "runs": 0, "failed": 0}
        self._since = clock.time()
        self._readers: set[_Reader] = set()
        self._written: dict[int, int] = {}
        self._closed = False

    # --- Input ---

    def told(self, change: Observation, kind: str) -> None:
        """Record a change."""
        fields = list(islice(self._printer.fields(change, expanded=True), _MOST_DIFFERENCES))
        self._totals["changes"] += 1
        number = self._totals["changes"]
        where = (change.resource, change.key)
        known = self._objects.pop(where, None) or _Known()
        # The old state is told, and would be kept in memory for nothing.
        kept = msgspec.structs.replace(change, old=None)
        known.tell(kept, kind, number, self._clock.time())
        self._objects[where] = known
        self._deleted.pop(where, None)
        if change.type is ObservationType.DELETED:
            self._deleted[where] = None
            if len(self._deleted) > _MOST_DELETED:
                gone = next(iter(self._deleted))
                del self._deleted[gone], self._objects[gone]
        if len(self._objects) > _MOST_OBJECTS:
            oldest = next(iter(self._objects))
            del self._objects[oldest]
            self._deleted.pop(oldest, None)
            self._forgotten += 1
        data = self._send(
            "change",
            number=number,
            type=kind,
            **_place(change),
            version=printable(change.resource_version),
            fields=fields,
            gap=_gap(change),
        )
        self._history.append((where, number, data))

    def started(self, run: int, change: Observation, argv: Sequence[str]) -> None:
        """Record the start of a command."""
        self._written[run] = 0
        self._totals["runs"] += 1
        known = self._objects.get((change.resource, change.key))
        self._send(
            "started",
            run=run,
            **_place(change),
            change=known.number if known is not None else 0,
            argv=[*map(printable, argv)],
        )

    def wrote(self, run: int, fd: int, data: bytes) -> None:
        """Record a command's output; anything beyond 8 KB is dropped."""
        room = _MOST_OUTPUT - self._written.get(run, 0)
        if room > 0:
            self._written[run] += len(data)
            text = data[:room].decode(errors="replace")
            self._send("output", run=run, fd=fd, text=printable(text, None, keep="\n\t"))

    def ended(self, run: int, outcome: Outcome) -> None:
        """Record the end of a command."""
        self._written.pop(run, None)
        if outcome.exit_code != 0 or outcome.failure:
            self._totals["failed"] += 1
        self._send(
            "ended",
            run=run,
            code=outcome.exit_code,
            failure=printable(outcome.failure),
            timed_out=outcome.timed_out,
            seconds=outcome.seconds,
        )

    def _send(self, event: str, **fields: object) -> bytes:
        totals = list(self._totals.values())
        document = {"event": event, "time": self._clock.time(), "totals": totals, **fields}
        data = b"data: %b\n\n" % msgspec.json.encode(document)
        self._kept.append(data)
        for reader in self._readers:
            reader.push(data)
        return data

    # --- Serving ---

    def routes(self) -> list[web.RouteDef]:
        """Return the page's routes: `/`, `/events`, `/objects` and `/object`."""
        return [
            web.get("/", self._page),
            web.get("/events", self._events),
            web.get("/objects", self._list),
            web.get("/object", self._show),
        ]

    async def _page(self, _: web.Request) -> web.Response:
        text = files("listwatch.observe").joinpath("page.html").read_text(encoding="utf-8")
        return web.Response(
            text=text.replace("{{title}}", html.escape(self._title)),
            content_type="text/html",
            headers={"Content-Security-Policy": PAGE_POLICY, "X-Content-Type-Options": "nosniff"},
        )

    async def _list(self, _: web.Request) -> web.Response:
        rows = [
            {
                **_place(known.change),
                "version": printable(known.change.resource_version),
                "type": known.kind,
                "time": known.time,
                "changes": known.changes,
            }
            for known in self._objects.values()
        ]
        return _json({"objects": rows, "forgotten": self._forgotten})

    async def _show(self, request: web.Request) -> web.Response:
        where = (request.query.get("resource", ""), request.query.get("key", ""))
        known = self._objects.get(where)
        if known is None:
            raise web.HTTPNotFound(text="no change of this object is kept")
        history = [
            msgspec.Raw(data.removeprefix(b"data: ").strip())
            for place, _, data in self._history
            if place == where
        ]
        deleted = known.change.type is ObservationType.DELETED
        document = {
            **_place(known.change),
            "changes": known.changes,
            "deleted": deleted,
            "history": history,
        }
        # A large object takes seconds to write as YAML.
        document["text"] = await asyncio.to_thread(self._printer.shown_object, known.change)
        return _json(document)

    def _hello(self) -> bytes:
        """Return the first event of a stream: what the page can't know from the kept ones."""
        document = {
            "event": "hello",
            "title": self._title,
            "since": self._since,
            "totals": list(self._totals.values()),
        }
        return b"data: %b\n\n" % msgspec.json.encode(document)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        reader = _Reader([self._hello(), *self._kept])
        self._readers.add(reader)
        try:
            while not self._closed:
                await self._send_to(reader, response)
        except ConnectionResetError:
            pass  # the page was closed
        finally:
            self._readers.discard(reader)
        return response

    async def _send_to(self, reader: _Reader, response: web.StreamResponse) -> None:
        while reader.waiting and not self._closed:
            if reader.lost:
                await response.write(b'data: {"event":"lost","count":%d}\n\n' % reader.lost)
                reader.lost = 0
            batch = [reader.waiting.popleft() for _ in range(min(100, len(reader.waiting)))]
            await response.write(b"".join(batch))
        if self._closed:
            return
        reader.ready.clear()
        try:
            async with self._clock.timeout(_BEAT_SECONDS):
                await reader.ready.wait()
        except TimeoutError:
            await response.write(b": still here\n\n")

    def close(self) -> None:
        """End every open page's stream."""
        self._closed = True
        for reader in self._readers:
            reader.ready.set()


def _place(change: Observation) -> dict[str, str]:
    return {
        "resource": change.resource,
        "key": printable(change.key),
        "namespace": printable(change.namespace),
        "name": printable(change.name),
    }


def _gap(change: Observation) -> str:
    """Return why changes may be missing before this one; empty if none is."""
    if change.final_state_unknown:
        return "The deletion was missed; what the object was at the end is not known."
    if change.type is ObservationType.RELISTED:
        return "The watch broke before; changes in between may be missing."
    return ""


def _json(document: object) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(document),
        content_type="application/json",
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
    )
