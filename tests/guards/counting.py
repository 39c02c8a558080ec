"""Counts Python calls and memory kept per item, by stage; both are deterministic.

A guard runs its work with n and with 10 n items, and compares the cost of one more item with the
budget in `budgets/`. A stage is a module, such as `cache.frames`. After an intended change of cost,
`LISTWATCH_GUARDS=record pytest tests/guards` rewrites the budgets, and review sees the difference.
"""

import asyncio
import gc
import json
import os
import sys
import sysconfig
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import listwatch

#: Factor by which an item may exceed its budget; Python versions differ by this much.
ALLOWANCE = 1.1
#: The stage of all calls outside the package: those of libraries and the event loop.
ELSEWHERE = "elsewhere"

_BUDGETS = Path(__file__).with_name("budgets")
_PACKAGE = str(Path(listwatch.__file__).parent) + os.sep
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen")


def stage_of(filename: str) -> str | None:
    """Return the stage of a source file, None for the tests' own files."""
    if filename.startswith(_PACKAGE):
        return filename[len(_PACKAGE) :].removesuffix(".py").replace(os.sep, ".")
    return ELSEWHERE if filename.startswith(_LIBRARIES) else None


@contextmanager
def calls() -> Iterator[Counter[str]]:
    """Count this thread's Python calls by stage; resuming a coroutine counts as a call."""
    codes: Counter[CodeType] = Counter()
    counted: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes[frame.f_code] += 1

    gc.collect()
    gc.disable()  # calls made by the collector are not part of the work
    sys.setprofile(profile)
    try:
        yield counted
    finally:
        sys.setprofile(None)
        gc.enable()
        for code, number in codes.items():
            if stage := stage_of(code.co_filename):
                counted[stage] += number


@contextmanager
def bytes_kept() -> Iterator[Counter[str]]:
    """Count the bytes allocated in the body and still kept, by the allocating stage."""
    kept: Counter[str] = Counter()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        yield kept
        gc.collect()
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    for difference in after.compare_to(before, "filename"):
        if stage := stage_of(difference.traceback[0].filename):
            kept[stage] += difference.size_diff


async def guard(
    name: str, work: Callable[[int], Awaitable[Mapping[str, int]]], items: int = 50
) -> None:
    """Check an item's cost against its budget, and that ten times the items cost ten times as much.

    Args:
        name: name of the budget's file.
        work: handles the given number of items and returns the cost by stage.
        items: number of items of the first run; the second has ten times as many.
    """
    await work(items)  # one-time work of the process
    few, many = await work(items), await work(10 * items)
    each = {
        stage: round((many[stage] - few.get(stage, 0)) / (9 * items), 2)
        for stage in sorted(many)
        if many[stage] - few.get(stage, 0) > items // 10
    }
    at_first = {stage: number / items for stage, number in few.items()}
    compare(f"{name}: an item among {10 * items}, beside one among {items}", at_first, each)
    path = _BUDGETS / f"{name}.json"
    if os.environ.get("LISTWATCH_GUARDS") == "record":
        await asyncio.to_thread(path.write_text, json.dumps(each, indent=2) + "\n")
    compare(f"{name}: an item", json.loads(await asyncio.to_thread(path.read_text)), each)


def compare(what: str, budget: Mapping[str, float], cost: Mapping[str, float]) -> None:
    """Raise if the cost exceeds the budget, and name the stages that grew."""
    allowed, whole = sum(budget.values()), sum(cost.values())
    if whole <= allowed * ALLOWANCE:
        return
    grown = sorted(
        (stage for stage in cost if cost[stage] > budget.get(stage, 0)),
        key=lambda stage: budget.get(stage, 0) - cost[stage],
    )
    stages = ", ".join(f"{each} {budget.get(each, 0):.2f} → {cost[each]:.2f}" for each in grown[:5])
    raise AssertionError(f"{what} costs {whole:.2f}, budget {allowed:.2f}; what grew: {stages}")
