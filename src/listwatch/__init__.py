"""Kubernetes list-watch for Python: reflector, queues, indexer, informers, and what stands on them.

The public names are loaded when they are first used, so that `import listwatch` stays cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from listwatch.clock import Clock, FakeClock
    from listwatch.errors import StatusError

_HOME = {
    "Clock": "listwatch.clock",
    "FakeClock": "listwatch.clock",
    "StatusError": "listwatch.errors",
}

__all__ = ["Clock", "FakeClock", "StatusError"]


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
