"""Measures this package and its rivals, and writes docs/benchmarks.md with its plots.

    pip install matplotlib  # for the plots
    python bench/report.py --write  # everything, in about 10 minutes
    python bench/report.py --render --write  # only the page, from bench/results/

Each contestant is a process of its own that follows all pods of the embedded API server as its
documentation shows, and keeps a local copy of them (`bench/rivals.py`). The CPU and the memory are
those of its whole process, with the interpreter's start and all imports, until all pods are in
memory. Then the server sends updates, and after them some that tell when they were sent. A stage
that lasts longer than a minute is stopped. With `--write`, figures, versions and the machine's
state are written to bench/results/report.json; the page also has the tables of bench/faults.py and
of client-go.
"""

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from publishing import put_in
from rivals import RIVALS, Cluster, Recorder, follow, rivals_python
from sync import server

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "bench" / "results" / "report.json"
FAULTS: Final = RESULTS.with_name("faults.json")
CLIENT_GO: Final = RESULTS.with_name("client_go.json")
PAGE: Final = ROOT / "docs" / "benchmarks.md"
README: Final = ROOT / "README.md"
IMAGES: Final = ROOT / "docs" / "images"
MARK: Final = "python bench/report.py"

OURS: Final = "listwatch"
CONTESTANTS: Final = (OURS, *RIVALS)
#: The size at which updates and latencies are measured.
WATCHED: Final = 1_000
SIZES: Final = (1_000, 10_000)
LARGE: Final = (50_000, 200_000)
#: Seconds for each stage of a run.
STAGE_SECONDS: Final = 60
#: A contestant is measured again, twice, if its run took less than these seconds.
QUICK_SECONDS: Final = 10
UPDATES: Final = 2_000
TICKS: Final = 100

Figures = dict[str, Any]


# --- The contestants -----------------------------------------------------------------------------


async def inform(cluster: Cluster, tell: Recorder) -> None:
    """Follow the pods with this package's informer."""
    from listwatch import Client, SharedInformer  # noqa: PLC0415 - only this process needs it
    from listwatch.client.config import Config  # noqa: PLC0415 - as above

    class Handler:
        def on_add(self, obj: Any, is_in_initial_list: bool) -> None:  # noqa: ARG002, FBT001 - the protocol's
            tell("ADDED", obj.namespace, obj.name, obj.resource_version)

        def on_update(self, old: Any, new: Any) -> None:  # noqa: ARG002 - the protocol's
            annotations = new["metadata"]["annotations"] if tell.timed else None
            tell("MODIFIED", new.namespace, new.name, new.resource_version, annotations)

        def on_delete(self, obj: Any) -> None:  # or a tombstone
            namespace, _, name = obj.key.rpartition("/")
            tell("DELETED", namespace, name, "")

    config = Config(
        server=cluster.url,
        certificate_authority=cluster.authority,
        token="" if cluster.token_file else "t",
        token_file=cluster.token_file,
    )
    async with Client.from_config(config) as client:
        informer = SharedInformer(client.list_watch("pods"))
        informer.add_handler(Handler())
        async with informer:
            await asyncio.Event().wait()


