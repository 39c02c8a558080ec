"""The paths below /-/, with which tests in other processes control the server."""

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from aiohttp.web_exceptions import HTTPRequestEntityTooLarge
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse

from listwatch.apiserver.bootstrap.objects import create_missing
from listwatch.apiserver.http.faults import Fault
from listwatch.apiserver.webhooks.client import Misbehaviour

if TYPE_CHECKING:
    from collections.abc import Callable

    from listwatch.apiserver.server import EmbeddedAPIServer

_T = TypeVar("_T")


class _Revision(msgspec.Struct, forbid_unknown_fields=True):
    revision: int | None = None


class _Bookmarks(msgspec.Struct, forbid_unknown_fields=True):
    withhold: bool = False


class _Restart(msgspec.Struct, forbid_unknown_fields=True):
    downtime: float = 0.0


class _Replica(msgspec.Struct, forbid_unknown_fields=True):
    stale: bool = True
    revision: int | None = None


class _Limit(msgspec.Struct, forbid_unknown_fields=True):
    limit: int | None = None


class _Certificate(msgspec.Struct, forbid_unknown_fields=True):
    expired: bool = False


class _Service(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    host: str
    port: int


class _Webhooks(msgspec.Struct, forbid_unknown_fields=True):
    how: Misbehaviour | None = None


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class UnknownControlError(LookupError):
    """There is no such control."""


class Control:
    """The controls that tests can use, by name and with a JSON value. For one event loop."""

    def __init__(self, server: "EmbeddedAPIServer") -> None:
        self._server = server
        self._actions: dict[str, Callable[[bytes], object]] = {
            "add-faults": self._add_faults,
            "bookmarks": self._bookmarks,
            "certificate": self._certificate,
            "asked-rights": self._asked_rights,
            "client-certificates": self._client_certificates,
            "compact": self._compact,
            "create": self._create,
            "cut-watches": self._cut_watches,
            "fail-pods": self._fail_pods,
            "fail-webhooks": self._fail_webhooks,
            "faults": self._faults,
            "heal-pods": self._heal_pods,
            "in-flight": self._in_flight,
            "lose-node": self._lose_node,
            "recover-node": self._recover_node,
            "record-requests": self._record_requests,
            "record-rights": self._record_rights,
            "replica": self._replica,
            "requests": self._requests,
            "restart": self._restart,
            "rewind": self._rewind,
            "service": self._service,
            "snapshot": self._snapshot,
            "stale": self._stale,
            "statistics": self._statistics,
        }

    def perform(self, name: str, body: bytes) -> object:
        """Perform a control; return a JSON value.

        Args:
            name: the control.
            body: its value as JSON; b"" for none.

        Raises:
            UnknownControlError: there is no such control.
            ValueError: the value is invalid for this control, or the action is impossible.
        """
        action = self._actions.get(name)
        if action is None:
            known = ", ".join(self._actions)
            raise UnknownControlError(f"no such control: {name}; there are {known}")
        return action(body.strip())

    async def handle(self, request: BaseRequest) -> StreamResponse:
        """Answer one request: POST with a JSON body, or GET to read."""
        name = request.path.removeprefix("/-/").strip("/")
        if request.method not in {"GET", "POST"}:
            return _answer({"error": "controls take GET and POST"}, 405)
        try:
            body = await request.read()
            if name == "restart":
                return await self._answered_restart(request, body)
            value = self.perform(name, body)
            if name == "replica":
                replica = self._server.replica
                await replica.start()
                value = {"url": replica.url}
            return _answer(value)
        except UnknownControlError as error:
            return _answer({"error": str(error)}, 404)
        except HTTPRequestEntityTooLarge as error:
            return _answer({"error": error.text}, 413)
        except (msgspec.DecodeError, ValueError) as error:
            return _answer({"error": str(error)}, 400)

    async def _answered_restart(self, request: BaseRequest, body: bytes) -> StreamResponse:
        given = _read(body, _Restart)
        answer = _answer({})
        answer.force_close()
        await answer.prepare(request)
        await answer.write_eof()
        self._server.restart_soon(downtime=given.downtime)
        return answer

    def _restart(self, body: bytes) -> object:
        self._server.restart_soon(downtime=_read(body, _Restart).downtime)
        return {}

    def _compact(self, body: bytes) -> object:
        self._server.compact(_read(body, _Revision).revision)
        return {"compacted": self._server.store.compacted}

    def _faults(self, body: bytes) -> object:
        faults = self._server.faults
        if body:
            faults.replace(msgspec.json.decode(body, type=list[Fault]))
        return {"hits": faults.hits, "waiting": len(faults)}

    def _add_faults(self, body: bytes) -> object:
        self._server.faults.add(*msgspec.json.decode(body or b"[]", type=list[Fault]))
        return self._faults(b"")

    def _bookmarks(self, body: bytes) -> object:
        given = _read(body, _Bookmarks)
        self._server.withhold_bookmarks = given.withhold
        if not given.withhold:
            self._server.send_bookmarks()
        return {"withhold": given.withhold}

    def _statistics(self, _: bytes) -> object:
        return msgspec.structs.asdict(self._server.statistics())

    def _cut_watches(self, _: bytes) -> object:
        return {"cut": self._server.cut_watches()}

    def _service(self, body: bytes) -> object:
        given = _read(body, _Service)
        if given.name.count("/") != 1:
            raise ValueError(f"a service is named NAMESPACE/NAME, not {given.name}")
        self._server.add_service(given.name, given.host, given.port)
        return {}

    def _fail_webhooks(self, body: bytes) -> object:
        self._server.fail_webhooks(_read(body, _Webhooks).how)
        return {}

    def _snapshot(self, _: bytes) -> object:
        return {"revision": self._server.take_snapshot()}

    def _rewind(self, body: bytes) -> object:
        self._server.rewind(_read(body, _Revision).revision)
        return {"revision": self._server.store.revision}

    def _stale(self, body: bytes) -> object:
        on = msgspec.json.decode(body or b"true", type=bool)
        self._server.stale_replica(on)
        return {"stale": on}

    def _replica(self, body: bytes) -> object:
        given = _read(body, _Replica)
        if given.stale:
            self._server.replica.fall_behind(given.revision)
        else:
            self._server.replica.catch_up()
        return {}

    def _record_requests(self, body: bytes) -> object:
        limit = _read(body, _Limit).limit
        self._server.record_requests(10_000 if limit is None else limit)
        return {}

    def _requests(self, _: bytes) -> object:
        return [msgspec.structs.asdict(each) for each in self._server.requests]

    def _record_rights(self, _: bytes) -> object:
        self._server.record_rights()
        return {}

    def _asked_rights(self, _: bytes) -> object:
        return [msgspec.structs.asdict(each) for each in self._server.asked_rights]

    def _create(self, body: bytes) -> object:
        objects = msgspec.json.decode(body, type=list[dict[str, Any]])
        create_missing(self._server.registry, self._server.table, objects)
        return {}

    def _in_flight(self, body: bytes) -> object:
        self._server.limit_in_flight(_read(body, _Limit).limit)
        return {}

    def _certificate(self, body: bytes) -> object:
        self._server.issue_certificate(expired=_read(body, _Certificate).expired)
        return {}

    def _client_certificates(self, body: bytes) -> object:
        self._server.expire_client_certificates(_read(body, _Certificate).expired)
        return {}

    def _fail_pods(self, body: bytes) -> object:
        from listwatch.apiserver.workloads.failures import PodFailure  # noqa: PLC0415 - seldom needed

        self._server.workloads.fail(_read(body, PodFailure))
        return {}

    def _heal_pods(self, _: bytes) -> object:
        self._server.workloads.heal()
        return {}

    def _lose_node(self, body: bytes) -> object:
        self._server.workloads.lose_node(_read(body, _Node).name)
        return {}

    def _recover_node(self, body: bytes) -> object:
        self._server.workloads.recover_node(_read(body, _Node).name)
        return {}


def _read(body: bytes, form: type[_T]) -> _T:
    return msgspec.json.decode(body or b"{}", type=form)


def _answer(value: object, status: int = 200) -> Response:
    return Response(
        body=msgspec.json.encode(value),
        status=status,
        headers={"Content-Type": "application/json"},
    )
