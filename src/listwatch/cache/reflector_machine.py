"""What a reflector does next: a state machine without I/O.

`step` is the whole policy. The `Reflector` performs the effects and reports how they ended.

Requests stay few during a lasting failure: after a failure, a wait precedes each request. The
exceptions are one watch after the first list that succeeds, and one relist after the first 410.
Waits become short again after a watch that stayed up for `HEALTHY_SECONDS`, and after the server
was away and returned. `backoff.RequestBudget` bounds what a server that comes and goes can cause.
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

#: A watch that lasted this long did not fail, however it ended.
HEALTHY_SECONDS = 30.0
#: If the watch after a relist fails again, wait half the normal delay, so that a list and a watch
#: together take as long as one failing request after another.
_AFTER_LIST = 0.5
#: Resource versions with which a watch starts at any version, not after that version.
NO_POSITION = frozenset({"", "0"})
#: After this many broken streams of initial events, use a paged list, which can progress.
_MOST_BROKEN_STREAMS = 3
#: Upper bound on Retry-After: a server that asks for days is mistaken.
_LONGEST_RETRY_AFTER = 600.0
# Maximum digits of a comparable resource version.
_LONGEST_VERSION = 1000


class Phase(StrEnum):
    """What a reflector is doing."""

    IDLE = "Idle"
    LISTING = "Listing"
    WATCH_LISTING = "WatchListing"
    WATCHING = "Watching"
    PROBING = "Probing"
    #: Checking whether the resource is still defined.
    INQUIRING = "Inquiring"
    BACKING_OFF = "BackingOff"
    STOPPED = "Stopped"


class Streaming(Enum):
    """Whether to get the current state as a stream of initial events (KEP-3157)."""

    YES = "yes"
    #: Not until a watch has been healthy.
    NOT_NOW = "not now"
    #: The server does not support it.
    NEVER = "never"


class Bookmarks(Enum):
    """Whether silence means that the peer is gone: a server sends about one bookmark a minute."""

    EXPECTED = "expected"
    #: A watch was silent; the next watch decides.
    DOUBTED = "doubted"
    #: The next watch was silent too: this resource gets no bookmarks, like events without a watch
    #: cache.
    NONE = "none"


class RequestFault(Enum):
    """How a request failed."""

    #: No connection, or one closed before a response began.
    UNREACHABLE = "unreachable"
    #: A connection that broke, or ended within an event.
    CUT = "cut"
    #: Nothing came for longer than a living peer stays silent.
    SILENT = "silent"
    #: 429.
    THROTTLED = "throttled"
    #: 410.
    EXPIRED = "expired"
    #: The server has not reached our resource version: it lags, or was restored from a backup.
    TOO_LARGE = "too large resource version"
    #: A bookmark or event older than our state: the server was restored from a backup.
    SET_BACK = "set back"
    #: 400 or 422: the server does not know an option.
    INVALID = "invalid"
    #: 404: the server does not know the resource.
    NOT_FOUND = "not found"
    #: The stream kept going without anything of use.
    USELESS = "useless"
    #: The initial events did not end.
    NO_END = "no end of the initial events"
    #: An event was lost, and the relist is due.
    STALE = "stale"
    #: Anything else.
    OTHER = "other"


class State(msgspec.Struct, frozen=True):
    """The state of a reflector.

    Attributes:
        phase: the current activity.
        resource_version: everything up to it has been given to the store. An open watch tracks its
            own progress and reports it when it ends.
        streaming: whether the next relist is a stream of initial events.
        failures: waits since the last healthy watch; determines the next delay.
        suspect: the watch failed since it was last healthy, so a successful list proves little.
        listed: a watch followed such a list at once and failed too, so the watch after the next
            list waits. After an outage the first watch does not wait.
        probed: a probe was answered and no watch followed, so another probe proves nothing.
        acted: a relist followed a 410 without a wait; the next relist waits.
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
    """The reflector has started."""


class Listed(msgspec.Struct, frozen=True):
    """The whole current state was given to the store."""

    resource_version: str


class Probed(msgspec.Struct, frozen=True):
    """The server returned its current resource version."""

    resource_version: str


