"""Draw the main series of deploy/monitoring/dashboard.json from a real run, as an SVG.

Usage: python tools/draw_dashboard.py docs/images/dashboard.svg

It runs a controller on the embedded API server for half a minute, with changes, failures and a
client-side limit, and scrapes its /metrics each second. Grafana's renderer is not needed:
matplotlib (pip install matplotlib) draws the same series, with rates over five seconds.
"""

import asyncio
import random
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import aiohttp
import matplotlib as mpl
from matplotlib import pyplot as plt
from prometheus_client.parser import text_string_to_metric_families

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.runtime.manager import Manager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SECONDS = 30
WINDOW = 5
Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def run() -> list[tuple[float, Scrape]]:
    """Run a controller with trouble, and return its scrapes."""
    rng = random.Random(1)  # noqa: S311 - a workload, not cryptography
    async with EmbeddedAPIServer() as server, Client(Config(server=server.url)) as client:
        for number in range(100):
            await client.create(_shop(number))
        app = Manager("shop", config=Config(server=server.url, qps=60, burst=20))
        shops = app.reconciler("shops", concurrency=4).for_("configmaps", namespace="default")

        @shops
        async def reconcile(key: str) -> None:
            shop = shops.get(key)
            if shop is None:
                return
            await asyncio.sleep(rng.expovariate(20))
            if rng.random() < 0.1:
                raise TimeoutError("the supplier does not answer")
            if shop["data"].get("seen") != shop["data"]["n"]:
                await app.client.patch(
                    "configmaps", shop.name, {"data": {"seen": shop["data"]["n"]}}, "default"
                )

        async def change() -> None:
            while True:
                number = rng.randrange(100)
                await client.patch(
                    "configmaps", f"shop-{number}", {"data": {"n": str(rng.random())}}, "default"
                )
                await asyncio.sleep(0.03 if time.monotonic() % 15 < 5 else 0.2)

        async with app, aiohttp.ClientSession() as session:
            changing = asyncio.create_task(change())
            scrapes = [await _scrape(session, f"{app.health_url}/metrics") for _ in range(SECONDS)]
            changing.cancel()
    return scrapes


def _shop(number: int) -> dict[str, Any]:
    metadata = {"name": f"shop-{number}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"n": "0"}}


async def _scrape(session: aiohttp.ClientSession, url: str) -> tuple[float, Scrape]:
    await asyncio.sleep(1)
    async with session.get(url) as response:
        families = text_string_to_metric_families(await response.text())
        found = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }
        return time.monotonic(), found


def by(scrape: Scrape, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the sums of a metric by some of its labels."""
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for (metric, pairs), value in scrape.items():
        if metric == name:
            known = dict(pairs)
            sums[tuple(known.get(label, "") for label in labels)] += value
    return sums


def rates(scrapes: list[tuple[float, Scrape]], name: str, *labels: str) -> dict[str, list[float]]:
    """Return rates a second, by label values."""
    lines: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(scrapes) - WINDOW))
    for place in range(WINDOW, len(scrapes)):
        (then, before), (now, after) = scrapes[place - WINDOW], scrapes[place]
        old = by(before, name, *labels)
        for key, value in by(after, name, *labels).items():
            lines[" ".join(key)][place - WINDOW] = (value - old.get(key, 0.0)) / (now - then)
    return lines


def quantile(
    scrapes: list[tuple[float, Scrape]], name: str, label: str, share: float
) -> dict[str, list[float]]:
    """Return a quantile of a histogram by one label, as histogram_quantile does."""
    lines: dict[str, list[float]] = defaultdict(lambda: [float("nan")] * (len(scrapes) - WINDOW))
    for place in range(WINDOW, len(scrapes)):
        old = by(scrapes[place - WINDOW][1], f"{name}_bucket", label, "le")
        buckets: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for (key, bound), value in by(scrapes[place][1], f"{name}_bucket", label, "le").items():
            buckets[key].append((float(bound), value - old.get((key, bound), 0.0)))
        for key, counts in buckets.items():
            lines[key][place - WINDOW] = _quantile(sorted(counts), share)
    return lines


def _quantile(counts: list[tuple[float, float]], share: float) -> float:
    wanted = share * counts[-1][1]
    if not wanted:
        return float("nan")
    lower, below = 0.0, 0.0
    for bound, count in counts:
        if count >= wanted:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = bound, count
    return lower


def gauges(scrapes: list[tuple[float, Scrape]], name: str, label: str) -> dict[str, list[float]]:
    """Return the values of a gauge by one label."""
    lines: dict[str, list[float]] = defaultdict(list)
    for _, scrape in scrapes[WINDOW:]:
        for (key,), value in by(scrape, name, label).items():
            lines[key].append(value)
    return lines


def main() -> None:
    """Run, and draw."""
    mpl.rcParams["svg.hashsalt"] = "listwatch"
    scrapes = asyncio.run(run())
    panels: Mapping[str, Callable[[], dict[str, list[float]]]] = {
        "Reconciles by result, per second": lambda: rates(
            scrapes, "controller_runtime_reconcile_total", "result"
        ),
        "Duration of reconciles, 99 %, seconds": lambda: quantile(
            scrapes, "controller_runtime_reconcile_time_seconds", "controller", 0.99
        ),
        "Keys due": lambda: gauges(scrapes, "workqueue_depth", "name"),
        "Wait in the queue, 99 %, seconds": lambda: quantile(
            scrapes, "workqueue_queue_duration_seconds", "name", 0.99
        ),
        "Requests by code, per second": lambda: rates(
            scrapes, "rest_client_requests_total", "code"
        ),
        "Wait for the client's own limit, seconds per second": lambda: rates(
            scrapes, "rest_client_rate_limiter_duration_seconds_sum", "verb"
        ),
    }
    figure, axes = plt.subplots(3, 2, figsize=(10, 8), layout="constrained")
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=True):
        for label, values in lines().items():
            axis.plot(range(WINDOW, WINDOW + len(values)), values, label=label)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=8, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[1], metadata={"Date": None})


if __name__ == "__main__":
    main()
