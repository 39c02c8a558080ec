"""How failures of a controller's tasks come out."""

from collections.abc import Iterator
from contextlib import contextmanager

from listwatch.errors import unwrap


@contextmanager
def single_error() -> Iterator[None]:
    """Raise the one error of a task group's tasks as itself; several stay a group.

    For around `async with TaskGroup()`, whose caller need not know of it.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        raise unwrap(group) from None