class Contestant:
    """A contestant's process, whose stages are stopped after a minute."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self._what = (
            [sys.executable, __file__, "client"]
            if name == OURS
            else [rivals_python(), str(Path(__file__).with_name("rivals.py")), name]
        )
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - until `end`
        self._process = subprocess.Popen(
            [*self._what, *arguments], stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.problem = ""

    def read(self) -> Figures:
        """Return the figures of the next stage; nothing if there are none, with `problem` set."""
        assert self._process.stdout is not None
        late = threading.Timer(STAGE_SECONDS, self._process.kill)
        late.start()
        try:
            while line := self._process.stdout.readline():
                if line.startswith('{"version"'):
                    figures: Figures = json.loads(line)
                    return figures
        finally:
            late.cancel()
        if self._process.wait() == -9:
            self.problem = f"stopped after {STAGE_SECONDS} s"
        else:
            self._errors.seek(0)
            self.problem = (self._errors.read().strip().splitlines() or ["it ended"])[-1][:200]
        return {}

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._errors.close()


def measure(
    name: str, url: str, authority: str, size: int, orders: "subprocess.Popen[str]"
) -> Figures:
    """Return the figures of one run of a contestant."""
    assert orders.stdin is not None
    watches = size == WATCHED
    updates, ticks = (UPDATES, TICKS) if watches else (0, 0)
    arguments = [url, str(size), f"--updates={updates}", f"--ticks={ticks}"]
    contestant = Contestant(name, [*arguments, f"--ca={authority}"])
    try:
        figures: Figures = {"sync": contestant.read()}
        if watches and figures["sync"]:
            # A list and its watch are two requests: the second may still be on its way.
            time.sleep(1.0)
            orders.stdin.write(f"fire {updates}\n")
            orders.stdin.flush()
            figures["updates"] = contestant.read()
            if figures["updates"]:
                orders.stdin.write(f"tick {ticks}\n")
                orders.stdin.flush()
                late = contestant.read().get("late")
                if late:
                    figures["late"] = {"median": late[len(late) // 2], "p99": late[-2]}
        figures["problem"] = contestant.problem
    finally:
        contestant.end()
    return figures


def report(sizes: Sequence[int], large: Sequence[int]) -> Figures:
    """Run everything and return the report."""
    runs: list[Figures] = []
    load = os.getloadavg()[0]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for size in (*sizes, *large):
            for scheme in ("plain", "TLS"):
                authority = str(Path(folder) / "ca.pem") if scheme == "TLS" else ""
                with server(size, authority) as (url, _, orders):
                    for name in CONTESTANTS if size in sizes else (OURS,):
                        for _ in range(3):
                            started = time.monotonic()
                            figures = measure(name, url, authority, size, orders)
                            runs.append({"name": name, "scheme": scheme, "size": size, **figures})
                            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
                            if time.monotonic() - started > QUICK_SECONDS:
                                break
    packages = ("aiofastnet", "httptools", "msgspec")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "versions": {
            "CPython": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "machine": {"cores": os.cpu_count(), "load before": round(load, 2)},
        "runs": runs,
    }


# --- The page ------------------------------------------------------------------------------------


def best(result: Mapping[str, Any], name: str, scheme: str, size: int) -> Figures:
    """Return the least of each figure of the runs of a contestant; only what was measured."""
    runs = [
        run
        for run in result["runs"]
        if (run["name"], run["scheme"], run["size"]) == (name, scheme, size)
    ]
    found: Figures = {}
    for run in runs:
        figures = {
            "cpu": run["sync"].get("cpu"),
            "peak": run["sync"].get("peak"),
            "update": run.get("updates", {}).get("cpu"),
            **run.get("late", {}),
        }
        for key, value in figures.items():
            if value is not None:
                found[key] = min(value, found.get(key, value))
        if run["problem"]:
            found["problem"] = run["problem"]
    return found


def version_of(result: Mapping[str, Any], name: str) -> str:
    """Return the version of a contestant."""
    versions = [
        run["sync"]["version"] for run in result["runs"] if run["name"] == name and run["sync"]
    ]
    return str(versions[0]) if versions else ""


def _cells(row: Figures, columns: Sequence[tuple[str, float, int]]) -> list[str]:
    return [
        f"{row[key] * factor:,.{digits}f}" if key in row else "—" for key, factor, digits in columns
    ]


def sync_table(result: Mapping[str, Any]) -> str:
    """Return the table of the syncs."""
    lines = ["| client |", "|---|"]
    for size in SIZES:
        for scheme in ("plain", "TLS"):
            lines[0] += f" {size:,} pods, {scheme}: CPU s | peak MB |"
            lines[1] += "---:|---:|"
    for name in CONTESTANTS:
        cells = [f"{name} {version_of(result, name)}"]
        for size in SIZES:
            for scheme in ("plain", "TLS"):
                cells += _cells(best(result, name, scheme, size), [("cpu", 1, 2), ("peak", 1, 0)])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def watch_table(result: Mapping[str, Any]) -> str:
    """Return the table of updates and latencies."""
    columns = [("update", 1e6 / UPDATES, 0), ("median", 1e3, 1), ("p99", 1e3, 1)]
    lines = [
        "| client | CPU μs an update | by TLS | latency, ms: median | p99 | by TLS: median | p99 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in CONTESTANTS:
        plain, tls = (
            _cells(best(result, name, scheme, WATCHED), columns) for scheme in ("plain", "TLS")
        )
        row = [name, plain[0], tls[0], *plain[1:], *tls[1:]]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def large_table(result: Mapping[str, Any]) -> str:
    """Return the table of what only this package is measured at."""
    lines = [
        "| pods | plain: CPU s | peak MB | TLS: CPU s | peak MB |",
        "|---:|---:|---:|---:|---:|",
    ]
    for size in LARGE:
        cells = [f"{size:,}"]
        for scheme in ("plain", "TLS"):
            cells += _cells(best(result, OURS, scheme, size), [("cpu", 1, 2), ("peak", 1, 0)])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def better(result: Mapping[str, Any]) -> str:
    """Return a list of the figures in which a rival is better than this package."""
    figures = [
        ("cpu", 1, "CPU s of a sync", SIZES),
        ("peak", 1, "peak MB", SIZES),
        ("update", 1e6 / UPDATES, "CPU μs an update", (WATCHED,)),
        ("median", 1e3, "median latency in ms", (WATCHED,)),
        ("p99", 1e3, "p99 latency in ms", (WATCHED,)),
    ]
    lines = []
    for key, factor, words, sizes in figures:
        for size in sizes:
            for scheme in ("plain", "TLS"):
                ours = best(result, OURS, scheme, size).get(key, 0)
                rivals = [
                    f"{name} {row[key] * factor:.2f}"
                    for name in RIVALS
                    if (row := best(result, name, scheme, size)).get(key, ours) < ours
                ]
                if rivals:
                    lines.append(
                        f"- {words}, {size:,} pods, {scheme}: {', '.join(rivals)}; "
                        f"{OURS} {ours * factor:.2f}"
                    )
    return "\n".join(lines) or "- nothing"


def problems(result: Mapping[str, Any]) -> str:
    """Return a list of what did not end."""
    found = {
        f"- {run['name']}, {run['size']:,} pods, {run['scheme']}: {run['problem']}"
        for run in result["runs"]
        if run["problem"]
    }
    return "\n".join(sorted(found)) or "- nothing"


def client_go_table(figures: Mapping[str, Any]) -> str:
    """Return the table of client-go, as ratios to this package in the same setting."""
    ours = figures["listwatch"]
    lines = ["| client-go | CPU, x listwatch | peak memory, x listwatch |", "|---|---:|---:|"]
    lines += [
        f"| {row['how']} | {row['cpu'] / ours['cpu']:.1f} | {row['peak'] / ours['peak']:.1f} |"
        for row in figures["client-go"]
    ]
    return "\n".join(lines) + "\n"


def readme_table(result: Mapping[str, Any]) -> str:
    """Return README's table: the syncs of 10,000 pods."""
    size = SIZES[-1]
    lines = ["| client | CPU s | peak MB | CPU μs an update |", "|---|---:|---:|---:|"]
    rows = []
    for name in CONTESTANTS:
        row = best(result, name, "plain", size)
        watched = best(result, name, "plain", WATCHED)
        cells = _cells(row, [("cpu", 1, 2), ("peak", 1, 0)])
        cells += _cells(watched, [("update", 1e6 / UPDATES, 0)])
        shown = f"{name} {version_of(result, name)}"
        rows.append((row.get("cpu", 1e9), [f"**{shown}**" if name == OURS else shown, *cells]))
    lines += [f"| {' | '.join(cells)} |" for _, cells in sorted(rows)]
    more = []
    for size in LARGE:
        cpu, peak = _cells(best(result, OURS, "plain", size), [("cpu", 1, 1), ("peak", 1, 0)])
        more.append(f"{size:,} pods {cpu} s and {peak} MB")
    lines += ["", f"{OURS} needs for {', for '.join(more)}."]
    return "\n".join(lines) + "\n"


