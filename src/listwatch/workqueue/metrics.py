"""Statistics of work queues, also under the metric names of client-go.

Names, help texts and buckets are those of Kubernetes `component-base/metrics/prometheus/workqueue`.
All values are computed at the time of a scrape.
"""

import itertools
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector

#: Upper bounds of the histograms' buckets, in seconds; one more bucket holds everything above.
BOUNDS = (1e-08, 1e-07, 1e-06, 1e-05, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)

#: Maximum values of the label `priority` for one queue's depth; the rest share one more value.
PRIORITY_LABELS = 25
_OTHER_PRIORITIES = "exceeded_cardinality_limit"


class HistogramStatistics(msgspec.Struct, frozen=True):
    """Number of durations in each bucket and above, and their sum in seconds."""

    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)


class WorkQueueStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a work queue."""

    name: str
    #: Items due: ready for a worker, or added again while being processed.
    depth: int
    #: `depth` by priority; empty unless the queue has priorities.
    depth_by_priority: Mapping[int, int]
    #: Items not due yet (`add_after`, `add_rate_limited`).
    waiting: int
    #: Items that workers have taken and not finished.
    processing: int
    #: Workers waiting for an item.
    idle_workers: int
    #: Items that became due, in total; adding an item that is due already does not count.
    adds: int
    #: Calls of `add_after` and `add_rate_limited`, in total.
    retries: int
    #: Time from due until taken.
    queue_duration: HistogramStatistics
    #: Time from taken until done.
    work_duration: HistogramStatistics
    #: Sum of the seconds for which the items in process have been processed.
    unfinished_work_seconds: float
    #: The longest of these times.
    longest_running_processor_seconds: float
    shutting_down: bool


class HasWorkQueueStatistics(Protocol):
    """Any queue that offers work queue statistics."""

    def statistics(self) -> WorkQueueStatistics:
        """Return the current state."""


class Histogram:
    """Counts durations.

    Args:
        bounds: upper bounds of the buckets in seconds, in ascending order.
    """

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = BOUNDS) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    def statistics(self) -> HistogramStatistics:
        """Return the counts."""
        return HistogramStatistics(tuple(self.counts), self.sum)


def prometheus_metrics(queues: Iterable[HasWorkQueueStatistics]) -> "Iterator[Metric]":
    """Yield the metric families `workqueue_…` of these queues, labelled with their names.

    As in client-go, queues without a name are left out. If several queues have one name, the second
    is labelled `NAME-2`, the third `NAME-3`, and so on: Prometheus rejects a scrape with a
    duplicate series as a whole. May be called from any thread.
    """
    from prometheus_client import core  # noqa: PLC0415 - loaded only where metrics are served

    named = _with_unique_names([queue.statistics() for queue in queues])

    depth = core.GaugeMetricFamily(
        "workqueue_depth", "Current depth of workqueue", labels=["name", "priority"]
    )
    for state in named:
        for priority, count in _depths(state):
            depth.add_metric([state.name, priority], count)
    yield depth

    for kind, field, name, words in (
        (core.CounterMetricFamily, "adds", "adds", "Adds handled by workqueue"),
        (core.CounterMetricFamily, "retries", "retries", "Retries handled by workqueue"),
        (
            core.GaugeMetricFamily,
            "unfinished_work_seconds",
            "unfinished_work_seconds",
            "Seconds of work in progress that work_duration has not observed yet",
        ),
        (
            core.GaugeMetricFamily,
            "longest_running_processor_seconds",
            "longest_running_processor_seconds",
            "Seconds for which the longest running processor has been running",
        ),
    ):
        family = kind(f"workqueue_{name}", words, labels=["name"])
        for state in named:
            family.add_metric([state.name], getattr(state, field))
        yield family

    for field, words in (
        ("queue_duration", "Seconds that an item stays in workqueue before being requested"),
        ("work_duration", "Seconds that processing an item from workqueue takes"),
    ):
        histogram = core.HistogramMetricFamily(f"workqueue_{field}_seconds", words, labels=["name"])
        for state in named:
            durations: HistogramStatistics = getattr(state, field)
            bounds = [*map(str, BOUNDS), "+Inf"]
            running = itertools.accumulate(durations.counts)
            histogram.add_metric(
                [state.name], list(zip(bounds, running, strict=True)), durations.sum
            )
        yield histogram


def prometheus_collector(queues: Collection[HasWorkQueueStatistics]) -> "Collector":
    """Return a collector for `prometheus_client.REGISTRY.register`, computed at each scrape.

    A queue added to `queues` later appears in the next scrape.
    """
    from prometheus_client.registry import Collector  # noqa: PLC0415 - as in prometheus_metrics

    class WorkQueueCollector(Collector):
        def collect(self) -> "Iterator[Metric]":
            return prometheus_metrics(queues)

    return WorkQueueCollector()


def _with_unique_names(states: Sequence[WorkQueueStatistics]) -> list[WorkQueueStatistics]:
    taken = {state.name for state in states}
    seen: set[str] = set()
    numbers: dict[str, Iterator[int]] = {}
    unique: list[WorkQueueStatistics] = []
    for state in states:
        name = state.name
        if not name:
            continue
        if name in seen:
            count = numbers.setdefault(name, itertools.count(2))
            name = next(new for number in count if (new := f"{name}-{number}") not in taken)
            state = msgspec.structs.replace(state, name=name)  # noqa: PLW2901 - under its label
        seen.add(name)
        unique.append(state)
    return unique


def _depths(state: WorkQueueStatistics) -> list[tuple[str, int]]:
    if not state.depth_by_priority:
        return [("", state.depth)]
    # The highest priorities keep their own label: alerts look at them.
    highest = sorted(state.depth_by_priority.items(), reverse=True)
    labelled = [(str(priority), count) for priority, count in highest[:PRIORITY_LABELS]]
    rest = sum(count for _, count in highest[PRIORITY_LABELS:])
    return [*labelled, (_OTHER_PRIORITIES, rest)] if rest else labelled
