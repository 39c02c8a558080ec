"""The interface through which controllers report their actions."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from listwatch.objects import Object


class Recorder(Protocol):
    """Reports events of an object; an `EventRecorder` is one."""

    def event(
        self,
        obj: Object | Mapping[str, Any],
        type: Literal["Normal", "Warning"],  # noqa: A002 - the field's name
        reason: str,
        message: str,
    ) -> None:
        """Report an event; returns at once and never raises."""
        ...
