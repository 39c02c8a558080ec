"""Statistics of a service controller under the metric names of `k8s.io/cloud-provider`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from listwatch.controllers.services.service_controller import ServiceControllerStatistics
from listwatch.workqueue.metrics import BOUNDS, HistogramStatistics

if TYPE_CHECKING:
    from prometheus_client import Metric


def collect(statistics: ServiceControllerStatistics) -> Iterator["Metric"]:
    """Yield the metric families: those of `k8s.io/cloud-provider`, and the queue's depth."""
    from prometheus_client.core import (  # noqa: PLC0415 - loaded only where metrics are served
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    for name, words, count in (
        ("loadbalancer_sync", "Load balancers made or changed.", statistics.ensured),
        ("nodesync_error", "Load balancers that did not take new nodes.", statistics.node_errors),
        ("loadbalancer_delete", "Load balancers removed.", statistics.deleted),
        ("sync_error", "Failures of a service's synchronisation.", statistics.failures),
    ):
        yield CounterMetricFamily(f"service_controller_{name}", words, value=count)
    for name, words, gauge in (
        ("load_balancers", "Services that have a load balancer.", statistics.services),
        ("nodes", "Nodes that load balancers send to.", statistics.nodes),
        ("retrying", "Services that wait for their next try.", statistics.retrying),
        ("depth", "Services that wait for a worker.", statistics.queue.depth),
    ):
        yield GaugeMetricFamily(f"service_controller_{name}", words, value=gauge)
    for name, words, durations in (
        (
            "nodesync_latency_seconds",
            "How long giving new nodes to all load balancers took.",
            statistics.node_sync_seconds,
        ),
        (
            "update_loadbalancer_host_latency_seconds",
            "How long giving new nodes to one load balancer took.",
            statistics.host_update_seconds,
        ),
    ):
        buckets, total = _buckets(durations)
        yield HistogramMetricFamily(
            f"service_controller_{name}", words, buckets=buckets, sum_value=total
        )


def _buckets(durations: HistogramStatistics) -> tuple[list[tuple[str, float]], float]:
    count = 0.0
    buckets: list[tuple[str, float]] = []
    for bound, more in zip([*map(str, BOUNDS), "+Inf"], durations.counts, strict=True):
        count += more
        buckets.append((bound, count))
    return buckets, durations.sum