def page(result: Mapping[str, Any], faults: Mapping[str, Any], client_go: Mapping[str, Any]) -> str:
    """Return the page."""
    from faults import explanation, table  # noqa: PLC0415 - it imports this module

    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    machine = result["machine"]
    return f"""# Benchmarks

What a local copy of all pods costs, with this package and with other Python clients, and what each
does when its server fails. One command repeats it, in about {result["minutes"]:.0f} minutes:

```
python bench/report.py --write
```

{result["date"]}, {machine["cores"]} cores, load before {machine["load before"]}; {versions}.
Each client is a process of its own that follows all pods of one embedded API server as its
documentation shows: `kubernetes` with its SharedInformer, `kopf` with an index, `knete` with a
controller, the others by list and watch into a dict. CPU and memory are those of the whole process
from its start, imports included, until all pods (about 8.9 KB of JSON each) are in memory: the
least of three runs, or of one that takes more than {QUICK_SECONDS} s. A stage is stopped after
{STAGE_SECONDS} s. The raw figures are in `bench/results/report.json`. All eight rivals install
here, in their newest versions of that day.

## Sync

![CPU of a sync](images/bench-sync.svg)

{sync_table(result)}
Not finished:

{problems(result)}

## Large clusters

![Peak memory](images/bench-memory.svg)

{large_table(result)}
## Updates

{UPDATES:,} updates of {WATCHED:,} pods, then {TICKS} that tell when they were sent, each after a
pause. The latency is from the server's commit to the client's handler, on the same machine.

![CPU of an update](images/bench-updates.svg)

{watch_table(result)}
Figures in which another client is better than listwatch, here or in a sync:

{better(result)}

## client-go

{client_go["method"]} These figures can't be repeated here.

{client_go_table(client_go)}
## When the server fails

{explanation(faults)}

{table(faults)}
[The informer's own page](informers.md) has its figures by TLS library, event loop and stage.
"""


