"""With OpenTelemetry, each request has a span whose context is propagated."""

import asyncio
import sys
from contextlib import suppress

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from listwatch.client.config import Config
from listwatch.client.http import HTTP
from listwatch.client.tracing import tracing_hook
from listwatch.errors import ConfigError, DisconnectedError, NotFoundError
from listwatch.testing.scripted_server import ScriptedServer, respond

SECRET = "sw0rdfish"


class Traced:
    """A tracer that keeps its spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return tuple(self._exporter.get_finished_spans())

    def http(self, server: str) -> HTTP:
        hook = tracing_hook(server, self.provider)
        return HTTP(Config(server=server, token=SECRET), hooks=[hook])


async def test_a_request_is_a_span_whose_context_is_sent(server: ScriptedServer) -> None:
    server.answers["/x"] = {}
    traced = Traced()
    async with traced.http(server.url) as http:
        await http.request("GET", "/x", [("labelSelector", "a=b")])
    (span,) = traced.spans
    assert (span.name, span.kind, span.status.status_code) == (
        "GET",
        SpanKind.CLIENT,
        StatusCode.UNSET,
    )
    assert dict(span.attributes or {}) == {
        "http.request.method": "GET",
        "url.path": "/x",
        "server.address": "127.0.0.1",
        "server.port": int(server.url.rpartition(":")[2]),
        "http.response.status_code": 200,
    }
    context = span.get_span_context()
    assert context is not None
    sent = server.header("traceparent")
    assert sent == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


async def test_a_refusal_and_a_broken_connection_are_errors_without_words(
    server: ScriptedServer,
) -> None:
    server.answers["/x"] = respond(f"no {SECRET}".encode(), code=404, type_="text/plain")
    server.answers["/y"] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nha"
    traced = Traced()
    async with traced.http(server.url) as http:
        with pytest.raises(NotFoundError):
            await http.request("GET", "/x")
        with pytest.raises(DisconnectedError):
            await http.request("POST", "/y", body=b"{}")
    refused, broken = traced.spans
    assert (refused.attributes or {})["http.response.status_code"] == 404
    assert (refused.attributes or {})["error.type"] == "404"
    assert (broken.attributes or {})["error.type"] == "DisconnectedError"
    assert {span.status.status_code for span in traced.spans} == {StatusCode.ERROR}
    assert not [span for span in traced.spans if SECRET in span.to_json()]


async def test_the_span_of_a_watch_ends_with_it(server: ScriptedServer) -> None:
    server.answers["/x"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    traced = Traced()
    async with traced.http(server.url) as http:
        opened = asyncio.Event()

        async def watch() -> None:
            async with http.stream("/x", watch=True) as body:
                await body.read()
                opened.set()
                await body.read()

        watching = asyncio.ensure_future(watch())
        await opened.wait()
        assert not traced.spans
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    (span,) = traced.spans
    assert span.status.status_code is StatusCode.UNSET  # Stopping a watch is no error.


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'listwatch\[otel\]'"):
        tracing_hook("http://x")
