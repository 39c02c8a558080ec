"""One request on its way through the server, and its response."""

import gzip
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from aiohttp.web_exceptions import HTTPRequestEntityTooLarge
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response
from multidict import CIMultiDict

from listwatch.apiserver import refusal
from listwatch.apiserver.http.negotiation import (
    JSON,
    PLAIN,
    PROTOBUF,
    YAML,
    Representation,
    allows_plain,
    choose,
    manager_of,
    wants_gzip,
)
from listwatch.apiserver.http.request_info import Query, RequestInfo
from listwatch.apiserver.user import User
from listwatch.apiserver.webhooks.consultation import AllottedTimeError
from listwatch.errors import StatusError
from listwatch.schema.causes import go_quoted

if TYPE_CHECKING:
    from listwatch.apiserver.http.faults import Fault
    from listwatch.apiserver.kinds.resources import APIResource
    from listwatch.apiserver.webhooks.consultation import Consultation

T = TypeVar("T")

#: Maximum size of a body in bytes (`apiserver/pkg/server/config.go`).
BODY_LIMIT = 3 * 1024 * 1024
#: Maximum characters of all warnings in a response, and of each if there are too many.
_WARNINGS_LIMIT = 4 * 1024
_WARNING_LIMIT = 256
#: The characters of Unicode's category Cc.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Call:
    """A request: what it asks for, its user, and the warnings collected for its response."""

    __slots__ = (
        "_body",
        "annotations",
        "consultation",
        "fault",
        "info",
        "query",
        "representation",
        "request",
        "resource",
        "user",
        "warnings",
    )

    def __init__(self, request: BaseRequest, info: RequestInfo, query: Query) -> None:
        self.request = request
        self.info = info
        self.query = query
        self.user = User("system:anonymous", ("system:unauthenticated",))
        self.resource: APIResource | None = None
        self.representation = PLAIN
        self.warnings: list[str] = []
        #: the audit annotations of the request
        self.annotations: dict[str, str] = {}
        #: the fault to inject into the response, for tests
        self.fault: Fault | None = None
        #: the webhooks' answers, if there are webhooks
        self.consultation: Consultation | None = None
        self._body: bytes | None = None

    def first(self, name: str) -> str:
        """Return the first value of a query parameter; "" without one."""
        values = self.query.get(name)
        return values[0] if values else ""

    @property
    def namespace(self) -> str:
        """The namespace of the object; "" for a cluster-scoped one, even if the path names one."""
        resource = self.resource
        return self.info.namespace if resource is not None and resource.namespaced else ""

    def header(self, name: str) -> str:
        """Return a header of the request; "" without one."""
        return printable(self.request.headers.get(name, ""))

    @property
    def manager(self) -> str:
        """The field manager of a write."""
        return self.first("fieldManager") or manager_of(self.header("User-Agent"))

    async def body(self) -> bytes:
        """Return the whole body.

        Raises:
            RequestEntityTooLargeError: it exceeds the limit.
            BadRequestError: its HTTP framing is invalid.
            AllottedTimeError: it does not arrive in time.
        """
        if self._body is not None:
            return self._body
        transport = self.request.transport
        if self.header("Expect").lower() == "100-continue" and transport is not None:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            self._body = await self.request.read()
        except HTTPRequestEntityTooLarge:
            raise refusal.too_large_body(BODY_LIMIT) from None
        except TimeoutError:
            raise AllottedTimeError from None
        except RequestPayloadError as error:
            raise refusal.bad_request(f"the body can't be read: {error}") from None
        return self._body

    async def settled(self, attempt: Callable[[], T]) -> T:
        """Return the result of a step, which may have to call webhooks and start over."""
        if self.consultation is None:
            return attempt()

        async def step() -> T:
            return attempt()

        return await self.consultation.settle(step)

    @property
    def can_stream(self) -> bool:
        """Whether JSON bytes can be sent unchanged, in pieces."""
        return (
            self.representation.media_type == JSON
            and self.request.method == "GET"
            and self.fault is None
            and "pretty" not in self.query
            and not wants_gzip(self.header("Accept-Encoding"), BODY_LIMIT)
        )

    def headers(self, content_type: str) -> CIMultiDict[str]:
        """Return the headers of a response, with the collected warnings."""
        fields: CIMultiDict[str] = CIMultiDict(
            {"Content-Type": content_type, "Cache-Control": "no-cache, private"}
        )
        for warning in _fitting(self.warnings):
            fields.add("Warning", f"299 - {go_quoted(warning)}")
        return fields

    def answer(
        self,
        body: bytes,
        *,
        status: int = 200,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Return a response with these bytes, compressed if the client asked for that."""
        fields = self.headers(content_type)
        if headers:
            fields.update(headers)
        if (
            self.fault is None
            and len(body) > 1024
            and wants_gzip(self.header("Accept-Encoding"), len(body))
        ):
            body = gzip.compress(body, 1)
            fields["Content-Encoding"] = "gzip"
            fields["Vary"] = "Accept-Encoding"
        return Response(body=body, status=status, headers=fields)

    def answer_value(
        self, value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return a response with a JSON value, in the negotiated form."""
        return self.answer_json(msgspec.json.encode(value) + b"\n", status=status, headers=headers)

    def answer_json(
        self, body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return a response with JSON bytes, converted to the negotiated form."""
        media_type = self.representation.media_type
        if media_type == YAML:
            return self.answer(to_yaml(body), status=status, content_type=YAML, headers=headers)
        if media_type == PROTOBUF:
            from listwatch.apiserver.http.protobuf import encode_json  # noqa: PLC0415 - rarely needed

            return self.answer(
                encode_json(body), status=status, content_type=PROTOBUF, headers=headers
            )
        pretty = self.query.get("pretty")
        if pretty is not None and pretty[0].lower() not in {"false", "0"}:
            body = msgspec.json.format(body.rstrip(), indent=2) + b"\n"
        return self.answer(body, status=status, headers=headers)

    def refuse(self, error: StatusError) -> Response:
        """Return the response for a refused request."""
        headers = {}
        if error.retry_after:
            headers["Retry-After"] = str(max(1, round(error.retry_after)))
        if self.representation is PLAIN:
            self.representation = error_form(self.header("Accept"))
        return self.answer_value(error.to_status(), status=error.code or 500, headers=headers)


def _fitting(warnings: Iterable[str]) -> list[str]:
    """Return the warnings to send, as in `apiserver/pkg/endpoints/filters/warning.go`.

    Drops repeated warnings and those that a header can't contain; shortens them if there are many.
    """
    kept = [each for each in dict.fromkeys(warnings) if each and _CONTROL.search(each) is None]
    if sum(map(len, kept)) <= _WARNINGS_LIMIT:
        return kept
    sent: list[str] = []
    for each in kept:
        if sum(map(len, sent)) >= _WARNINGS_LIMIT:
            break
        sent.append(each[:_WARNING_LIMIT])
    return sent


def printable(header: str) -> str:
    """Return a header's value with a replacement for each byte that is not UTF-8."""
    if header.isascii():
        return header
    return header.encode(errors="surrogateescape").decode(errors="replace")


def error_form(accept: str) -> Representation:
    """Return the form of a refusal before negotiation."""
    found = choose(accept, allows_plain) if accept else None
    return PLAIN if found is None else Representation(found[0], content_type=found[0])


def to_yaml(body: bytes) -> bytes:
    """Return JSON bytes as YAML."""
    import yaml  # noqa: PLC0415 - slow to load, seldom asked for

    text = yaml.dump(
        msgspec.json.decode(body),
        Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
        sort_keys=True,
        allow_unicode=True,
    )
    return str(text).encode()


def text_answer(text: str, status: int = 200) -> Response:
    """Return a plain text response."""
    return Response(
        body=text.encode(),
        status=status,
        headers={
            "Content-Type": "text/plain; charset=utf-8",
            "Cache-Control": "no-cache, private",
            "X-Content-Type-Options": "nosniff",
        },
    )


def warnings_of(problems: Iterable[str]) -> list[str]:
    """Return problems as warnings, each once."""
    return list(dict.fromkeys(problems))
