"""OpenTelemetry spans for a client's requests (the extra `otel`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from listwatch.client.http import Request, RequestHook
from listwatch.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


def tracing_hook(server: str, tracer_provider: "TracerProvider | None" = None) -> RequestHook:
    """Return a hook that creates a client span per request and propagates its context.

    Names and attributes follow the semantic conventions for HTTP clients; they contain neither the
    query, which may be long, nor credentials. A watch's span ends with the watch. The request
    carries the headers of the configured propagator (`traceparent`).

    Args:
        server: the URL of the client's server, `client.config.server`.
        tracer_provider: by default the global one.

    Raises:
        ConfigError: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import propagate, trace  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(
            "tracing needs opentelemetry-api: pip install 'listwatch[otel]'"
        ) from None
    tracer = trace.get_tracer("listwatch", tracer_provider=tracer_provider)
    parts = urlsplit(server)
    attributes: dict[str, str | int] = {"server.address": parts.hostname or parts.path}
    if parts.port is not None:
        attributes["server.port"] = parts.port

    @contextmanager
    def traced(request: Request) -> Iterator[None]:
        with tracer.start_as_current_span(
            request.method,
            kind=trace.SpanKind.CLIENT,
            attributes={
                **attributes,
                "http.request.method": request.method,
                "url.path": request.path,
            },
            # The status and the error's type are recorded below, without the error's text.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            request.headers.extend(carrier.items())
            failure = ""
            try:
                yield
            except Exception as error:
                failure = type(error).__name__
                raise
            finally:
                if request.status is not None:
                    span.set_attribute("http.response.status_code", request.status)
                    if request.status >= 400:
                        failure = failure or str(request.status)
                if failure:
                    span.set_attribute("error.type", failure)
                    span.set_status(trace.StatusCode.ERROR)

    return traced
