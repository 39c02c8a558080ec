"""The reconcile that the running code belongs to, for logs and spans."""

import logging
from contextvars import ContextVar

import msgspec


class ReconcileContext(msgspec.Struct, frozen=True):
    """Identifies one run of a reconciler's function.

    Attributes:
        reconciler: its name.
        key: the key.
        attempt: 1, or one more after each failure.
        id: unique in the process, such as "widgets-17".
    """

    reconciler: str
    key: str
    attempt: int
    id: str


_current: ContextVar[ReconcileContext | None] = ContextVar("reconcile", default=None)
#: Marks this task, and tasks and threads that it starts, as part of a reconcile.
enter_reconcile = _current.set


def current_reconcile() -> ReconcileContext | None:
    """Return the reconcile that the caller is part of, also in a thread of it; None outside."""
    return _current.get()


class ReconcileFilter(logging.Filter):
    """Adds the running reconcile to log records; add it to a handler.

    Each record gets the attributes `reconciler`, `key`, `attempt` and `reconcile_id`; outside a
    reconcile they are None. Rejects no record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the attributes; return True."""
        context = _current.get()
        record.reconciler = None if context is None else context.reconciler
        record.key = None if context is None else context.key
        record.attempt = None if context is None else context.attempt
        record.reconcile_id = None if context is None else context.id
        return True
