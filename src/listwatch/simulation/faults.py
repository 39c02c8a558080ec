"""The faults of a simulated world: what they are called, where they can strike, and the token."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from listwatch.errors import ListWatchError

#: Seconds for which a lagging watch holds its events: longer than a manager waits for its writes.
LAG_SECONDS: Final = 20.0
#: Seconds for which a process is paused: longer than a lease lasts.
PAUSE_SECONDS: Final = 40.0
#: Seconds from the crash of a process to the start of the next.
RESTART_SECONDS: Final = 1.0
#: Seconds for which a slow request is on its way.
SLOW_SECONDS: Final = 5.0
#: Seconds by which a skewed wall clock is ahead.
SKEW_SECONDS: Final = 300.0


class TokenError(ListWatchError):
    """A text that is no token of a world."""


class Boundary(StrEnum):
    """A place where the outside may differ.

    Attributes:
        START: a process starts.
        READ: a process sends a request that reads.
        WRITE: a process sends a request that writes.
        EVENT: an event of a watch arrives at a process.
        STEP: a reconciler's function is about to be called.
    """

    START = "start"
    READ = "read"
    WRITE = "write"
    EVENT = "event"
    STEP = "step"


class FaultKind(msgspec.Struct, frozen=True):
    """A kind of fault.

    Attributes:
        name: in tokens and options.
        boundaries: where it can strike.
        words: what happens.
        default: whether it is tried unless asked for by name.
        versioned: it strikes only writes that depend on the version of the object.
        creates: it strikes only creations.
    """

    name: str
    boundaries: tuple[Boundary, ...]
    words: str
    default: bool = True
    versioned: bool = False
    creates: bool = False


_READ_WRITE: Final = (Boundary.READ, Boundary.WRITE)

FAULTS: Final[Mapping[str, FaultKind]] = {
    fault.name: fault
    for fault in (
        FaultKind("crash-before", (Boundary.WRITE,), "the process dies before it sends the write"),
        FaultKind("crash-after", (Boundary.WRITE,), "the process dies after the write, unanswered"),
        FaultKind("lost-reply", (Boundary.WRITE,), "the write is made, but its reply is lost"),
        FaultKind("lag", (Boundary.EVENT,), f"this watch is {LAG_SECONDS:g} s late from here on"),
        FaultKind(
            "missed",
            (Boundary.EVENT,),
            f"this watch sends nothing for {LAG_SECONDS:g} s, then its history is gone: a relist",
        ),
        FaultKind("cut", (Boundary.EVENT,), "the watch breaks before this event"),
        FaultKind("unreachable", _READ_WRITE, "the connection breaks before the request arrives"),
        FaultKind("server-error", _READ_WRITE, "the server answers 500 and does nothing"),
        FaultKind("throttled", (Boundary.WRITE,), "the server answers 429 and does nothing"),
        FaultKind("conflict", (Boundary.WRITE,), "another writer was faster: 409", versioned=True),
        FaultKind("crash", (Boundary.STEP,), "the process dies before it reconciles the key"),
        FaultKind("late", (Boundary.STEP,), f"the key is reconciled {SLOW_SECONDS:g} s late"),
        FaultKind("again", (Boundary.STEP,), "the key is queued once more meanwhile"),
        FaultKind("slow", (Boundary.WRITE,), f"the write is {SLOW_SECONDS:g} s on its way"),
        FaultKind(
            "pause",
            (Boundary.WRITE,),
            f"the process stands still for {PAUSE_SECONDS:g} s after the write",
        ),
        FaultKind(
            "stale-restart",
            (Boundary.WRITE,),
            "the process dies after the write; the next one reads from a replica of the server "
            f"that is behind by the last change of the user, for {LAG_SECONDS:g} s",
        ),
        FaultKind(
            "webhook",
            (Boundary.WRITE,),
            "the server answers 500, because a webhook can't be called",
            default=False,
        ),
        FaultKind(
            "deleted",
            (Boundary.WRITE,),
            "somebody deletes the object right after its creation",
            default=False,
            creates=True,
        ),
        FaultKind(
            "skew",
            (Boundary.START,),
            f"the wall clock of the process is {SKEW_SECONDS:g} s ahead",
            default=False,
        ),
    )
}


def chosen(names: Iterable[str] = (), without: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of the faults to try: those given, or the default ones.

    Args:
        names: the names; "all" for every fault.
        without: names to leave out.

    Raises:
        ValueError: there is no such fault.
    """
    names, without = list(names), list(without)
    for name in (*names, *without):
        if name not in FAULTS and name != "all":
            raise ValueError(f"no fault is called {name!r}; there are {', '.join(FAULTS)}")
    if "all" in names:
        found = frozenset(FAULTS)
    elif names:
        found = frozenset(names)
    else:
        found = frozenset(fault.name for fault in FAULTS.values() if fault.default)
    return found - frozenset(without)


class Point(msgspec.Struct, frozen=True):
    """A boundary that was passed.

    Attributes:
        number: counts the points of a world from 1.
        boundary: what was passed.
        process: which process passed it.
        words: the request or event.
        faults: the names of the faults that can strike here.
        time: virtual seconds.
        revision: the server's.
    """

    number: int
    boundary: Boundary
    process: str
    words: str
    faults: tuple[str, ...]
    time: float
    revision: int


_TOKEN = re.compile(r"h(\d+)\.s(\d+)((?:/\d+:[a-z-]+)*)")


class Plan(msgspec.Struct, frozen=True):
    """Everything that makes one world differ from another: its token as a value.

    Attributes:
        seed: of all chance; 0 for the order of asyncio and equal latencies.
        strikes: the number of a point, and the fault that strikes there.
        hash_seed: PYTHONHASHSEED.
    """

    seed: int = 0
    strikes: tuple[tuple[int, str], ...] = ()
    hash_seed: int = 0

    @property
    def token(self) -> str:
        """The text from which `parse` makes this plan."""
        strikes = "".join(f"/{number}:{name}" for number, name in self.strikes)
        return f"h{self.hash_seed}.s{self.seed}{strikes}"

    @classmethod
    def parse(cls, token: str) -> "Plan":
        """Return the plan of a token.

        Raises:
            TokenError: the text is no token.
        """
        found = _TOKEN.fullmatch(token.strip())
        if found is None:
            raise TokenError(
                f"{token!r} is no token of a world, such as h0.s0/12:lost-reply: copy the whole one"
            )
        strikes = []
        for part in found[3].split("/")[1:]:
            number, _, name = part.partition(":")
            if name not in FAULTS:
                raise TokenError(f"the token {token!r} has the unknown fault {name!r}")
            strikes.append((int(number), name))
        return cls(int(found[2]), tuple(sorted(strikes)), int(found[1]))
