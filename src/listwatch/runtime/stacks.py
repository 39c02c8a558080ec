"""What every task and every thread is doing, as text."""

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from listwatch.printable import printable


def stacks() -> str:
    """Return the stacks of the running event loop's tasks and of all threads, outermost first.

    A task's stack goes on through the coroutines that it awaits. Call it in the event loop.
    """
    parts = []
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        coroutine: Any = task.get_coro()
        name = getattr(coroutine, "__qualname__", type(coroutine).__name__)
        parts.append(f"task {printable(task.get_name())} ({name})\n{_lines(_awaited(coroutine))}")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the only way to see other threads
        summary = traceback.extract_stack(frame)
        lines = "".join(traceback.format_list(summary))
        parts.append(f"thread {printable(names.get(ident, str(ident)))}\n{lines}")
    return "\n".join(parts)


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of what it awaits."""
    while coroutine is not None:
        kind = next(
            (kind for kind in ("cr", "gi", "ag") if hasattr(coroutine, f"{kind}_frame")), ""
        )
        if not kind:
            return
        frame = getattr(coroutine, f"{kind}_frame")
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")


def _lines(frames: Iterator[FrameType]) -> str:
    summary = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
    return "".join(traceback.format_list(summary))
