"""What holds for every test."""

import logging
import signal
from collections.abc import Iterator

import pytest

# A shell starts its background jobs with SIGINT ignored, and so would every program that a test
# starts and interrupts. A handler of ours is not inherited: those programs get the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was() -> Iterator[None]:
    """Commands configure logging for their whole process, which other tests share."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in list(root.handlers):
        if handler not in handlers and not type(handler).__module__.startswith("_pytest"):
            root.removeHandler(handler)
