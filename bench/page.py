"""Measures the page of `listwatch observe` in Chromium under a storm of changes.

    python bench/page.py [--objects 10000] [--rate 2000] [--seconds 5]

The page is fed directly, without an API server. It prints how long the browser took between two
frames; a dropped frame is one after more than 50 ms. It needs chromium.
"""

import argparse
import asyncio
import platform
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from listwatch.clock import Clock
from listwatch.objects import Object
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.metrics import ObserveMetrics
from listwatch.observe.page import Page
from listwatch.observe.printing import Printer
from listwatch.observe.server import serve

# Instead of this folder, whose observe.py would hide the tests' package.
sys.path[0] = str(Path(__file__).parents[1] / "tests")

from observe.browser import Tab, open_page  # noqa: E402 - found by the path above

_COUNT_FRAMES = (
    "window.frames_ = []; let last = performance.now();"
    "(function next() { const now = performance.now(); frames_.push(now - last); last = now;"
    " requestAnimationFrame(next); })()"
)


def change(number: int, version: int) -> Observation:
    """Return an update of one of the objects."""

    def state(value: int) -> Object:
        meta = {"name": f"web-{number}", "namespace": "shop", "resourceVersion": str(version)}
        spec = {"replicas": value, "template": {"image": f"web:{value}"}}
        return Object.from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec})

    new = state(version)
    old = state(version - 1)
    return Observation(ObservationType.UPDATED, new.key, new, old=old, resource="pods")


async def feed(page: Page, objects: int, rate: int, seconds: float) -> int:
    """Tell the page of changes at this rate; return their number."""
    began, told = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        while told < elapsed * rate:
            told += 1
            page.told(change(told % objects, told), "Updated")
        await asyncio.sleep(0.005)
    return told


async def measure(tab: Tab, page: Page, objects: int, rate: int, seconds: float) -> list[str]:
    """Return a row: what was shown, changes, frames, their median, the longest, dropped ones."""
    await tab.evaluate("frames_.length = 0")
    told = await feed(page, objects, rate, seconds)
    frames: list[float] = sorted(await tab.evaluate("frames_"))
    dropped = sum(frame > 50 for frame in frames)
    middle = frames[len(frames) // 2]
    return [f"{told:,}", f"{len(frames):,}", f"{middle:.1f}", f"{frames[-1]:.1f}", str(dropped)]


async def run(objects: int, rate: int, seconds: float) -> Table:
    """Run the storm for the view of changes, and for that of objects."""
    table = Table("view", "changes", "frames", "median ms", "longest ms", "over 50 ms")
    page = Page("pods", Printer(), Clock())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with (
            serve("127.0.0.1:0", ObserveMetrics(), ready=lambda: True, page=page) as url,
            open_page(url, Path(folder)) as tab,
        ):
            await tab.until("document.querySelector('#link')?.textContent === 'live'")
            for number in range(objects):
                page.told(change(number, 1), "Updated")
                if not number % 100:
                    await asyncio.sleep(0)
            await tab.until(f"latest.size > 0 && totals[0] >= {objects}", seconds=60)
            await tab.evaluate(_COUNT_FRAMES)
            for view in ("changes", "objects"):
                table.add_row(view, *await measure(tab, page, objects, rate, seconds))
                await tab.evaluate("setView(true)")
                await tab.until("objects.size > 0")
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=2_000, help="changes a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    console = Console()
    console.print(
        f"CPython {platform.python_version()}; {options.objects:,} objects, "
        f"{options.rate:,} changes a second for {options.seconds:g} s"
    )
    console.print(asyncio.run(run(options.objects, options.rate, options.seconds)))


if __name__ == "__main__":
    main()
