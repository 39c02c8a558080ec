"""Whether work for threads runs in the event loop instead, as in a simulation."""

from contextvars import ContextVar
from typing import Final

#: If true, nothing of this package starts a thread or listens on a socket: what would run in a
#: thread runs as one step of the event loop.
runs_inline: Final[ContextVar[bool]] = ContextVar("runs_inline", default=False)
