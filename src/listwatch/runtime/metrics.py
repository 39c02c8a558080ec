"""Metrics of a manager's parts, under the names that common dashboards use.

Everything is computed from `statistics()` at a scrape, so parts that nobody scrapes cost nothing.
Names without the prefix `listwatch_` are those of controller-runtime and client-go.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from listwatch.client.request_statistics import RequestStatistics
from listwatch.runtime.caches import Cache
from listwatch.runtime.candidate import LeaderElectionStatistics
from listwatch.runtime.events import EventRecorderStatistics
from listwatch.runtime.reconciler_statistics import ReconcilerStatistics
from listwatch.workqueue.metrics import (
    BOUNDS,
    HistogramStatistics,
    WorkQueueStatistics,
    prometheus_metrics,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

# A double holds 15 digits exactly (KEP-5647).
_VERSION_DIGITS: Final = 15


class Measured(msgspec.Struct, frozen=True):
    """The sources of the metrics; each is called at a scrape."""

    reconcilers: Callable[[], Sequence[ReconcilerStatistics]]
    caches: Callable[[], Iterable[Cache]]
    election: Callable[[], LeaderElectionStatistics | None]
    events: Callable[[], EventRecorderStatistics | None]
    requests: Callable[[], RequestStatistics | None] = lambda: None
    others: Callable[[], Iterable["Metric"]] = tuple


def make_registry(parts: Measured) -> "CollectorRegistry":
    """Return a registry of these parts, the process and the interpreter."""
    from prometheus_client import (  # noqa: PLC0415 - loaded only where metrics are served
        CollectorRegistry,
        GCCollector,
        PlatformCollector,
        ProcessCollector,
    )
    from prometheus_client.registry import Collector  # noqa: PLC0415 - as above

    class PartsCollector(Collector):
        def collect(self) -> Iterator["Metric"]:
            return collect(parts)

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(PartsCollector())
    return registry


def collect(parts: Measured) -> Iterator["Metric"]:
    """Yield the metric families of these parts."""
    reconcilers = parts.reconcilers()
    yield from prometheus_metrics([_Fixed(state) for state in reconcilers])
    yield from _reconciler_metrics(reconcilers)
    yield from _own_writes_metrics(reconcilers)
    yield from _cache_metrics(list(parts.caches()))
    yield from _other_metrics(parts.election(), parts.events())
    if (requests := parts.requests()) is not None:
        yield from requests.metrics()
    yield from parts.others()


class _Fixed:
    """A queue's statistics in the place of the queue."""

    def __init__(self, state: ReconcilerStatistics) -> None:
        self._state = state

    def statistics(self) -> WorkQueueStatistics:
        """Return the queue's statistics."""
        return self._state.queue


def _own_writes_metrics(states: Sequence[ReconcilerStatistics]) -> Iterator["Metric"]:
    from prometheus_client import core  # noqa: PLC0415 - as above

    for name, words, field in (
        ("waits", "Keys delayed until the caches had their last write", "waits"),
        ("wait_seconds", "How long keys were delayed for that", "seconds"),
        ("timeouts", "Keys released although a cache lacked their last write", "timeouts"),
    ):
        family = core.CounterMetricFamily(
            f"listwatch_own_writes_{name}", words, labels=["controller"]
        )
        for state in states:
            if state.own_writes is not None:
                family.add_metric([state.name], getattr(state.own_writes, field))
        yield family


