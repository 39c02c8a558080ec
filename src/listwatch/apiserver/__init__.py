"""An embedded API server for real clients. Nothing else needs to be installed."""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.apiserver.http.faults import (
        Fault,
    )
    from listwatch.apiserver.server import (
        EmbeddedAPIServer,
    )

__all__ = ["EmbeddedAPIServer", "Fault"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.apiserver.http.faults": "Fault",
        "listwatch.apiserver.server": "EmbeddedAPIServer",
    },
)
