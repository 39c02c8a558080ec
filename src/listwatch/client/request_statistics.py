"""Statistics of a client's requests, under the metric names of client-go.

Names and buckets are those of Kubernetes `component-base/metrics/prometheus/restclient`. The labels
`verb` and `resource` say more: LIST and WATCH are verbs of their own, as in the API server's
metrics.
"""

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from listwatch.client.request_target import target_of, verb_of
from listwatch.workqueue.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

#: Upper bounds of the buckets, in seconds.
BOUNDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
#: The code of a request without a response.
NO_RESPONSE: Final = "<error>"
#: More resources than these share one value of the label.
MAX_RESOURCES: Final = 500
_OTHER_RESOURCES: Final = "exceeded_cardinality_limit"


class RequestKind(NamedTuple):
    """What a request does.

    Attributes:
        method: the HTTP method.
        verb: as in an API server's metrics, such as LIST.
        resource: such as "deployments.apps/status"; empty if it is none, as in /version.
    """

    method: str
    verb: str
    resource: str


class RequestStatistics:
    """Counts and times requests. For one event loop; any thread may read it.

    Args:
        host: the server's host and port, a label of the metrics.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        #: By kind and status code.
        self.counts: dict[tuple[RequestKind, str], int] = {}
        #: Seconds until the end of the response, of a stream until its beginning.
        self.durations: dict[RequestKind, Histogram] = {}
        #: Seconds that requests waited for the client's own rate limit.
        self.throttled: dict[RequestKind, Histogram] = {}
        self._resources: set[str] = set()

    def kind(
        self, method: str, path: str, query: "Iterable[tuple[str, str]]", content_type: str
    ) -> RequestKind:
        """Return what a request does.

        Args:
            method: the HTTP method.
            path: below the server's URL.
            query: names and values.
            content_type: of the body.
        """
        target = target_of(path)
        resource = "" if target is None else target.resource
        if resource not in self._resources:
            if len(self._resources) < MAX_RESOURCES:
                self._resources.add(resource)
            else:
                resource = _OTHER_RESOURCES
        return RequestKind(method, verb_of(method, target, query, content_type), resource)

    def count(self, kind: RequestKind, code: str) -> None:
        """Count a response's status code, or `NO_RESPONSE`."""
        key = (kind, code)
        self.counts[key] = self.counts.get(key, 0) + 1

    def took(self, kind: RequestKind, seconds: float) -> None:
        """Record the duration of a request."""
        _observe(self.durations, kind, seconds)

    def waited(self, kind: RequestKind, seconds: float) -> None:
        """Record the wait for the client's own rate limit."""
        _observe(self.throttled, kind, seconds)

    def metrics(self) -> "Iterator[Metric]":
        """Yield the metric families `rest_client_…`."""
        from prometheus_client import core  # noqa: PLC0415 - loaded only where metrics are served

        total = core.CounterMetricFamily(
            "rest_client_requests",
            "HTTP requests, by status code, method, host, verb and resource",
            labels=["code", "method", "host", "verb", "resource"],
        )
        for (kind, code), number in list(self.counts.items()):
            total.add_metric([code, kind.method, self.host, kind.verb, kind.resource], number)
        yield total
        bounds = [*map(str, BOUNDS), "+Inf"]
        for name, words, histograms in (
            (
                "request_duration",
                "Seconds until the response had been read, or a stream had begun",
                self.durations,
            ),
            (
                "rate_limiter_duration",
                "Seconds that requests waited for the client's own rate limit",
                self.throttled,
            ),
        ):
            family = core.HistogramMetricFamily(
                f"rest_client_{name}_seconds", words, labels=["verb", "host", "resource"]
            )
            for kind, histogram in list(histograms.items()):
                running = map(float, itertools.accumulate(histogram.counts))
                buckets = list(zip(bounds, running, strict=True))
                family.add_metric([kind.verb, self.host, kind.resource], buckets, histogram.sum)
            yield family


def _observe(histograms: dict[RequestKind, Histogram], kind: RequestKind, seconds: float) -> None:
    found = histograms.get(kind)
    if found is None:
        found = histograms[kind] = Histogram(BOUNDS)
    found.observe(seconds)
