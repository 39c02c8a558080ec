"""What a reflector does next: one state machine, without input or output of its own.

`step` is the whole policy. The `Reflector` performs the effects and reports how they ended.

Under a lasting failure the requests stay few: once one has failed, a wait precedes each request.
Exceptions are one watch, after the first list that succeeds, and one relist, after the first 410.
Waits become short again after a watch that stayed up for `HEALTHY_SECONDS`, and after the server
was away and is back; `backoff.RequestBudget` bounds what a server that comes and goes can cause.
"""

from enum import Enum, StrEnum
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from listwatch.errors import (
    BadRequestError,
    DisconnectedError,
    ExpiredError,
    FrameError,
    InvalidError,
    NotFoundError,
    ServerTimeoutError,
    StatusError,
    TooManyRequestsError,
)

#: A watch that lasted so long was no failure, however it ended.
HEALTHY_SECONDS = 30.0
#: A list that brought nothing new in the watch is followed by a wait of this part of a whole one,
#: so that a list and a watch together take as long as one failing request after another.
_AFTER_LIST = 0.5
#: Resource versions with which a watch begins anywhere, and not after that version.
NO_POSITION = frozenset({"", "0"})
#: Streams of initial events that break so often give way to a paged list, which can progress.
_MOST_BROKEN_STREAMS = 3
#: No Retry-After is obeyed beyond this: a server that asks for days is mistaken.
_LONGEST_RETRY_AFTER = 600.0


class Phase(StrEnum):
    """What a reflector is doing."""

    IDLE = "Idle"
    LISTING = "Listing"
    WATCH_LISTING = "WatchListing"
    WATCHING = "Watching"
    PROBING = "Probing"
    #: Finding out whether the resource is still defined.
    INQUIRING = "Inquiring"
    BACKING_OFF = "BackingOff"
    STOPPED = "Stopped"


class Streaming(Enum):
    """Whether to get the present state by a stream of initial events (KEP-3157)."""

    YES = "yes"
    #: Not before a watch has been healthy.
    NOT_NOW = "not now"
    #: The server does not know it.
    NEVER = "never"


class Bookmarks(Enum):
    """Whether silence means that the peer is gone: a server sends about a bookmark a minute."""

    EXPECTED = "expected"
    #: A watch was silent; the one in its place decides.
    DOUBTED = "doubted"
    #: That one was as silent: this resource gets none, as events do without a watch cache.
    NONE = "none"


class Fault(Enum):
    """How a request failed."""

    #: No connection, or it was closed before an answer began.
    UNREACHABLE = "unreachable"
    #: A connection that broke, or ended in the middle of an event.
    CUT = "cut"
    #: Nothing came for longer than a living peer lets wait.
    SILENT = "silent"
    #: 429.
    THROTTLED = "throttled"
    #: 410.
    EXPIRED = "expired"
    #: The server has not reached our resource version: it lags behind, or was set back.
    TOO_LARGE = "too large resource version"
    #: A bookmark or an event that is older than what we have: the server was set back.
    SET_BACK = "set back"
    #: 400 or 422: an option that the server does not know.
    INVALID = "invalid"
    #: 404: the server does not know the resource.
    NOT_FOUND = "not found"
    #: The stream went on and on and brought nothing of use.
    USELESS = "useless"
    #: The initial events did not end.
    NO_END = "no end of the initial events"
    #: An event was lost, and the time has come to list anew.
    STALE = "stale"
    #: Whatever else.
    OTHER = "other"


class State(msgspec.Struct, frozen=True):
    """Where a reflector is.

    Attributes:
        phase: what it is doing.
        resource_version: everything up to it has been given to the store; an open watch knows how
            far it has come since, and tells when it ends.
        streaming: whether the next relist is a stream of initial events.
        failures: waits since the last healthy watch; says how long the next one is.
        suspect: the watch failed since it was last healthy, so that a list that succeeds proves
            little.
        listed: such a list was followed by a watch at once, which failed as well, so that the
            watch after the next one is waited for. After an outage the first watch is not late.
        probed: a probe was answered and no watch was since, so that another proves nothing.
        acted: a 410 was followed by a relist without a wait; the next one is waited for.
        bookmarks: what silence means.
        then: the phase after a wait.
    """

    phase: Phase = Phase.IDLE
    resource_version: str = ""
    streaming: Streaming = Streaming.YES
    failures: int = 0
    suspect: bool = False
    listed: bool = False
    probed: bool = False
    acted: bool = False
    bookmarks: Bookmarks = Bookmarks.EXPECTED
    then: Phase = Phase.IDLE


