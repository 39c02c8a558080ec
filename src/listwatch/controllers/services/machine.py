"""Decides the next action for one service: a state machine without I/O.

`step` is the whole policy. The `ServiceController` performs the actions one at a time. `begun`
returns the state while an action runs: what may be true if the action fails or is cancelled. `done`
returns the state after it.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from listwatch.cache.reflector_machine import is_older
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.service import (
    InvalidServiceError,
    LoadBalancerStatus,
    Service,
    changes,
    needs_cleanup,
    needs_update,
    wants_load_balancer,
)
from listwatch.objects import Object


class ServicePhase(StrEnum):
    """Progress of a service's load balancer."""

    #: As far as known, the provider has nothing, and the service has no finalizer and no status.
    ABSENT = "Absent"
    #: Finalizer and status may be written; the provider has nothing.
    CLAIMED = "Claimed"
    #: The provider may have something.
    PARTIAL = "Partial"
    #: The provider has what the service wants; the status may not show it.
    MADE = "Made"
    #: The status shows it, too.
    SERVING = "Serving"
    #: The provider says that another controller handles the service.
    ELSEWHERE = "Elsewhere"


#: Phases in which the provider may have something.
EXISTING = frozenset(
    {ServicePhase.PARTIAL, ServicePhase.MADE, ServicePhase.SERVING, ServicePhase.ELSEWHERE}
)


class Waiting(msgspec.Struct, frozen=True):
    """A service is retried after a while, or after a relevant change.

    Attributes:
        until: time of the next try, by the clock.
        tried: the state that was tried; None for a deleted service.
        failures: failures in a row before the next try.
    """

    until: float
    tried: Object | None
    failures: int


class State(msgspec.Struct, frozen=True):
    """The known state of one service's load balancer.

    Attributes:
        phase: its progress.
        service: the state of the service for which it was claimed, begun or made; None if ABSENT.
        status: the provider's last status.
        nodes: the nodes it uses.
        written: resource version of the last write to the service.
        waiting: the wait for the next try, after a failure.
    """

    phase: ServicePhase = ServicePhase.ABSENT
    service: Service | None = None
    status: LoadBalancerStatus = LoadBalancerStatus()
    nodes: tuple[Node, ...] = ()
    written: str = ""
    waiting: Waiting | None = None

    def wait(self, found: Object | None, now: float) -> float:
        """Return how many seconds the next try must wait; usually 0."""
        if self.waiting is None or _matters(self.waiting.tried, found):
            return 0.0
        return max(0.0, self.waiting.until - now)


class Seen(msgspec.Struct, frozen=True):
    """The observations with which a state is compared.

    Attributes:
        service: the current service; None if deleted.
        nodes: the eligible nodes.
        load_balancer_class: the class to serve; None for services without a class.
        check: ask the provider whether the load balancer still exists.
        has_finalizer: whether the service has our finalizer, including our own writes.
        status: the service's status, including our own writes.
    """

    service: Service | None
    nodes: tuple[Node, ...] = ()
    load_balancer_class: str | None = None
    check: bool = False
    has_finalizer: bool = False
    status: LoadBalancerStatus = LoadBalancerStatus()

    @staticmethod
    def of(
        service: Service | None,
        state: State,
        nodes: tuple[Node, ...],
        load_balancer_class: str | None,
        *,
        check: bool,
    ) -> "Seen":
        """Return the observations of a service; our last write counts if they precede it."""
        seen = Seen(service, nodes, load_balancer_class, check)
        if service is None:
            return seen
        if is_older(service.object.resource_version, state.written):
            return replace(seen, has_finalizer=True, status=state.status)
        return replace(seen, has_finalizer=service.has_finalizer, status=service.status)


# --- Actions -------------------------------------------------------------------------------------


class _OfService(msgspec.Struct, frozen=True):
    service: Service


class AddFinalizer(_OfService, frozen=True):
    """Write the finalizer."""


class Ensure(_OfService, frozen=True):
    """Let the provider create or update the load balancer."""


class WriteStatus(_OfService, frozen=True):
    """Write the provider's status into the service's."""


class Check(_OfService, frozen=True):
    """Ask the provider whether the load balancer exists."""


class UpdateNodes(_OfService, frozen=True):
    """Give the provider other nodes."""


class Remove(_OfService, frozen=True):
    """Let the provider remove anything it may have."""


class Release(_OfService, frozen=True):
    """Remove finalizer and status."""


Action: TypeAlias = AddFinalizer | Ensure | WriteStatus | Check | UpdateNodes | Remove | Release


class Written(msgspec.Struct, frozen=True):
    """A write succeeded, and gave the service this version."""

    resource_version: str


class Ensured(msgspec.Struct, frozen=True):
    """The provider has what the service wants."""

    status: LoadBalancerStatus


class Checked(msgspec.Struct, frozen=True):
    """The provider answered whether it has the load balancer."""

    found: bool


class Finished(msgspec.Struct, frozen=True):
    """The provider has finished."""


