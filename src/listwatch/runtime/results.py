"""The outcomes of a reconcile."""

import math

import msgspec

from listwatch.errors import ListWatchError


class Result(msgspec.Struct, frozen=True):
    """What a successful reconcile asks for.

    Attributes:
        requeue_after: reconcile the key again after this many seconds; None only when it changes.
    """

    requeue_after: float | None = None

    def __post_init__(self) -> None:
        seconds: object = self.requeue_after
        if seconds is not None and not (
            isinstance(seconds, int | float) and -math.inf < seconds < math.inf
        ):
            raise ValueError(f"requeue_after takes a finite number of seconds, not {seconds!r}")


#: Reconcile the key again only when something changes.
DONE = Result()


def requeue_after(seconds: float) -> Result:
    """Reconcile the key again after this many seconds; at once if negative.

    Raises:
        ValueError: not a finite number.
    """
    return Result(seconds)


class TerminalError(ListWatchError):
    """Raised by a reconcile that no retry can help: the key waits for the next change.

    Also recognized in an exception group, and as the cause of another exception, like Go's
    `errors.Is`.
    """


def is_terminal(error: BaseException) -> bool:
    """Return whether an error is a `TerminalError`, contains one in a group, or stems from one."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, TerminalError):
            return True
        seen.add(id(one))
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        cause = () if one.__cause__ is None else (one.__cause__,)
        waiting += (each for each in (*inner, *cause) if id(each) not in seen)
    return False


def checked(name: str, outcome: object) -> Result | None:
    """Return the result of a reconciler's function after checking it.

    Raises:
        TypeError: it is neither None nor a `Result`.
    """
    if outcome is None or isinstance(outcome, Result):
        return outcome
    raise TypeError(
        f"reconciler {name} returned a {type(outcome).__name__}: return None or requeue_after(...)"
    )
