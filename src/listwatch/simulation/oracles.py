"""What must hold in every world, without a word from the user."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from listwatch.simulation.state import EndState, State

T = TypeVar("T")

#: Words for each oracle, by its name in options and reports.
ORACLES: Final[Mapping[str, str]] = {
    "end-state": "the end state equals that of the world without faults",
    "stability": "everything settles, and then nothing more is written",
    "leadership": "no write is sent by a process whose lease another holds",
    "concurrency": "no key is reconciled twice at once in a process",
    "writes": "no object is written far more often than without faults",
    "requests": "no process sends far more requests than without faults",
    "exception": "no exception remains that retrying does not cure",
    "deletion": "every deletion ends",
    "ownership": "no object remains whose owner is gone",
    "invariant": "the invariants of the user hold at every commit",
    "unsupported": "nothing happens that a simulation can't repeat",
    "scenario": "the scenario itself does not fail",
}

#: How many more writes of one object, or requests of one process, faults may cause.
_FACTOR: Final = 6
_SLACK: Final = 40
_REQUEST_SLACK: Final = 400

Invariant = Callable[[State], object]
RequestInvariant = Callable[[Sequence["SentRequest"]], object]


class SentRequest(msgspec.Struct, frozen=True):
    """A request that a process sent, for invariants of the sequence of requests.

    Attributes:
        time: virtual seconds.
        process: who sent it.
        verb: as in RBAC, such as "create" or "patch".
        resource: with its group, such as "deployments.apps".
        namespace: of the object.
        name: of the object; "" for a creation.
        subresource: such as "status".
        status: the HTTP status; 0 if none was received.
    """

    time: float
    process: str
    verb: str
    resource: str
    namespace: str
    name: str
    subresource: str
    status: int


class Violation(msgspec.Struct, frozen=True):
    """The objection of an oracle.

    Attributes:
        oracle: its name.
        words: what is wrong.
        details: further lines, such as the difference of end states.
        time: virtual seconds.
    """

    oracle: str
    words: str
    details: tuple[str, ...] = ()
    time: float = 0.0


class Outcome(msgspec.Struct):
    """What a world left, for the comparison with the world without faults.

    Attributes:
        end: the end state.
        writes: the number of writes of each object.
        requests: the number of requests of all processes.
        failing: the keys whose last reconcile failed, and why.
        deleting: the objects whose deletion has not ended.
        orphans: the objects whose owner is gone.
    """

    end: EndState
    writes: Counter[str]
    requests: int
    failing: dict[str, str]
    deleting: list[str]
    orphans: list[str]


def compare(outcome: Outcome, reference: Outcome | None, time: float) -> list[Violation]:
    """Return the objections to what a world left.

    Args:
        outcome: of the world.
        reference: of the world without faults; None if this is that world.
        time: for the objections.
    """
    found: list[Violation] = []

    def object_to(oracle: str, words: str, details: Sequence[str] = ()) -> None:
        found.append(Violation(oracle, words, tuple(details), time))

    usual_failures = {} if reference is None else reference.failing
    for key, words in outcome.failing.items():
        if key not in usual_failures:
            object_to("exception", f"{key} still fails: {words}")
    usual = [] if reference is None else reference.deleting
    for name in outcome.deleting:
        if name not in usual:
            object_to("deletion", f"the deletion of {name} does not end")
    usual = [] if reference is None else reference.orphans
    for name in outcome.orphans:
        if name not in usual:
            object_to("ownership", f"{name} remains although its owner is gone")
    if reference is None:
        return found
    differences = outcome.end.differences(reference.end)
    if differences:
        object_to("end-state", "the end state differs from that without faults", differences)
    for name, count in outcome.writes.items():
        if count > _FACTOR * reference.writes[name] + _SLACK:
            words = f"{name} was written {count} times, without faults {reference.writes[name]}"
            object_to("writes", words)
    if outcome.requests > _FACTOR * reference.requests + _REQUEST_SLACK:
        words = f"{outcome.requests} requests were sent, without faults {reference.requests}"
        object_to("requests", words)
    return found


def left_behind(state: State, base: int, ignored: frozenset[str]) -> tuple[list[str], list[str]]:
    """Return the objects whose deletion has not ended, and those whose owner is gone.

    Args:
        state: the objects.
        base: the revision of the beginning; objects unchanged since are left out.
        ignored: resources to leave out.
    """
    deleting: list[str] = []
    owned: list[tuple[str, list[dict[str, Any]]]] = []
    for resource in state.resources():
        if resource in ignored:
            continue
        for obj in state.list(resource, since=base):
            metadata = obj["metadata"]
            namespace, name = metadata.get("namespace", ""), metadata["name"]
            words = f"{resource} {namespace}/{name}" if namespace else f"{resource} {name}"
            if "deletionTimestamp" in metadata:
                deleting.append(words)
            owners = metadata.get("ownerReferences")
            if owners:
                owned.append((words, owners))
    if not owned:
        return deleting, []
    uids = state.uids()
    orphans = [
        words for words, owners in owned if not any(owner.get("uid") in uids for owner in owners)
    ]
    return deleting, orphans


def verdict_of(check: Callable[[T], object], subject: T) -> str:
    """Return what an invariant objects about a subject; "" for nothing.

    An invariant objects by raising an AssertionError, or by returning False or a text.
    """
    name = str(getattr(check, "__name__", check))
    try:
        result = check(subject)
    except AssertionError as error:
        return f"{name}: {error}" if str(error) else name
    if result is False:
        return name
    return f"{name}: {result}" if isinstance(result, str) and result else ""
