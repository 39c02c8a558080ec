"""Statistics of a service controller under the metric names of `k8s.io/cloud-provider`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from listwatch.controllers.services.figures import ProviderFigures
from listwatch.controllers.services.statistics import (
    CONVERGENCE_BOUNDS,
    NODE_BOUNDS,
    ServiceControllerStatistics,
)
from listwatch.workqueue.metrics import HistogramStatistics

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
        ("loadbalancer_sync", "Load balancers created or updated.", statistics.ensured),
        ("nodesync_error", "Load balancers that did not accept new nodes.", statistics.node_errors),
        ("loadbalancer_delete", "Load balancers removed.", statistics.deleted),
        ("sync_error", "Failures of a service's synchronisation.", statistics.failures),
    ):
        yield CounterMetricFamily(f"service_controller_{name}", words, value=count)
    for name, words, gauge in (
        ("load_balancers", "Services that have a load balancer.", statistics.services),
        ("nodes", "Nodes that load balancers use.", statistics.nodes),
        ("retrying", "Services waiting for a retry.", statistics.retrying),
        ("depth", "Services waiting for a worker.", statistics.queue.depth),
    ):
        yield GaugeMetricFamily(f"service_controller_{name}", words, value=gauge)
    for name, words, durations, bounds in (
        (
            "nodesync_latency_seconds",
            "Time to update the nodes of all load balancers.",
            statistics.node_sync_seconds,
            NODE_BOUNDS,
        ),
        (
            "update_loadbalancer_host_latency_seconds",
            "Time to update the nodes of one load balancer.",
            statistics.host_update_seconds,
            NODE_BOUNDS,
        ),
        (
            "convergence_seconds",
            "Time from the first sync of a changed service until it is served or removed.",
            statistics.convergence_seconds,
            CONVERGENCE_BOUNDS,
        ),
    ):
        buckets, total = _buckets(durations, bounds)
        yield HistogramMetricFamily(
            f"service_controller_{name}", words, buckets=buckets, sum_value=total
        )


def _buckets(
    durations: HistogramStatistics, bounds: Sequence[float]
) -> tuple[list[tuple[str, float]], float]:
    count = 0.0
    buckets: list[tuple[str, float]] = []
    for bound, more in zip([*map(str, bounds), "+Inf"], durations.counts, strict=True):
        count += more
        buckets.append((bound, count))
    return buckets, durations.sum


def collect_load_balancers(figures: ProviderFigures) -> Iterator["Metric"]:
    """Yield a provider's metric families: per load balancer, and for address pools."""
    from prometheus_client.core import (  # noqa: PLC0415 - loaded only where metrics are served
        CounterMetricFamily,
        GaugeMetricFamily,
    )

    labels = ["namespace", "service"]
    prefix = "service_controller_load_balancer"
    for name, words in (
        ("connections", "Current connections and UDP flows."),
        ("backends", "Backends, counted for each port."),
        ("failed_backends", "Unhealthy backends."),
    ):
        gauges = GaugeMetricFamily(f"{prefix}_{name}", words, labels=labels)
        for one in figures.load_balancers:
            is_open = name == "connections"
            gauge = one.traffic.open if is_open else getattr(one, name)
            gauges.add_metric([one.namespace, one.name], gauge)
        yield gauges
    for name, words in (
        ("accepted", "Connections and UDP flows accepted."),
        ("refused", "Connections refused because of their source or a limit."),
        ("failed", "Connections for which no backend was found."),
        ("bytes_in", "Bytes received from clients."),
        ("bytes_out", "Bytes sent to clients."),
    ):
        counters = CounterMetricFamily(f"{prefix}_{name}", words, labels=labels)
        for one in figures.load_balancers:
            counters.add_metric([one.namespace, one.name], getattr(one.traffic, name))
        yield counters
    used = GaugeMetricFamily(
        "service_controller_addresses_used", "Addresses in use.", labels=["pool"]
    )
    free = GaugeMetricFamily(
        "service_controller_addresses_free", "Free addresses.", labels=["pool"]
    )
    for pool, (taken, size) in figures.pools.items():
        used.add_metric([pool], taken)
        free.add_metric([pool], size - taken)
    yield used
    yield free
    yield GaugeMetricFamily(
        "service_controller_addresses_misfit",
        "Addresses in use that no pool would give now.",
        value=figures.misfits,
    )
    for name, count in {"shortages": figures.shortages, **figures.counters}.items():
        words = f"Total {name.replace('_', ' ')} of the provider."
        yield CounterMetricFamily(f"service_controller_provider_{name}", words, value=count)
