"""The outcomes of a reconcile."""

import math

import msgspec

from listwatch.errors import ListWatchError


class Result(msgspec.Struct, frozen=True):
    """What a successful reconcile asks for.

    Attributes:
        requeue_after: reconcile the key again after this many seconds; None only when it changes.
        requeue: reconcile the key again after the rate limiter's delay, as after an error; the
            delay grows until a reconcile returns without this.
        priority: of that next reconcile; None for the priority of this one.
    """

    requeue_after: float | None = None
    requeue: bool = False
    priority: int | None = None

    def __post_init__(self) -> None:
        if self.requeue and self.requeue_after is not None:
            raise ValueError("give either requeue or requeue_after, not both")
        priority: object = self.priority
        if priority is not None and not isinstance(priority, int):
            raise TypeError(f"a priority is an int, not {priority!r}")
        seconds: object = self.requeue_after
        if seconds is not None and not (
            isinstance(seconds, int | float) and -math.inf < seconds < math.inf
        ):
            raise ValueError(f"requeue_after takes a finite number of seconds, not {seconds!r}")


#: Reconcile the key again only when something changes.
DONE = Result()


def requeue_after(seconds: float, *, priority: int | None = None) -> Result:
    """Reconcile the key again after this many seconds; at once if negative.

    Args:
        seconds: the delay. It resets the rate limiter's.
        priority: of the next reconcile; by default that of this one.

    Raises:
        ValueError: not a finite number.
    """
    return Result(seconds, priority=priority)


def requeue(*, priority: int | None = None) -> Result:
    """Reconcile the key again after the rate limiter's delay, without an error.

    For a reconcile that waits for something which nothing announces: the delay grows with each such
    result, and is reset by any other.

    Args:
        priority: of the next reconcile; by default that of this one.
    """
    return Result(requeue=True, priority=priority)


class TerminalError(ListWatchError):
    """Raised by a reconcile that no retry can help: the key waits for the next change.

    Also recognized in an exception group, and as the cause of another exception, like Go's
    `errors.Is`.
    """


def is_expected(error: BaseException) -> bool:
    """Return whether an error is normal, as refusals and time-outs are, and no sign of a bug."""
    return isinstance(error, ListWatchError | TimeoutError)


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
        f"reconciler {name} returned a {type(outcome).__name__}: return None or requeue_after(...) "
        "or requeue()"
    )
