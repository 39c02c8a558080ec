"""The paths below /-/, by which tests in other processes control the server."""

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from listwatch.apiserver.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from listwatch.apiserver.server import APIServer


class _Revision(msgspec.Struct):
    revision: int | None = None


class _Bookmarks(msgspec.Struct):
    withhold: bool = False


class _Restart(msgspec.Struct):
    downtime: float = 0.0


class _Replica(msgspec.Struct):
    stale: bool = True
    revision: int | None = None


class Control:
    """Answers the paths below /-/. For one event loop."""

    def __init__(self, server: "APIServer") -> None:
        self._server = server

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request: POST with a JSON body, GET for what there is."""
        name = request.path.removeprefix("/-/").strip("/")
        actions: dict[str, Callable[[bytes], Awaitable[object]]] = {
            "compact": self._compact,
            "faults": self._faults,
            "bookmarks": self._bookmarks,
            "statistics": self._statistics,
            "cut-watches": self._cut_watches,
            "snapshot": self._snapshot,
            "rewind": self._rewind,
            "stale": self._stale,
            "replica": self._replica,
        }
        if name == "restart":
            return await self._restart(request)
        action = actions.get(name)
        if action is None:
            known = ", ".join(sorted([*actions, "restart"]))
            return _answer({"error": f"no such control: {name}; there are {known}"}, 404)
        try:
            return _answer(await action(await request.read()))
        except (msgspec.DecodeError, ValueError) as error:
            return _answer({"error": str(error)}, 400)

    async def _compact(self, body: bytes) -> object:
        given = msgspec.json.decode(body or b"{}", type=_Revision)
        self._server.compact(given.revision)
        return {"compacted": self._server.store.compacted}

    async def _faults(self, body: bytes) -> object:
        faults = self._server.faults
        if body.strip():
            faults.replace(msgspec.json.decode(body, type=list[Fault]))
        return {"hits": faults.hits, "waiting": len(faults)}

    async def _bookmarks(self, body: bytes) -> object:
        given = msgspec.json.decode(body or b"{}", type=_Bookmarks)
        self._server.withhold_bookmarks = given.withhold
        if not given.withhold:
            self._server.send_bookmarks()
        return {"withhold": given.withhold}

    async def _statistics(self, _: bytes) -> object:
        return msgspec.structs.asdict(self._server.statistics())

    async def _cut_watches(self, _: bytes) -> object:
        return {"cut": self._server.cut_watches()}

    async def _snapshot(self, _: bytes) -> object:
        return {"revision": self._server.take_snapshot()}

    async def _rewind(self, body: bytes) -> object:
        given = msgspec.json.decode(body or b"{}", type=_Revision)
        self._server.rewind(given.revision)
        return {"revision": self._server.store.revision}

    async def _stale(self, body: bytes) -> object:
        on = msgspec.json.decode(body or b"true", type=bool)
        self._server.stale_replica(on)
        return {"stale": on}

    async def _replica(self, body: bytes) -> object:
        given = msgspec.json.decode(body or b"{}", type=_Replica)
        replica = self._server.replica
        if given.stale:
            replica.fall_behind(given.revision)
        else:
            replica.catch_up()
        await replica.start()
        return {"url": replica.url, "stale": given.stale}

    async def _restart(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            given = msgspec.json.decode(await request.read() or b"{}", type=_Restart)
        except msgspec.DecodeError as error:
            return _answer({"error": str(error)}, 400)
        answer = _answer({"restarts": True})
        answer.force_close()
        await answer.prepare(request)
        await answer.write_eof()
        self._server.restart_soon(downtime=given.downtime)
        return answer


def _answer(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        headers={"Content-Type": "application/json"},
    )