# --- Inputs --------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    """The reflector runs."""


class Listed(msgspec.Struct, frozen=True):
    """The whole present state was given to the store."""

    resource_version: str


class Probed(msgspec.Struct, frozen=True):
    """The server was asked for its present resource version, and this is it."""

    resource_version: str


class Inquired(msgspec.Struct, frozen=True):
    """It was asked whether the resource is still defined.

    Attributes:
        gone: it certainly is not, and the store was emptied.
    """

    gone: bool


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A request ended without having done what it was for, or a watch ended.

    Attributes:
        fault: how; None for the orderly end of a watch.
        resource_version: up to where a watch got; unset if it got nowhere.
        lasted: seconds that a watch was open.
        quiet: nothing at all was received.
        bookmarked: a bookmark was received.
        stale: an event was lost on the way, so only a list can make the store right.
        retry_after: seconds that the server asks to wait.
    """

    fault: Fault | None = None
    resource_version: str = ""
    lasted: float = 0.0
    quiet: bool = False
    bookmarked: bool = False
    stale: bool = False
    retry_after: float = 0.0


class Woke(msgspec.Struct, frozen=True):
    """The wait is over.

    Attributes:
        restored: the server accepted no connections meanwhile, and does again.
    """

    restored: bool = False


class Stopped(msgspec.Struct, frozen=True):
    """Nobody wants the reflector any more.

    Attributes:
        resource_version: up to where a watch got that was open; unset if it got nowhere.
    """

    resource_version: str = ""


Input: TypeAlias = Started | Listed | Probed | Inquired | Ended | Woke | Stopped

# --- Effects -------------------------------------------------------------------------------------


class List(msgspec.Struct, frozen=True):
    """List everything, in pages, the present state as the server knows it for certain.

    The resource version stays unset, also in a relist: with "0" a server ignores the limit, and
    with the last one known a server that was set back never answers.
    """


class WatchList(msgspec.Struct, frozen=True):
    """Open a watch that begins with the present state."""


class Watch(msgspec.Struct, frozen=True):
    """Open a watch that goes on from a resource version."""

    resource_version: str


class Follow(msgspec.Struct, frozen=True):
    """Go on reading the stream whose initial events have ended."""


class Probe(msgspec.Struct, frozen=True):
    """Ask the server for its present resource version, by a list of one item."""


class Inquire(msgspec.Struct, frozen=True):
    """Find out whether the resource is still defined; if certainly not, empty the store."""


class Wait(msgspec.Struct, frozen=True):
    """Do nothing for a while.

    Attributes:
        failures: how many waits went before.
        share: the part of a whole delay to wait.
        at_least: seconds.
        for_server: the server can't be reached: wait until it can, where that can be found out
            without a request.
    """

    failures: int
    share: float = 1.0
    at_least: float = 0.0
    for_server: bool = False


class Stop(msgspec.Struct, frozen=True):
    """Do nothing any more."""


Effect: TypeAlias = List | WatchList | Watch | Follow | Probe | Inquire | Wait | Stop


# --- The machine ---------------------------------------------------------------------------------


class UnexpectedInputError(AssertionError):
    """An input that can't come in this state: a mistake in the reflector itself."""


def step(state: State, message: Input) -> tuple[State, Effect]:
    """Return the next state and what to do in it."""
    if isinstance(message, Stopped):
        version = message.resource_version or state.resource_version
        return replace(state, phase=Phase.STOPPED, resource_version=version), Stop()
    match state.phase, message:
        case Phase.IDLE, Started():
            return _enter(state, _relist_phase(state))
        case Phase.BACKING_OFF, Woke():
            return _after_wait(state, message)
        case Phase.WATCH_LISTING, Listed(version):
            return replace(state, phase=Phase.WATCHING, resource_version=version), Follow()
        case Phase.LISTING, Listed(version):
            return _after_list(replace(state, resource_version=version))
        case Phase.PROBING, Probed(version):
            state = replace(state, probed=True)
            set_back = is_older(version, state.resource_version)
            return _enter(state, _relist_phase(state) if set_back else Phase.WATCHING)
        case Phase.INQUIRING, Inquired(gone):
            # When the resource comes back it is listed: an old position is no help then.
            version = "" if gone else state.resource_version
            return _wait(replace(state, resource_version=version), Phase.LISTING)
        case _, Ended():
            return _after_end(state, message)
    raise UnexpectedInputError(f"{type(message).__name__} in {state.phase}")