class Inquired(msgspec.Struct, frozen=True):
    """The check whether the resource is still defined has ended.

    Attributes:
        gone: the resource is certainly not defined, and the store was emptied.
    """

    gone: bool


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A request ended without its result, or a watch ended.

    Attributes:
        fault: the reason; None for the normal end of a watch.
        resource_version: the version that a watch reached; unset if none.
        lasted: seconds that a watch was open.
        quiet: nothing was received.
        bookmarked: a bookmark was received.
        stale: an event was lost, so only a list can correct the store.
        retry_after: seconds that the server asks to wait.
    """

    fault: RequestFault | None = None
    resource_version: str = ""
    lasted: float = 0.0
    quiet: bool = False
    bookmarked: bool = False
    stale: bool = False
    retry_after: float = 0.0


class Woke(msgspec.Struct, frozen=True):
    """The wait is over.

    Attributes:
        restored: the server stopped accepting connections during the wait and accepts them again.
    """

    restored: bool = False


class Stopped(msgspec.Struct, frozen=True):
    """The reflector is to stop.

    Attributes:
        resource_version: the version that an open watch reached; unset if none.
    """

    resource_version: str = ""


Input: TypeAlias = Started | Listed | Probed | Inquired | Ended | Woke | Stopped

# --- Effects -------------------------------------------------------------------------------------


class List(msgspec.Struct, frozen=True):
    """List everything, in pages, with a consistent read.

    The resource version stays unset, also in a relist. With "0" a server ignores the limit; with
    our last version, a server restored from a backup never answers.
    """


class WatchList(msgspec.Struct, frozen=True):
    """Open a watch that starts with the current state."""


class OpenWatch(msgspec.Struct, frozen=True):
    """Open a watch that continues from a resource version."""

    resource_version: str


class Follow(msgspec.Struct, frozen=True):
    """Keep reading the stream after its initial events."""


class Probe(msgspec.Struct, frozen=True):
    """Get the server's current resource version with a list of one item."""


class Inquire(msgspec.Struct, frozen=True):
    """Check whether the resource is still defined; if certainly not, empty the store."""


class Wait(msgspec.Struct, frozen=True):
    """Wait.

    Attributes:
        failures: number of earlier waits.
        share: the fraction of a whole delay to wait.
        at_least: minimum, in seconds.
        for_server: the server is unreachable: wait until it returns, if that can be noticed without
            a request.
    """

    failures: int
    share: float = 1.0
    at_least: float = 0.0
    for_server: bool = False


class Stop(msgspec.Struct, frozen=True):
    """Stop for good."""


Effect: TypeAlias = List | WatchList | OpenWatch | Follow | Probe | Inquire | Wait | Stop


# --- The machine ---------------------------------------------------------------------------------


class UnexpectedInputError(AssertionError):
    """An input that can't occur in this state: a bug in the reflector."""


def step(state: State, message: Input) -> tuple[State, Effect]:
    """Return the next state and the effect to perform."""
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
            # When the resource returns, it is listed; an old position does not help then.
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
            effect = OpenWatch(state.resource_version)
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
    for_server = ended is not None and ended.fault is RequestFault.UNREACHABLE
    wait = Wait(state.failures, share, at_least, for_server)
    return replace(state, phase=Phase.BACKING_OFF, then=then, failures=state.failures + 1), wait


def _after_wait(state: State, woke: Woke) -> tuple[State, Effect]:
    then = state.then
    if woke.restored:
        state = replace(state, failures=0, listed=False, probed=False, acted=False)
        if then is Phase.WATCHING and state.resource_version not in NO_POSITION:
            then = Phase.PROBING  # it may be another server, or the same one in an older state
    return _enter(state, then)


def _after_list(state: State) -> tuple[State, Effect]:
    if state.suspect and state.listed:
        return _wait(state, Phase.WATCHING, share=_AFTER_LIST)
    return _enter(replace(state, listed=state.suspect), Phase.WATCHING)


def _after_failed_list(state: State, ended: Ended) -> tuple[State, Effect]:
    # Without a version, nothing was listed yet, or every object was reported as deleted.
    is_listing = state.phase is Phase.LISTING
    if is_listing and ended.fault is RequestFault.NOT_FOUND and state.resource_version:
        return _enter(state, Phase.INQUIRING)
    return _wait(state, Phase.LISTING, ended)


def _after_stream(state: State, ended: Ended) -> tuple[State, Effect]:
    """Handle a stream of initial events that stopped before their end."""
    match ended.fault:
        case (
            RequestFault.UNREACHABLE
            | RequestFault.CUT
            | RequestFault.SILENT
            | RequestFault.THROTTLED
        ):
            if state.failures >= _MOST_BROKEN_STREAMS:
                state = replace(state, streaming=Streaming.NOT_NOW)
            return _wait(state, _relist_phase(state), ended)
        case RequestFault.INVALID | RequestFault.NO_END | None:
            # A list is a different request and can't lead back here, so no wait is due. An empty
            # stream does not show whether the server ignores the option or is slow.
            never = ended.fault is RequestFault.INVALID or not ended.quiet
            state = replace(state, streaming=Streaming.NEVER if never else Streaming.NOT_NOW)
            return _enter(state, Phase.LISTING)
    state = replace(state, streaming=Streaming.NOT_NOW)
    if ended.fault is RequestFault.EXPIRED and not state.acted:
        return _enter(replace(state, acted=True), Phase.LISTING)
    return _wait(state, Phase.LISTING, ended)


