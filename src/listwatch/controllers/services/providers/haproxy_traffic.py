"""HAProxy's traffic, summed across reloads: each reload resets the counters."""

import csv
from collections.abc import Iterable
from typing import Final

from listwatch.controllers.services.figures import Traffic

#: Seconds between two queries of the traffic.
TRAFFIC_SECONDS: Final = 5.0


class HAProxyTraffic:
    """Sums the responses to `show stat`. For one event loop."""

    def __init__(self) -> None:
        # The counts of former processes, and of the current one, by frontend.
        self._before: dict[str, Traffic] = {}
        self._now: dict[str, Traffic] = {}
        self._failed: dict[str, int] = {}

    def total(self, frontend: str) -> Traffic:
        """Return the traffic of a frontend since its creation."""
        return self._before.get(frontend, Traffic()) + self._now.get(frontend, Traffic())

    def failed(self, frontend: str) -> int:
        """Return how many backends of a frontend are down."""
        return self._failed.get(frontend, 0)

    def read(self, text: str) -> None:
        """Add a response to `show stat`."""
        rows = list(csv.DictReader(text.removeprefix("# ").splitlines()))
        if not rows:
            return
        found = {row["pxname"]: _traffic_of(row) for row in rows if row["svname"] == "FRONTEND"}
        errors = {row["pxname"]: _number(row, "econ") for row in rows if row["svname"] == "BACKEND"}
        self._failed = _down(rows)
        now: dict[str, Traffic] = {}
        for name, traffic in found.items():
            now[name] = traffic + Traffic(failed=errors.get(name, 0))
            former = self._now.get(name, Traffic())
            if now[name].accepted < former.accepted or now[name].bytes_in < former.bytes_in:
                self._before[name] = self._before.get(name, Traffic()) + _without_open(former)
        for name in self._before.keys() - found.keys():
            del self._before[name]
        self._now = now


def _without_open(traffic: Traffic) -> Traffic:
    return traffic + Traffic(open=-traffic.open)


def _traffic_of(row: dict[str, str]) -> Traffic:
    return Traffic(
        open=_number(row, "scur"),
        accepted=_number(row, "stot"),
        refused=_number(row, "dcon"),
        bytes_in=_number(row, "bin"),
        bytes_out=_number(row, "bout"),
    )


def _down(rows: Iterable[dict[str, str]]) -> dict[str, int]:
    failed: dict[str, int] = {}
    for row in rows:
        if row["svname"] not in {"FRONTEND", "BACKEND"} and row["status"].startswith("DOWN"):
            failed[row["pxname"]] = failed.get(row["pxname"], 0) + 1
    return failed


def _number(row: dict[str, str], name: str) -> int:
    text = row.get(name) or ""
    return int(text) if text.isdecimal() else 0
