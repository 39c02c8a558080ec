"""Times in the API's formats."""

from datetime import UTC, datetime


def micro_time(seconds: float) -> str:
    """Return seconds since 1970 as the API's MicroTime."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def api_time(seconds: float) -> str:
    """Return seconds since 1970 as the API's Time, in whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
