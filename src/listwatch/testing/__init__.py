"""What tests of programs that speak to an API server need; each part is loaded when asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from listwatch.testing.api_server import APIServer, Fault
    from listwatch.testing.fake_controller_source import FakeControllerSource
    from listwatch.testing.fault_proxy import FaultProxy

_HOME = {
    "APIServer": "listwatch.testing.api_server",
    "FakeControllerSource": "listwatch.testing.fake_controller_source",
    "Fault": "listwatch.testing.api_server",
    "FaultProxy": "listwatch.testing.fault_proxy",
}

__all__ = ["APIServer", "FakeControllerSource", "Fault", "FaultProxy"]


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
