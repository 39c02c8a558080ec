"""A reconcile is a span; its requests are its children, and an annotation continues its trace."""

import asyncio
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, use_span

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.errors import ConfigError
from listwatch.runtime.manager import Manager
from listwatch.runtime.tracing import ReconcileTracer, Tracing, with_trace_context
from runtime.reconciler_world import World, widget

ANNOTATION = "example.com/traceparent"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """A tracer provider that keeps its spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return tuple(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.ended if span.name == name]


def config_map(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def test_the_requests_of_a_reconcile_are_children_of_its_span(
    server: EmbeddedAPIServer, client: Client
) -> None:
    spans = Spans()
    app = Manager(
        "app",
        config=Config(server=server.url),
        tracing=Tracing(tracer_provider=spans.provider),
        health_port=None,
    )
    maps = app.reconciler("maps").for_("configmaps", namespace="default")
    done = asyncio.Event()

    @maps
    async def reconcile(key: str) -> None:
        await app.client.get("configmaps", key.rpartition("/")[2], "default")
        done.set()

    await client.create(config_map("a"))
    async with app:
        await done.wait()
    (reconciled,) = spans.named("reconcile maps")
    assert reconciled.parent is None
    assert reconciled.context is not None
    (sent,) = [
        span
        for span in spans.ended
        if (span.attributes or {}).get("url.path") == "/api/v1/namespaces/default/configmaps/a"
    ]
    assert sent.parent is not None
    assert sent.parent.span_id == reconciled.context.span_id


async def test_a_span_has_key_trigger_result_and_attempt_but_no_words_of_errors() -> None:
    spans = Spans()
    world = World()
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    world.outcomes["ns/a"] = [ValueError("hunter2"), None]
    world.reconciler.trace(Tracing(tracer_provider=spans.provider))
    async with world.running():
        pass
    failed, succeeded = spans.named("reconcile test")
    assert (
        dict(failed.attributes or {}).items()
        >= {
            "listwatch.key": "ns/a",
            "listwatch.attempt": 1,
            "listwatch.reconcile.id": "test-1",
            "listwatch.trigger": "Listed",
            "listwatch.trigger.resource": "widget",
            "listwatch.result": "error",
            "error.type": "ValueError",
        }.items()
    )
    assert failed.status.status_code is StatusCode.ERROR
    assert (succeeded.attributes or {})["listwatch.attempt"] == 2
    assert (succeeded.attributes or {})["listwatch.trigger"] == "Retry"
    assert (succeeded.attributes or {})["listwatch.result"] == "success"
    assert succeeded.status.status_code is StatusCode.UNSET
    assert "hunter2" not in "".join(span.to_json() for span in spans.ended)


async def test_the_first_reconcile_of_an_annotated_object_continues_its_trace() -> None:
    spans = Spans()
    world = World()
    world.reconciler.for_("widget")
    source = world.source("widget")
    annotated = {"annotations": {ANNOTATION: PARENT}}
    source.add(widget("a", meta=annotated))
    source.add(widget("b", meta={"annotations": {ANNOTATION: "broken"}}))
    source.add(widget("c"))
    world.reconciler.trace(Tracing(tracer_provider=spans.provider, annotation=ANNOTATION))
    async with world.running():
        source.modify(widget("a", meta=annotated, spec={"x": 1}))
        await world.clock.advance(1)
    by_key: dict[str, list[ReadableSpan]] = {}
    for span in spans.named("reconcile test"):
        by_key.setdefault(str((span.attributes or {})["listwatch.key"]), []).append(span)
    first, second = by_key["ns/a"]
    assert first.parent is not None
    assert f"{first.parent.trace_id:032x}" in PARENT
    assert second.parent is None
    assert [f"{link.context.span_id:016x}" for link in second.links] == ["b7ad6b7169203331"]
    for key in ("ns/b", "ns/c"):
        (alone,) = by_key[key]
        assert (alone.parent, list(alone.links)) == (None, [])


def test_an_object_is_annotated_with_the_current_span() -> None:
    spans = Spans()
    obj = widget("a", meta={"annotations": {"kept": "yes"}})
    assert with_trace_context(obj, ANNOTATION) == obj
    with use_span(spans.provider.get_tracer("test").start_span("s"), end_on_exit=True) as span:
        marked = with_trace_context(obj, ANNOTATION)
    context = span.get_span_context()
    assert marked["metadata"]["annotations"] == {
        "kept": "yes",
        ANNOTATION: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}",
    }
    assert ANNOTATION not in obj["metadata"]["annotations"]


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("opentelemetry", "opentelemetry.context"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'listwatch\[otel\]'"):
        ReconcileTracer(Tracing(), lambda _: "")
