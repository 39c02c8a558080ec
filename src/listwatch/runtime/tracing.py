"""OpenTelemetry spans for reconciles (the extra `otel`); their requests are child spans."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from listwatch.client.http import RequestHook
from listwatch.client.tracing import tracing_hook
from listwatch.errors import ConfigError
from listwatch.runtime.key_limits import Lru
from listwatch.runtime.reconcile_context import ReconcileContext
from listwatch.runtime.reconcile_record import Trigger

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_TRACEPARENT = "traceparent"
#: Ends a span, given the word for the result and the error.
EndSpan = Callable[[str, BaseException | None], None]


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """How a manager traces its reconciles and the requests of its client.

    Attributes:
        tracer_provider: by default OpenTelemetry's global one.
        annotation: an annotation with a `traceparent`, as `with_trace_context` writes it. The first
            reconcile that sees a value continues that trace; later ones are linked to it. Empty for
            none.
    """

    tracer_provider: "TracerProvider | None" = None
    annotation: str = ""

    def hook(self, server: str) -> RequestHook:
        """Return what makes a client's requests spans; see `tracing_hook`."""
        return tracing_hook(server, self.tracer_provider)


def with_trace_context(obj: Mapping[str, Any], annotation: str) -> dict[str, Any]:
    """Return a copy of an object annotated with the current span, or without one as it is.

    Use it for objects to be created: the controller of the new object then continues the trace.
    Each reconcile has another span, so an annotation written again is a change each time.

    Args:
        obj: the object, decoded.
        annotation: the annotation's name, as in `Tracing`.

    Raises:
        ConfigError: opentelemetry-api is not installed.
    """
    carrier: dict[str, str] = {}
    _opentelemetry().propagate.inject(carrier)
    if _TRACEPARENT not in carrier:
        return dict(obj)
    metadata = obj.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), annotation: carrier[_TRACEPARENT]}
    return {**obj, "metadata": {**metadata, "annotations": annotations}}


class ReconcileTracer:
    """Starts a span for each reconcile. For one event loop.

    Args:
        tracing: the options.
        annotation_of: returns the value of the annotation of a key's object; empty if it has none.

    Raises:
        ConfigError: opentelemetry-api is not installed.
    """

    def __init__(self, tracing: Tracing, annotation_of: Callable[[str], str]) -> None:
        self._api = _opentelemetry()
        self._tracer = self._api.trace.get_tracer(
            "listwatch", tracer_provider=tracing.tracer_provider
        )
        self._annotation_of = annotation_of
        # The values whose traces were continued, by key.
        self._continued: Lru[str, str] = Lru()

    def begin(self, context: ReconcileContext, trigger: Trigger | None) -> EndSpan:
        """Start a span and make it the current one; return the function that ends it.

        Args:
            context: identifies the reconcile.
            trigger: what woke it, if known.
        """
        api = self._api
        attributes: dict[str, str | int] = {
            "listwatch.reconciler": context.reconciler,
            "listwatch.key": context.key,
            "listwatch.attempt": context.attempt,
            "listwatch.reconcile.id": context.id,
        }
        if trigger is not None:
            attributes["listwatch.trigger"] = trigger.change
            if trigger.resource:
                attributes["listwatch.trigger.resource"] = trigger.resource
                attributes["listwatch.trigger.object"] = trigger.object
                attributes["listwatch.trigger.version"] = trigger.version
        parent, links = self._origin(context.key)
        span = self._tracer.start_span(
            f"reconcile {context.reconciler}", parent, attributes=attributes, links=links
        )
        token = api.context.attach(api.trace.set_span_in_context(span))

        def end(result: str, error: BaseException | None) -> None:
            span.set_attribute("listwatch.result", result)
            if error is not None:
                # The error's text may contain anything; logs and the history have it.
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(api.trace.StatusCode.ERROR)
            span.end()
            api.context.detach(token)

        return end

    def _origin(self, key: str) -> tuple[Any, list[Any]]:
        """Return the context in which the span starts, and its links to others."""
        api = self._api
        # Not that of whatever ran in this task before.
        root = api.context.Context()
        value = self._annotation_of(key)
        if not value:
            return root, []
        named = api.propagate.extract({_TRACEPARENT: value}, root)
        origin = api.trace.get_current_span(named).get_span_context()
        if not origin.is_valid:
            return root, []
        if self._continued.get(key) == value:
            return root, [api.trace.Link(origin)]
        self._continued.put(key, value)
        return named, []


def _opentelemetry() -> Any:
    try:
        import opentelemetry.context  # noqa: PLC0415 - an extra
        import opentelemetry.propagate  # noqa: PLC0415 - an extra
        import opentelemetry.trace  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(
            "tracing needs opentelemetry-api: pip install 'listwatch[otel]'"
        ) from None
    return opentelemetry
