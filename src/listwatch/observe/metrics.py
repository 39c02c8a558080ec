"""Metrics of an observer, under the original command's names and in seconds."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Gauge, Histogram, Summary, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from listwatch.observe.dispatch import DispatchStatistics
from listwatch.observe.execute import Outcome

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)


class ObserveMetrics:
    """The metrics of one observer, in their own registry.

    Keeps the names of the original command: `observe_counts`, `observe_exec_durations_milliseconds`
    and `observe_name_exec_durations_milliseconds`. Their milliseconds are not truncated. Adds
    histograms in seconds.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counts: dict[str, int] = {}
        self._registry.register(_Counts(self._counts))
        self._milliseconds = Summary(
            "observe_exec_durations_milliseconds",
            "Duration of the commands run for changes, in milliseconds",
            ["type", "exit_code"],
            registry=self._registry,
        )
        self._names_milliseconds = Summary(
            "observe_name_exec_durations_milliseconds",
            "Duration of the --names command, in milliseconds",
            ["exit_code"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "observe_exec_duration_seconds",
            "Duration of the commands run for changes",
            ["type"],
            buckets=_SECONDS,
            registry=self._registry,
        )

    def watch(self, statistics: Callable[[], DispatchStatistics]) -> None:
        """Show the state of a dispatcher."""
        waiting = Gauge(
            "observe_waiting", "Changes that wait for their turn", registry=self._registry
        )
        waiting.set_function(lambda: statistics().waiting)
        running = Gauge(
            "observe_running", "Changes whose command is running", registry=self._registry
        )
        running.set_function(lambda: statistics().running)

    def told(self, kind: str) -> None:
        """Count a change of this type."""
        self._counts[kind] = self._counts.get(kind, 0) + 1

    def ran(self, kind: str, outcome: Outcome) -> None:
        """Measure one run of a command."""
        self._milliseconds.labels(kind, str(outcome.exit_code)).observe(outcome.seconds * 1000)
        self._seconds.labels(kind).observe(outcome.seconds)

    def ran_names(self, outcome: Outcome) -> None:
        """Measure one run of the --names command."""
        self._names_milliseconds.labels(str(outcome.exit_code)).observe(outcome.seconds * 1000)

    def text(self) -> str:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry).decode()


class _Counts(Collector):
    """`observe_counts`; the library's Counter would rename it to `observe_counts_total`."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        metric = Metric("observe_counts", "Number of changes observed", "unknown")
        for kind, count in self._counts.items():
            metric.add_sample("observe_counts", {"type": kind}, count)
        yield metric
