"""Durations in Go's and kubectl's format."""

import re
from typing import Final

_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as 90s, 1m30s, 500ms or 2h; a bare number is seconds.

    Raises:
        ValueError: invalid; the message shows the format.
    """
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"{text!r} is not a valid duration; it must not be negative")
        return seconds
    seconds, at = 0.0, 0
    for match in _PART.finditer(text):
        if match.start() != at:
            break
        at = match.end()
        seconds += float(match[1]) * _UNITS[match[2]]
    if not text or at != len(text):
        raise ValueError(f"{text!r} is not a duration; write for example 30s, 1m30s, 500ms or 2h")
    return seconds
