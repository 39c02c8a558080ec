"""Waits in tests until a condition holds."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar, overload

from listwatch.clock import Clock, FakeClock

T = TypeVar("T")

#: One or more types of exceptions.
Ignored: TypeAlias = type[Exception] | tuple[type[Exception], ...]

#: Seconds between checks.
_INTERVAL = 0.01


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]],
    words: str = ...,
    *,
    seconds: float = ...,
    ignoring: Ignored = ...,
    clock: Clock | None = ...,
) -> T: ...
@overload
async def eventually(
    condition: Callable[[], T],
    words: str = ...,
    *,
    seconds: float = ...,
    ignoring: Ignored = ...,
    clock: Clock | None = ...,
) -> T: ...
async def eventually(
    condition: Callable[[], Any],
    words: str = "",
    *,
    seconds: float = 20.0,
    ignoring: Ignored = (),
    clock: Clock | None = None,
) -> Any:
    """Call a condition until it returns a true value, and return that.

    A condition may use `assert`: an AssertionError means not yet, as do the exceptions named by
    `ignoring`. Any other exception propagates.
    May be cancelled at any time.

    Args:
        condition: a function or coroutine function without arguments.
        words: describes the condition, for the message.
        seconds: time limit, by the clock.
        ignoring: exceptions that mean not yet, such as `NotFoundError`.
        clock: the real one by default. A `FakeClock` is advanced while waiting.

    Raises:
        AssertionError: no true value in time; the message has the last result.

    Example:
        await eventually(lambda: len(informer.lister.list()) == 3, "three pods are cached")
    """
    clock = clock if clock is not None else Clock()
    deadline = clock.now() + seconds
    while True:
        failure: Exception | None = None
        last = ""
        try:
            value = condition()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
            last = f"the condition gave {value!r}"
        except AssertionError as error:
            failure = error
            last = str(error) or "an assertion failed"
        except ignoring as error:
            failure = error
            last = f"{type(error).__name__}: {error}"
        if clock.now() >= deadline:
            waited = f"not within {seconds:g} s"
            raise AssertionError(f"{waited}: {words or last}") from failure
        if isinstance(clock, FakeClock):
            await clock.advance(_INTERVAL)
        else:
            await clock.sleep(_INTERVAL)
