"""How exceptions of a controller's tasks are raised."""

from collections.abc import Iterator
from contextlib import contextmanager

from listwatch.errors import unwrap


@contextmanager
def single_error() -> Iterator[None]:
    """Raise the only error of a task group by itself; several stay a group.

    Use it around `async with TaskGroup()` to hide the group from the caller.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        raise unwrap(group) from None