def _after_end(state: State, ended: Ended) -> tuple[State, Effect]:
    match state.phase:
        case Phase.LISTING | Phase.INQUIRING:
            return _after_failed_list(state, ended)
        case Phase.WATCH_LISTING:
            return _after_stream(state, ended)
        case Phase.PROBING:
            return _after_probe(state, ended)
        case Phase.WATCHING:
            return _after_watch(state, ended)
    raise UnexpectedInputError(f"{type(ended).__name__} in {state.phase}")


def _relist_phase(state: State) -> Phase:
    return Phase.WATCH_LISTING if state.streaming is Streaming.YES else Phase.LISTING


def _enter(state: State, phase: Phase) -> tuple[State, Effect]:
    effect: Effect
    match phase:
        case Phase.LISTING:
            effect = List()
        case Phase.WATCH_LISTING:
            effect = WatchList()
        case Phase.WATCHING:
            effect = Watch(state.resource_version)
        case Phase.PROBING:
            effect = Probe()
        case Phase.INQUIRING:
            effect = Inquire()
        case _:
            raise UnexpectedInputError(f"{phase} can't be entered")
    return replace(state, phase=phase), effect


def _wait(
    state: State, then: Phase, ended: Ended | None = None, *, share: float = 1.0
) -> tuple[State, Effect]:
    at_least = 0.0 if ended is None else min(ended.retry_after, _LONGEST_RETRY_AFTER)
    for_server = ended is not None and ended.fault is Fault.UNREACHABLE
    wait = Wait(state.failures, share, at_least, for_server)
    return replace(state, phase=Phase.BACKING_OFF, then=then, failures=state.failures + 1), wait


def _after_wait(state: State, woke: Woke) -> tuple[State, Effect]:
    then = state.then
    if woke.restored:
        state = replace(state, failures=0, listed=False, probed=False, acted=False)
        if then is Phase.WATCHING and state.resource_version not in NO_POSITION:
            then = Phase.PROBING  # it may be another server, or an older state of the same
    return _enter(state, then)


def _after_list(state: State) -> tuple[State, Effect]:
    if state.suspect and state.listed:
        return _wait(state, Phase.WATCHING, share=_AFTER_LIST)
    return _enter(replace(state, listed=state.suspect), Phase.WATCHING)


def _after_failed_list(state: State, ended: Ended) -> tuple[State, Effect]:
    # Without a version nothing was ever listed, or the end of everything was told.
    is_listing = state.phase is Phase.LISTING
    if is_listing and ended.fault is Fault.NOT_FOUND and state.resource_version:
        return _enter(state, Phase.INQUIRING)
    return _wait(state, Phase.LISTING, ended)


def _after_stream(state: State, ended: Ended) -> tuple[State, Effect]:
    """Initial events were asked for, and their end did not come."""
    match ended.fault:
        case Fault.UNREACHABLE | Fault.CUT | Fault.SILENT | Fault.THROTTLED:
            if state.failures >= _MOST_BROKEN_STREAMS:
                state = replace(state, streaming=Streaming.NOT_NOW)
            return _wait(state, _relist_phase(state), ended)
        case Fault.INVALID | Fault.NO_END | None:
            # A list is another request, and can't come back here: no wait is due. From a stream
            # that stayed empty one can't tell a server that ignores the option from a slow one.
            never = ended.fault is Fault.INVALID or not ended.quiet
            state = replace(state, streaming=Streaming.NEVER if never else Streaming.NOT_NOW)
            return _enter(state, Phase.LISTING)
    state = replace(state, streaming=Streaming.NOT_NOW)
    if ended.fault is Fault.EXPIRED and not state.acted:
        return _enter(replace(state, acted=True), Phase.LISTING)
    return _wait(state, Phase.LISTING, ended)


