"""How a reconcile may end."""

import math

import msgspec

from listwatch.errors import ListWatchError


class Result(msgspec.Struct, frozen=True):
    """What a reconcile that went well asks for.

    Attributes:
        requeue_after: reconcile the key again after so many seconds; None only when it changes.
    """

    requeue_after: float | None = None

    def __post_init__(self) -> None:
        seconds: object = self.requeue_after
        if seconds is not None and not (
            isinstance(seconds, int | float) and -math.inf < seconds < math.inf
        ):
            raise ValueError(f"requeue_after takes a finite number of seconds, not {seconds!r}")


#: The key is done until something changes.
DONE = Result()


def requeue_after(seconds: float) -> Result:
    """Ask for another reconcile of the key after so many seconds; at once for less than 0.

    Raises:
        ValueError: that is no finite number.
    """
    return Result(seconds)


class TerminalError(ListWatchError):
    """Raised by a reconcile that no retry can help: the key waits for the next change."""


def checked(name: str, outcome: object) -> Result | None:
    """Return what a reconciler's function has returned.

    Raises:
        TypeError: it is neither None nor a `Result`.
    """
    if outcome is None or isinstance(outcome, Result):
        return outcome
    raise TypeError(
        f"reconciler {name} returned a {type(outcome).__name__}: return None or requeue_after(...)"
    )
