"""What happens when code raises what nobody expected: it is reported, then it goes on its way.

The field's `runtime.HandleCrash` once swallowed what it had reported, and programs went on with
half their parts dead; since then it ends the process. Here too the error is raised again, unless
the caller says otherwise.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

_logger = logging.getLogger(__name__)

#: Is told of an error that nobody expected; for reports to a tracker, for instance.
CrashHandler: TypeAlias = Callable[[BaseException], object]


@contextmanager
def handle_crash(what: str, *handlers: CrashHandler, reraise: bool = True) -> Iterator[None]:
    """Report what the body raises: to the log with its traceback, and to the handlers.

    Cancellations, SystemExit and KeyboardInterrupt are no crashes and pass through. A handler
    that raises is logged, and hides neither the error nor the other handlers.

    Args:
        what: what was being done, for the log.
        handlers: called in turn, after the log.
        reraise: raise the error again; False is for a loop whose other work must go on, and
            which counts the error by a handler.
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
