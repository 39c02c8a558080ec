"""Reports unexpected exceptions and re-raises them.

Kubernetes' `runtime.HandleCrash` once swallowed what it had reported, and programs continued with
half their parts dead; today it ends the process. Here too the exception is raised again, unless the
caller chooses otherwise.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

_logger = logging.getLogger(__name__)

#: Called with an unexpected exception, for example to report it to a tracker.
CrashHandler: TypeAlias = Callable[[BaseException], object]


@contextmanager
def handle_crash(what: str, *handlers: CrashHandler, reraise: bool = True) -> Iterator[None]:
    """Report what the body raises: to the log with its traceback, and to the handlers.

    Cancellations, SystemExit and KeyboardInterrupt are not crashes and pass through. A handler that
    raises is logged; it hides neither the exception nor the other handlers.

    Args:
        what: the activity, for the log.
        handlers: called in turn, after the log.
        reraise: raise the exception again. False is for a loop whose other work must continue, and
            that counts the exception in a handler.
    """
    try:
        yield
    except Exception as error:
        _logger.exception("%s crashed", what)
        for handler in handlers:
            try:
                handler(error)
            except Exception:
                _logger.exception("a crash handler failed")
        if reraise:
            raise
