"""Where the controllers report what they did."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from listwatch.objects import Object


class Recorder(Protocol):
    """Reports what happened to an object; an `EventRecorder` is one."""

    def event(
        self,
        obj: Object | Mapping[str, Any],
        type: Literal["Normal", "Warning"],  # noqa: A002 - the field's name
        reason: str,
        message: str,
    ) -> None:
        """Report it; returns at once and never raises."""
        ...
