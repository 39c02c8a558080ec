"""Kubernetes list-watch for Python: reflector, queues, indexer, informers, and what stands on them.

The public names are loaded when they are first used, so that `import listwatch` stays cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from listwatch.cache.factory import InformerFactory
    from listwatch.cache.handlers import HandlerFuncs
    from listwatch.cache.informer import Informer
    from listwatch.cache.shared_informer import SharedInformer
    from listwatch.client.client import Client
    from listwatch.clock import Clock, FakeClock
    from listwatch.errors import StatusError
    from listwatch.objects import Object
    from listwatch.workqueue.work_queue import WorkQueue

_HOME = {
    "Client": "listwatch.client.client",
    "Clock": "listwatch.clock",
    "FakeClock": "listwatch.clock",
    "HandlerFuncs": "listwatch.cache.handlers",
    "Informer": "listwatch.cache.informer",
    "InformerFactory": "listwatch.cache.factory",
    "Object": "listwatch.objects",
    "SharedInformer": "listwatch.cache.shared_informer",
    "StatusError": "listwatch.errors",
    "WorkQueue": "listwatch.workqueue.work_queue",
}

__all__ = [
    "Client",
    "Clock",
    "FakeClock",
    "HandlerFuncs",
    "Informer",
    "InformerFactory",
    "Object",
    "SharedInformer",
    "StatusError",
    "WorkQueue",
]


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
