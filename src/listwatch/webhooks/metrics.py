"""Metrics of webhooks; those of controller-runtime have its names and labels."""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from listwatch.webhooks.dispatch import LATENCY_BOUNDS, HookStatistics

if TYPE_CHECKING:
    from prometheus_client import Metric


def webhook_metrics(states: Sequence[HookStatistics], expires: float | None) -> Iterator["Metric"]:
    """Yield the metric families of these hooks.

    Args:
        states: of each hook.
        expires: when their certificate expires, in seconds since 1970; None if there is none yet.
    """
    from prometheus_client import core  # noqa: PLC0415 - loaded only where metrics are served

    total = core.CounterMetricFamily(
        "controller_runtime_webhook_requests",
        "Requests to webhooks, by HTTP status code",
        labels=["webhook", "code"],
    )
    denied = core.CounterMetricFamily(
        "listwatch_webhook_denied", "Requests that a webhook denied", labels=["webhook"]
    )
    errors = core.CounterMetricFamily(
        "listwatch_webhook_errors", "Requests that a webhook failed to answer", labels=["webhook"]
    )
    in_flight = core.GaugeMetricFamily(
        "controller_runtime_webhook_requests_in_flight",
        "Requests that a webhook answers now",
        labels=["webhook"],
    )
    latency = core.HistogramMetricFamily(
        "controller_runtime_webhook_latency_seconds",
        "How long an answer takes",
        labels=["webhook"],
    )
    for state in states:
        for code, count in sorted(state.requests.items()):
            total.add_metric([state.name, str(code)], count)
        denied.add_metric([state.name], state.denied)
        errors.add_metric([state.name], state.errors)
        in_flight.add_metric([state.name], state.in_flight)
        bounds = [*map(str, LATENCY_BOUNDS), "+Inf"]
        counts = map(float, itertools.accumulate(state.latency.counts))
        latency.add_metric([state.name], list(zip(bounds, counts, strict=True)), state.latency.sum)
    yield from (total, denied, errors, in_flight, latency)
    if expires is not None:
        yield core.GaugeMetricFamily(
            "listwatch_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate of the webhooks expires",
            value=expires,
        )