def draw(result: Mapping[str, Any]) -> None:
    """Draw the plots, readable on light and dark pages."""
    import matplotlib as mpl  # noqa: PLC0415 - only for new plots
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above

    ink = "#010203"
    mpl.rcParams.update(
        {
            "svg.hashsalt": "listwatch",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            **dict.fromkeys(
                ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"),
                ink,
            ),
        }
    )
    colors = dict(zip(CONTESTANTS, mpl.color_sequences["tab10"], strict=False))

    def save(figure: Any, name: str) -> None:
        path = IMAGES / f"bench-{name}.svg"
        figure.savefig(path, transparent=True, bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
        text = path.read_text(encoding="utf-8").replace(ink, "var(--ink)")
        style = (
            "<style>:root{--ink:#24292f}"
            "@media (prefers-color-scheme:dark){:root{--ink:#c9d1d9}}</style>\n"
        )
        at = text.index("<defs>")
        lines = [line.rstrip() for line in (text[:at] + style + text[at:]).splitlines()]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    for name, key, label in (("sync", "cpu", "CPU seconds"), ("memory", "peak", "peak MB")):
        figure, axes = plt.subplots(figsize=(7, 4))
        for contestant in CONTESTANTS:
            for scheme, style in (("plain", "-"), ("TLS", ":")):
                found = [
                    (size, best(result, contestant, scheme, size)[key])
                    for size in (*SIZES, *LARGE)
                    if key in best(result, contestant, scheme, size)
                ]
                if found:
                    axes.plot(
                        *zip(*found, strict=True),
                        style,
                        marker="o",
                        markersize=3,
                        linewidth=2.5 if contestant == OURS else 1.2,
                        color=colors[contestant],
                        label=contestant if scheme == "plain" else None,
                    )
        axes.set(xscale="log", yscale="log", xlabel="pods (dotted: TLS)", ylabel=label)
        axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1.01, 1), loc="upper left")
        save(figure, name)

    figure, axes = plt.subplots(figsize=(7, 3))
    rows = [
        (best(result, name, "plain", WATCHED)["update"] * 1e6 / UPDATES, name)
        for name in CONTESTANTS
        if "update" in best(result, name, "plain", WATCHED)
    ]
    rows.sort(reverse=True)
    bars = axes.barh(
        [name for _, name in rows],
        [cost for cost, _ in rows],
        color=[colors[name] for _, name in rows],
    )
    axes.bar_label(bars, fmt="{:,.0f}", padding=3, color=ink, fontsize=8)
    axes.set(xscale="log", xlabel="CPU μs an update, plain")
    save(figure, "updates")


def main() -> None:
    """Run one of the roles."""
    if sys.argv[1:2] == ["client"]:
        follow(OURS, inform, sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--render", action="store_true", help="only use the last results")
    parser.add_argument("--write", action="store_true", help="write results and documentation")
    options = parser.parse_args()
    if options.render:
        result = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        result = report(SIZES, LARGE)
        if options.write:
            RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    faults, client_go = (
        json.loads(path.read_text(encoding="utf-8")) for path in (FAULTS, CLIENT_GO)
    )
    text = page(result, faults, client_go)
    print(text)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
        put_in(README, MARK, readme_table(result))
        draw(result)


if __name__ == "__main__":
    main()
