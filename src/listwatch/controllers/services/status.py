"""The table of `listwatch service-controller --status`."""

import asyncio
import urllib.request
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from listwatch.client.client import Client
from listwatch.controllers.services.providers.endpoints import SERVICE_NAME, Endpoints
from listwatch.controllers.services.service import (
    InvalidServiceError,
    Service,
    wants_load_balancer,
)
from listwatch.errors import ListWatchError
from listwatch.objects import Object
from listwatch.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

#: Seconds that a running controller has to return its metrics.
_SECONDS: Final = 10.0
_LARGEST_ANSWER: Final = 64 * 1024 * 1024


class NoStatusError(ListWatchError):
    """The running controller does not return its metrics."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One service.

    Attributes:
        key: namespace and name.
        addresses: those in its status; empty while it waits.
        ports: numbers and protocols.
        backends: ready endpoints, counted for each port.
        figures: a running controller's values, by metric name; None without one.
    """

    key: str
    addresses: Sequence[str]
    ports: Sequence[str]
    backends: int
    figures: Mapping[str, float] | None = None

    @property
    def health(self) -> str:
        """Return the health of the backends as text."""
        if self.figures is None:
            return ""
        count = self.figures.get("backends", 0)
        failed = self.figures.get("failed_backends", 0)
        if not count:
            return "no backends"
        return f"{count - failed:.0f} of {count:.0f} up"


async def rows(client: Client, load_balancer_class: str | None, metrics_url: str = "") -> list[Row]:
    """Return the services that a controller of this class serves.

    Args:
        client: for the API server.
        load_balancer_class: None for services without a class.
        metrics_url: of a running controller; empty for none.

    Raises:
        NoStatusError: the running controller does not respond.
        ListWatchError: the server refuses.
    """
    found = await client.list("services.v1.")
    slices = await client.list("endpointslices.v1.discovery.k8s.io", label_selector=SERVICE_NAME)
    endpoints = Endpoints(lambda _key: None)
    endpoints.replace(slices.items, "")
    figures = await _figures(metrics_url) if metrics_url else None
    made = [_row(obj, load_balancer_class, endpoints, figures) for obj in found.items]
    return sorted((row for row in made if row is not None), key=lambda row: row.key)


def _row(
    obj: Object,
    load_balancer_class: str | None,
    endpoints: Endpoints,
    figures: Mapping[str, Mapping[str, float]] | None,
) -> Row | None:
    try:
        service = Service.of(obj)
    except InvalidServiceError:
        return None
    if not wants_load_balancer(service, load_balancer_class):
        return None
    spec = service.spec
    return Row(
        key=service.key,
        addresses=[each.ip or each.hostname for each in service.status.ingress],
        ports=[f"{port.port}/{port.protocol}" for port in spec.ports],
        backends=sum(
            len(endpoints.backends(service.key, port, spec.ip_families)) for port in spec.ports
        ),
        figures=None if figures is None else figures.get(service.key, {}),
    )


async def _figures(url: str) -> dict[str, dict[str, float]]:
    """Return a running controller's values by service, then by the suffix of the metric."""
    from prometheus_client.parser import (  # noqa: PLC0415 - loaded on first use
        text_string_to_metric_families,
    )

    def fetch() -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=_SECONDS) as answer:
            return str(answer.read(_LARGEST_ANSWER).decode("utf-8", "replace"))

    try:
        families = list(text_string_to_metric_families(await asyncio.to_thread(fetch)))
    except (OSError, ValueError) as error:
        raise NoStatusError(
            f"no metrics at {url}: {error}; give the --health-host and --health-port of a running "
            "controller, which logs them at start-up"
        ) from None
    figures: dict[str, dict[str, float]] = {}
    prefix = "service_controller_load_balancer_"
    for sample in (sample for family in families for sample in family.samples):
        labels = sample.labels
        if sample.name.startswith(prefix) and "service" in labels:
            key = f"{labels.get('namespace', '')}/{labels['service']}"
            name = sample.name.removeprefix(prefix).removesuffix("_total")
            figures.setdefault(key, {})[name] = sample.value
    return figures


def table(found: Sequence[Row]) -> "Table":
    """Return the rows as a table for a terminal."""
    from rich.table import Table  # noqa: PLC0415 - loaded on first use
    from rich.text import Text  # noqa: PLC0415 - as above

    made = Table("SERVICE", "ADDRESS", "PORTS", "BACKENDS", box=None, pad_edge=False)
    has_figures = any(row.figures is not None for row in found)
    if has_figures:
        for title in ("HEALTH", "OPEN", "ACCEPTED", "REFUSED"):
            made.add_column(title)
    for row in found:
        cells = [
            printable(row.key),
            printable(", ".join(row.addresses)) or "pending",
            printable(", ".join(row.ports)),
            str(row.backends),
        ]
        if has_figures:
            figures = row.figures or {}
            cells.append(row.health)
            cells += [
                f"{figures.get(name, 0):.0f}" for name in ("connections", "accepted", "refused")
            ]
        made.add_row(*map(Text, cells))
    return made