def _after_probe(state: State, ended: Ended) -> tuple[State, Effect]:
    match ended.fault:
        case Fault.UNREACHABLE | Fault.CUT | Fault.SILENT | Fault.THROTTLED:
            return _wait(state, Phase.PROBING, ended)
        case Fault.NOT_FOUND:
            return _wait(state, Phase.LISTING, ended)
    return _wait(state, _relist_phase(state), ended)


def _after_watch(state: State, ended: Ended) -> tuple[State, Effect]:
    if ended.resource_version:
        state = replace(state, resource_version=ended.resource_version)
    if ended.bookmarked:
        state = replace(state, bookmarks=Bookmarks.EXPECTED)
    if ended.fault is Fault.STALE:  # its wait went by while the watch went on
        state = replace(state, failures=state.failures + 1, suspect=True)
        return _enter(state, _relist_phase(state))
    healthy = ended.lasted >= HEALTHY_SECONDS
    if healthy:
        streaming = Streaming.YES if state.streaming is Streaming.NOT_NOW else state.streaming
        state = replace(
            state,
            failures=0,
            suspect=False,
            listed=False,
            probed=False,
            acted=False,
            streaming=streaming,
        )
    else:
        probed = state.probed and ended.fault in {Fault.UNREACHABLE, Fault.SILENT}
        state = replace(state, suspect=True, probed=probed)
    if ended.fault is Fault.EXPIRED and not state.acted:
        return _enter(replace(state, acted=True), _relist_phase(state))
    # Without a position a watch can't go on: it would begin with what there is, and not tell what
    # has gone.
    if ended.stale or state.resource_version in NO_POSITION:
        return _wait(state, _relist_phase(state), ended)
    match ended.fault:
        case None if healthy:
            # A server that was set back sends nothing until it has caught up with our version.
            return _enter(state, Phase.PROBING if ended.quiet else Phase.WATCHING)
        case Fault.SILENT if healthy:
            return _after_silence(state)
        case Fault.SILENT if not state.probed:
            return _enter(state, Phase.PROBING)
        case Fault.UNREACHABLE if not state.probed:
            return _wait(state, Phase.PROBING, ended)
        case None | Fault.UNREACHABLE | Fault.CUT | Fault.SILENT | Fault.THROTTLED | Fault.USELESS:
            return _wait(state, Phase.WATCHING, ended)
        case Fault.NOT_FOUND:  # a list is what says so
            return _wait(state, Phase.LISTING, ended)
    return _wait(state, _relist_phase(state), ended)


def _after_silence(state: State) -> tuple[State, Effect]:
    """A watch that had been open fell silent: another takes its place, and costs one request."""
    if state.bookmarks is Bookmarks.EXPECTED:
        return _enter(replace(state, bookmarks=Bookmarks.DOUBTED), Phase.WATCHING)
    # A server that was set back is as silent; it shows when it is asked for its version.
    return _enter(replace(state, bookmarks=Bookmarks.NONE), Phase.PROBING)


# --- Reading versions and errors -----------------------------------------------------------------


def is_older(version: str, than: str) -> bool:
    """Tell whether a resource version is lower than another; False if they can't be compared.

    Versions are decimal numbers of any length without leading zeros (KEP-5504), so the longer one
    is the greater. Anything else, also none at all, can't be compared.
    """
    if version == than or not (version.isdecimal() and than.isdecimal()):
        return False
    return (len(version), version) < (len(than), than)


def fault_of(error: BaseException, *, opened: bool = False) -> Fault:
    """Return how a request failed, from what it raised or received.

    Args:
        error: what was raised.
        opened: the server had answered before.
    """
    match error:
        case StatusError():
            return _fault_of_status(error)
        case TimeoutError():
            return Fault.SILENT
        case DisconnectedError() if error.refused:
            return Fault.UNREACHABLE
        case DisconnectedError() | OSError():
            return Fault.CUT if opened else Fault.UNREACHABLE
        case FrameError() if opened:
            return Fault.CUT
    return Fault.OTHER


def _fault_of_status(error: StatusError) -> Fault:
    match error:
        case TooManyRequestsError():
            return Fault.THROTTLED
        case ExpiredError():
            return Fault.EXPIRED
        case ServerTimeoutError() if error.is_too_large_resource_version:
            return Fault.TOO_LARGE
        case BadRequestError() | InvalidError():
            return Fault.INVALID
        case NotFoundError():
            return Fault.NOT_FOUND
    return Fault.OTHER
