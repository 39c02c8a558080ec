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
from listwatch.observe.changes import Observation
from listwatch.observe.execute import Outcome
from listwatch.observe.printing import Printer
from listwatch.printable import printable

_KEPT: Final = 1000
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


class Page:
    """Shows an observer's changes and commands. For one event loop.

    `Reaction` reports to it. It keeps the last thousand events, and sends them to every open page.
    A reader that is too slow loses the oldest ones, and sees how many. The values of Secrets are
    never sent.

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
        self._readers: set[_Reader] = set()
        self._written: dict[int, int] = {}
        self._closed = False

    # --- Input ---

    def told(self, change: Observation, kind: str) -> None:
        """Record a change."""
        fields = list(islice(self._printer.fields(change), _MOST_DIFFERENCES))
        self._send(
            "change",
            type=kind,
            resource=change.resource,
            namespace=printable(change.namespace),
            name=printable(change.name),
            version=printable(change.resource_version),
            fields=fields,
        )

    def started(self, run: int, change: Observation, argv: Sequence[str]) -> None:
        """Record the start of a command."""
        self._written[run] = 0
        self._send("started", run=run, key=printable(change.key), argv=[*map(printable, argv)])

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
        self._send(
            "ended",
            run=run,
            code=outcome.exit_code,
            failure=printable(outcome.failure),
            timed_out=outcome.timed_out,
            seconds=outcome.seconds,
        )

    def _send(self, event: str, **fields: object) -> None:
        document = {"event": event, "time": self._clock.time(), **fields}
        data = b"data: %b\n\n" % msgspec.json.encode(document)
        self._kept.append(data)
        for reader in self._readers:
            reader.push(data)

    # --- Serving ---

    def routes(self) -> list[web.RouteDef]:
        """Return the page's routes: `/` and `/events`."""
        return [web.get("/", self._page), web.get("/events", self._events)]

    async def _page(self, _: web.Request) -> web.Response:
        text = files("listwatch.observe").joinpath("page.html").read_text(encoding="utf-8")
        return web.Response(
            text=text.replace("{{title}}", html.escape(self._title)),
            content_type="text/html",
            headers={"Content-Security-Policy": PAGE_POLICY, "X-Content-Type-Options": "nosniff"},
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        reader = _Reader(list(self._kept))
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