def _after_probe(state: State, ended: Ended) -> tuple[State, Effect]:
    match ended.fault:
        case (
            RequestFault.UNREACHABLE
            | RequestFault.CUT
            | RequestFault.SILENT
            | RequestFault.THROTTLED
        ):
            return _wait(state, Phase.PROBING, ended)
        case RequestFault.NOT_FOUND:
            return _wait(state, Phase.LISTING, ended)
    return _wait(state, _relist_phase(state), ended)


def _after_watch(state: State, ended: Ended) -> tuple[State, Effect]:
    if ended.resource_version:
        state = replace(state, resource_version=ended.resource_version)
    if ended.bookmarked:
        state = replace(state, bookmarks=Bookmarks.EXPECTED)
    if ended.fault is RequestFault.STALE:  # its wait passed while the watch was open
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
        probed = state.probed and ended.fault in {RequestFault.UNREACHABLE, RequestFault.SILENT}
        state = replace(state, suspect=True, probed=probed)
    if ended.fault is RequestFault.EXPIRED and not state.acted:
        return _enter(replace(state, acted=True), _relist_phase(state))
    # A watch can't continue without a position: it would start with the current objects and never
    # report the deleted ones.
    if ended.stale or state.resource_version in NO_POSITION:
        return _wait(state, _relist_phase(state), ended)
    match ended.fault:
        case None if healthy:
            # A restored server sends nothing until it has caught up with our version.
            return _enter(state, Phase.PROBING if ended.quiet else Phase.WATCHING)
        case RequestFault.SILENT if healthy:
            return _after_silence(state)
        case RequestFault.SILENT if not state.probed:
            return _enter(state, Phase.PROBING)
        case RequestFault.UNREACHABLE if not state.probed:
            return _wait(state, Phase.PROBING, ended)
        case (
            None
            | RequestFault.UNREACHABLE
            | RequestFault.CUT
            | RequestFault.SILENT
            | RequestFault.THROTTLED
            | RequestFault.USELESS
        ):
            return _wait(state, Phase.WATCHING, ended)
        case RequestFault.NOT_FOUND:  # a list decides that
            return _wait(state, Phase.LISTING, ended)
    return _wait(state, _relist_phase(state), ended)


def _after_silence(state: State) -> tuple[State, Effect]:
    """Replace an open watch that fell silent; this costs one request."""
    if state.bookmarks is Bookmarks.EXPECTED:
        return _enter(replace(state, bookmarks=Bookmarks.DOUBTED), Phase.WATCHING)
    # A restored server is just as silent; asking for its version reveals it.
    return _enter(replace(state, bookmarks=Bookmarks.NONE), Phase.PROBING)


# --- Reading versions and errors -----------------------------------------------------------------


def is_comparable(version: str) -> bool:
    """Return whether a resource version is a number that can be compared with others.

    Those of a real server have 64 bits; Python refuses to parse numbers with thousands of digits.
    """
    return len(version) <= _LONGEST_VERSION and version.isascii() and version.isdecimal()


def is_older(version: str, than: str) -> bool:
    """Return whether a resource version is lower than another; False if they are not comparable.

    Versions are decimal numbers of any length without leading zeros (KEP-5504), so the longer one
    is greater. Anything else, including none, is not comparable.
    """
    if version == than or not (version.isdecimal() and than.isdecimal()):
        return False
    return (len(version), version) < (len(than), than)


def fault_of(error: BaseException, *, opened: bool = False) -> RequestFault:
    """Return the kind of failure of a request from its exception.

    Args:
        error: the exception.
        opened: the server had begun to respond.
    """
    match error:
        case StatusError():
            return _fault_of_status(error)
        case TimeoutError():
            return RequestFault.SILENT
        case DisconnectedError() if error.refused:
            return RequestFault.UNREACHABLE
        case DisconnectedError() | OSError():
            return RequestFault.CUT if opened else RequestFault.UNREACHABLE
        case FrameError() if opened:
            return RequestFault.CUT
    return RequestFault.OTHER


def _fault_of_status(error: StatusError) -> RequestFault:
    match error:
        case TooManyRequestsError():
            return RequestFault.THROTTLED
        case ExpiredError():
            return RequestFault.EXPIRED
        case ServerTimeoutError() if error.is_too_large_resource_version:
            return RequestFault.TOO_LARGE
        case BadRequestError() | InvalidError():
            return RequestFault.INVALID
        case NotFoundError():
            return RequestFault.NOT_FOUND
    return RequestFault.OTHER