class Elsewhere(msgspec.Struct, frozen=True):
    """The provider says that another controller handles the service."""


Outcome: TypeAlias = Written | Ensured | Checked | Finished | Elsewhere


# --- The policy ----------------------------------------------------------------------------------


def step(state: State, seen: Seen) -> Action | None:
    """Return what to do next; None for nothing until something changes."""
    own, now = state.service, seen.service
    if own is not None and (now is None or now.uid != own.uid):
        if state.phase in EXISTING:
            return Remove(own)
        own, state = None, State()  # its finalizer and status are also gone
    if now is None:
        return None
    if now.is_deleted or not wants_load_balancer(now, seen.load_balancer_class):
        return _step_down(state, now, seen)
    if not seen.has_finalizer:
        return AddFinalizer(now)
    if own is None or state.phase in {
        ServicePhase.ABSENT,
        ServicePhase.CLAIMED,
        ServicePhase.PARTIAL,
    }:
        return Ensure(now)
    return _keep(state, own, now, seen)


def _step_down(state: State, now: Service, seen: Seen) -> Action | None:
    if state.phase in EXISTING:
        return Remove(now)
    if state.phase is ServicePhase.CLAIMED:
        return Release(now)
    # An earlier process may have created something.
    left = seen.has_finalizer and needs_cleanup(now, seen.load_balancer_class)
    return Remove(now) if left else None


def _keep(state: State, own: Service, now: Service, seen: Seen) -> Action | None:
    if needs_update(own, now):
        return Ensure(now)
    if state.phase is ServicePhase.MADE:
        return WriteStatus(now)
    if seen.check:
        return Check(now)
    if state.phase is ServicePhase.ELSEWHERE:
        return None
    if state.nodes != seen.nodes:
        return UpdateNodes(own)
    # Restore a status that was removed; leave another load balancer's status alone.
    return WriteStatus(now) if state.status.ingress and not seen.status.ingress else None


def begun(state: State, action: Action) -> State:
    """Return the state while an action runs: anything that it may have done so far."""
    match action:
        case AddFinalizer():
            if state.phase is ServicePhase.ABSENT or _is_another(state, action.service):
                return State(phase=ServicePhase.CLAIMED, service=action.service)
            return state
        case Ensure() | Remove() | UpdateNodes():
            return replace(state, phase=ServicePhase.PARTIAL, service=action.service)
        case WriteStatus() | Check() | Release():
            return state


def done(state: State, seen: Seen, action: Action, outcome: Outcome) -> tuple[State, Seen]:
    """Return the state and the observations after a successful action."""
    match action, outcome:
        case AddFinalizer(), Written(version):
            return replace(state, written=version), replace(seen, has_finalizer=True)
        case WriteStatus(), Written(version):
            state = replace(state, phase=ServicePhase.SERVING, written=version)
            return state, replace(seen, status=state.status)
        case Release(), _:
            return State(), replace(seen, has_finalizer=False, status=LoadBalancerStatus())
        case Ensure(), Ensured(status):
            phase = ServicePhase.SERVING if status == seen.status else ServicePhase.MADE
            state = replace(state, phase=phase, status=status, nodes=seen.nodes)
            return state, replace(seen, check=False)
        case Ensure(), Elsewhere():
            return replace(state, phase=ServicePhase.ELSEWHERE), replace(seen, check=False)
        case UpdateNodes(), _:
            return replace(state, phase=ServicePhase.SERVING, nodes=seen.nodes), seen
        case Check(), Checked(found):
            phase = state.phase if found else ServicePhase.PARTIAL
            return replace(state, phase=phase), replace(seen, check=False)
        case Remove(), _:
            state = State(phase=ServicePhase.CLAIMED, service=action.service)
            return state, seen
        case _:
            raise TypeError(f"{action} does not end with {outcome}")


def kept(state: State, seen: Seen) -> State | None:
    """Return the state to remember when nothing is left to do; None for nothing."""
    if state.phase is ServicePhase.ABSENT or state.service is None or seen.service is None:
        return None
    return None if state.service.uid != seen.service.uid else replace(state, waiting=None)


def differences(state: State, service: Service) -> Iterator[str]:
    """Yield the reasons why an existing load balancer is ensured again."""
    if state.service is not None and state.phase in {
        ServicePhase.MADE,
        ServicePhase.SERVING,
        ServicePhase.ELSEWHERE,
    }:
        yield from changes(state.service, service)


def _is_another(state: State, service: Service) -> bool:
    return state.service is None or state.service.uid != service.uid


def _matters(tried: Object | None, found: Object | None) -> bool:
    """Return whether a change is a reason to retry a failure at once."""
    if tried is None or found is None:
        return tried is not found
    if (tried.meta.deletion_timestamp, tried.uid) != (found.meta.deletion_timestamp, found.uid):
        return True
    try:
        return needs_update(Service.of(tried), Service.of(found))
    except InvalidServiceError:
        return tried.resource_version != found.resource_version
