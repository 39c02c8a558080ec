"""An embedded API server: `APIServer`, loaded when it is asked for."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from listwatch.apiserver.server import APIServer

__all__ = ["APIServer"]


def __getattr__(name: str) -> object:
    if name == "APIServer":
        from listwatch.apiserver.server import APIServer  # noqa: PLC0415 - loaded when asked for

        return APIServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