def _reconciler_metrics(states: Sequence[ReconcilerStatistics]) -> Iterator["Metric"]:
    from prometheus_client import core  # noqa: PLC0415 - as above

    total = core.CounterMetricFamily(
        "controller_runtime_reconcile",
        "Reconciliations per controller, by result",
        labels=["controller", "result"],
    )
    for state in states:
        for result, count in (
            ("success", state.successes),
            ("requeue_after", state.requeues),
            ("requeue", state.limited_requeues),
            ("error", state.errors),
        ):
            total.add_metric([state.name, result], count)
    yield total
    for name, words, field in (
        ("reconcile_errors", "Reconciliations that failed", "errors"),
        (
            "terminal_reconcile_errors",
            "Reconciliations that failed and are not retried",
            "terminal_errors",
        ),
        ("reconcile_panics", "Reconciliations that raised an unexpected exception", "panics"),
        ("reconcile_timeouts", "Reconciliations that took too long", "timeouts"),
    ):
        family = core.CounterMetricFamily(
            f"controller_runtime_{name}", words, labels=["controller"]
        )
        for state in states:
            family.add_metric([state.name], getattr(state, field))
        yield family
    throttled = core.CounterMetricFamily(
        "listwatch_reconcile_throttled",
        "Reconciliations delayed because their key is hot",
        labels=["controller"],
    )
    unseen = core.CounterMetricFamily(
        "listwatch_reconcile_unseen_keys",
        "Reconciliations of keys whose objects were never seen, such as those deleted unobserved",
        labels=["controller"],
    )
    for name, words, field in (
        ("max_concurrent_reconciles", "Maximum concurrent reconciliations", "concurrency"),
        ("active_workers", "Reconciliations that run now", "active"),
    ):
        gauge = core.GaugeMetricFamily(f"controller_runtime_{name}", words, labels=["controller"])
        for state in states:
            gauge.add_metric([state.name], getattr(state, field))
        yield gauge
    seconds = core.HistogramMetricFamily(
        "controller_runtime_reconcile_time_seconds",
        "How long a reconciliation takes",
        labels=["controller"],
    )
    for state in states:
        throttled.add_metric([state.name], state.throttled)
        unseen.add_metric([state.name], state.unseen)
        seconds.add_metric([state.name], *_histogram(state.duration))
    yield throttled
    yield unseen
    yield seconds


def _histogram(durations: HistogramStatistics) -> tuple[list[tuple[str, float]], float]:
    bounds = [*map(str, BOUNDS), "+Inf"]
    counts = itertools.accumulate(durations.counts)
    return list(zip(bounds, map(float, counts), strict=True)), durations.sum


def _cache_metrics(caches: Sequence[Cache]) -> Iterator["Metric"]:
    from prometheus_client import core  # noqa: PLC0415 - as above

    label = ["name"]
    lists = core.CounterMetricFamily("reflector_lists", "Lists requested", labels=label)
    watches = core.CounterMetricFamily("reflector_watches", "Watches requested", labels=label)
    errors = core.CounterMetricFamily(
        "listwatch_reflector_errors", "Failures of lists and watches", labels=label
    )
    queued = core.GaugeMetricFamily(
        "informer_queued_items", "Changes received and not yet processed", labels=label
    )
    version = core.GaugeMetricFamily(
        "informer_store_resource_version",
        "The last 15 digits of the resource version up to which the cache is",
        labels=label,
    )
    objects = core.GaugeMetricFamily("listwatch_cache_objects", "Objects cached", labels=label)
    ready = core.GaugeMetricFamily(
        "listwatch_cache_ready", "1 if the cache is reliable", labels=label
    )
    age = core.GaugeMetricFamily(
        "listwatch_cache_last_frame_age_seconds",
        "Seconds since the last data from the server",
        labels=label,
    )
    for cache in caches:
        labels = [cache.name]
        ready.add_metric(labels, int(cache.health().ready))
        state = cache.statistics()
        if state is None:
            continue
        reflector = state.controller.reflector
        lists.add_metric(labels, reflector.lists)
        watches.add_metric(labels, reflector.watches)
        errors.add_metric(labels, reflector.errors)
        queued.add_metric(labels, state.controller.queue.depth)
        objects.add_metric(labels, state.store.objects)
        if reflector.last_frame_age is not None:
            age.add_metric(labels, reflector.last_frame_age)
        applied = state.store.last_store_sync_resource_version
        if applied.isdecimal():
            version.add_metric(labels, int(applied[-_VERSION_DIGITS:]))
    yield from (lists, watches, errors, queued, version, objects, ready, age)


def _other_metrics(
    election: LeaderElectionStatistics | None, events: EventRecorderStatistics | None
) -> Iterator["Metric"]:
    from prometheus_client import core  # noqa: PLC0415 - as above

    if election is not None:
        status = core.GaugeMetricFamily(
            "leader_election_master_status",
            "1 if this process is the leader of the lease",
            labels=["name"],
        )
        status.add_metric([election.name], int(election.is_leader))
        yield status
        slow = core.CounterMetricFamily(
            "leader_election_slowpath",
            "Renewals that needed a read of the lease",
            labels=["name"],
        )
        slow.add_metric([election.name], election.slow_renewals)
        yield slow
    if events is not None:
        outcome = core.CounterMetricFamily(
            "listwatch_events", "Events reported, by outcome", labels=["result"]
        )
        for result in ("written", "counted", "spam", "overflowed", "failed"):
            outcome.add_metric([result], getattr(events, result))
        yield outcome
