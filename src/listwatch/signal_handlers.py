"""Signals of a process, on every platform."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

#: Signals that ask a program to end, as far as the platform has them.
ENDING: tuple[signal.Signals, ...] = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextlib.contextmanager
def handling(
    numbers: Iterable[signal.Signals], handle: Callable[[signal.Signals], object]
) -> Iterator[None]:
    """Call a function in the running event loop for each of these signals, within the block.

    An event loop without signal handlers (that of Windows) gets them from the interpreter. For the
    main thread.
    """
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        for number in numbers:
            try:
                loop.add_signal_handler(number, handle, number)
            except NotImplementedError:
                stack.enter_context(_interpreter_handler(loop, number, handle))
            else:
                stack.callback(loop.remove_signal_handler, number)
        yield


@contextlib.contextmanager
def _interpreter_handler(
    loop: asyncio.AbstractEventLoop,
    number: signal.Signals,
    handle: Callable[[signal.Signals], object],
) -> Iterator[None]:
    def handler(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(handle, number)

    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
