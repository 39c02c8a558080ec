"""The state machine of a service, with a model of a server and a provider that may fail."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.service_cluster import service
from listwatch.controllers.services.machine import (
    EXISTING,
    Action,
    AddFinalizer,
    Check,
    Checked,
    Elsewhere,
    Ensure,
    Ensured,
    Finished,
    Outcome,
    Release,
    Remove,
    Seen,
    ServicePhase,
    State,
    UpdateNodes,
    Waiting,
    WriteStatus,
    Written,
    begun,
    done,
    kept,
    step,
)
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.service import FINALIZER, Ingress, LoadBalancerStatus, Service
from listwatch.objects import Object


def status_of(service: Service) -> LoadBalancerStatus:
    """Return the provider's status of a service; its address depends on the port."""
    return LoadBalancerStatus((Ingress(ip=f"192.0.2.{service.spec.ports[0].port}"),))


NODES: tuple[Node, ...] = (Node("n1"),)


class FailureError(Exception):
    """An action failed, before or after its effect."""


class Model:
    """A service on a server, the provider's load balancers, and the controller's memory."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.state = State()
        self.value: dict[str, Any] | None = None
        self.seen_value: dict[str, Any] | None = None  # the cached object
        self.version = self.lives = 0
        #: By uid: the service spec they were made for, and their nodes.
        self.balancers: dict[str, tuple[Any, tuple[Node, ...]]] = {}
        self.nodes = NODES
        self.is_well = False
        self.steps: list[str] = []

    # --- Actions of others ---

    def change(self) -> None:
        chance = self.chance
        value = self.value
        steps = ["create", "create", "delete", "type", "ports", "status", "steal", "node", "lose"]
        what = chance.choice(steps)
        if what == "lose":
            self.balancers.clear()
        elif what == "node":
            self.nodes = tuple(Node(f"n{n}") for n in range(chance.randrange(1, 4)))
        elif value is None:
            self.lives += 1
            made = service("web", chance.choice(["LoadBalancer", "ClusterIP"]), uid=f"{self.lives}")
            self.value = made | {"status": {}}
            self._written()
        elif what == "delete":
            if value["metadata"].get("finalizers") and chance.random() < 0.8:
                value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                self._written()
            else:
                self._abandon()
                self.value = None
        elif "deletionTimestamp" not in value["metadata"]:
            if what == "type":
                value["spec"]["type"] = chance.choice(["LoadBalancer", "ClusterIP"])
            elif what == "ports":
                value["spec"]["ports"] = [{"port": chance.randrange(1, 4)}]
            elif what == "status":
                value["status"] = {}
            elif what == "steal":
                self._abandon()
                value["metadata"]["finalizers"] = []
            self._written()

    def _abandon(self) -> None:
        """Drop load balancers of former processes: only the finalizer pointed to them."""
        own = self.state.service
        self.balancers = {
            uid: balancer
            for uid, balancer in self.balancers.items()
            if own is not None and own.uid == uid and self.state.phase in EXISTING
        }

    def _written(self) -> None:
        assert self.value is not None
        self.version += 1
        self.value["metadata"]["resourceVersion"] = str(self.version)

    def watch(self) -> None:
        self.seen_value = None if self.value is None else Object.from_dict(self.value).to_dict()

    # --- Actions of the controller ---

    def reconcile(self) -> None:
        obj = None if self.seen_value is None else Object.from_dict(self.seen_value)
        found = None if obj is None else Service.of(obj)
        check = self.is_well or self.chance.random() < 0.2
        seen = Seen.of(found, self.state, self.nodes, None, check=check)
        for _ in range(12):
            action = step(self.state, seen)
            if action is None:
                self.state = kept(self.state, seen) or State()
                return
            self.steps.append(type(action).__name__)
            self.state = begun(self.state, action)
            try:
                outcome = self.perform(action)
            except FailureError:
                return
            if outcome is None:  # The service is gone; the watch will say so.
                return
            self.state, seen = done(self.state, seen, action, outcome)
        raise AssertionError(f"it turns in a circle: {self.steps[-12:]}")

    def perform(self, action: Action) -> Outcome | None:
        if not self.is_well and self.chance.random() < 0.2:
            raise FailureError
        outcome = self._effect(action)
        if not self.is_well and self.chance.random() < 0.1:
            raise FailureError
        return outcome

    def _effect(self, action: Action) -> Outcome | None:
        uid = action.service.uid
        value = self.value
        is_there = value is not None and value["metadata"]["uid"] == uid
        match action:
            case Ensure():
                others = self.balancers.keys() - {uid}
                assert not others, "a load balancer of a former life is left"
                self.balancers[uid] = (action.service.spec, self.nodes)
                return Ensured(status_of(action.service))
            case UpdateNodes():
                if uid not in self.balancers:
                    raise FailureError
                self.balancers[uid] = (self.balancers[uid][0], self.nodes)
                return Finished()
            case Remove():
                self.balancers.pop(uid, None)
                return Finished()
            case Check():
                return Checked(uid in self.balancers)
            case Release():
                assert uid not in self.balancers, "a service let go before its load balancer"
                if is_there:
                    self._write(finalizers=[], status={})
                return Finished()
        if not is_there:
            return None
        if isinstance(action, AddFinalizer):
            self._write(finalizers=[FINALIZER])
        elif isinstance(action, WriteStatus):
            self._write(status={"loadBalancer": self.state.status.to_dict()})
        return Written(str(self.version))

    def _write(self, *, finalizers: list[str] | None = None, status: Any = None) -> None:
        value = self.value
        assert value is not None
        if finalizers is not None:
            value["metadata"]["finalizers"] = finalizers
        if status is not None:
            value["status"] = status
        self._written()
        if not value["metadata"].get("finalizers") and value["metadata"].get("deletionTimestamp"):
            self.value = None


@given(st.integers(0, 2**32))
def test_at_the_end_everything_is_as_the_service_asks_and_at_rest(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        tell(chance)


def tell(chance: random.Random) -> None:
    model = Model(chance)
    for _ in range(40):
        kind = chance.choice(["change", "watch", "watch", "reconcile", "reconcile", "restart"])
        if kind == "restart":
            if chance.random() < 0.2:  # Only a finalizer points to what the former process created.
                model.watch()
                has = (model.value or {}).get("metadata", {}).get("finalizers")
                uid = (model.value or {}).get("metadata", {}).get("uid")
                model.state = State()
                model.balancers = {u: b for u, b in model.balancers.items() if has and u == uid}
        else:
            getattr(model, kind)()
    model.is_well = True
    for _ in range(3):
        model.watch()
        model.reconcile()
    value = model.value
    wanted = value is not None and value["spec"]["type"] == "LoadBalancer"
    if value is None:
        assert model.balancers == {}
        assert model.state == State()
        return
    assert "deletionTimestamp" not in value["metadata"]
    found = Service.of(Object.from_dict(value))
    assert found.has_finalizer is wanted
    assert model.balancers == ({found.uid: (found.spec, model.nodes)} if wanted else {})
    assert model.state.phase is (ServicePhase.SERVING if wanted else ServicePhase.ABSENT)
    if wanted:
        assert found.status == status_of(found)
    before = len(model.steps)
    model.reconcile()
    assert set(model.steps[before:]) <= {"Check"}, "it is never at rest"


def of(**more: Any) -> Service:
    return Service.of(Object.from_dict(service("web", **more)))


def test_a_failure_leaves_what_may_be_true() -> None:
    web = of()
    cases: list[tuple[Action, ServicePhase]] = [
        (AddFinalizer(web), ServicePhase.CLAIMED),
        (Ensure(web), ServicePhase.PARTIAL),
        (Remove(web), ServicePhase.PARTIAL),
        (UpdateNodes(web), ServicePhase.PARTIAL),
    ]
    for action, phase in cases:
        state = begun(State(), action)
        assert (state.phase, state.service) == (phase, web)


def test_a_service_of_another_controller_is_asked_for_again_only_when_it_changes() -> None:
    web = of()
    seen = Seen(web, NODES, has_finalizer=True)
    state, seen = done(begun(State(), Ensure(web)), seen, Ensure(web), Elsewhere())
    assert state.phase is ServicePhase.ELSEWHERE
    assert step(state, Seen(web, (), has_finalizer=True)) is None
    changed = of(sessionAffinity="ClientIP")
    assert step(state, Seen(changed, NODES, has_finalizer=True)) == Ensure(changed)


def test_what_failed_waits_until_its_time_or_a_change_that_matters() -> None:
    tried = Object.from_dict(service("web"))
    state = State(waiting=Waiting(until=10.0, tried=tried, failures=1))
    value = service("web")
    value["metadata"]["labels"] = {"a": "b"}
    labelled = Object.from_dict(value)
    assert state.wait(labelled, 4.0) == 6.0
    assert state.wait(tried, 11.0) == 0.0
    assert state.wait(None, 4.0) == 0.0
    assert state.wait(Object.from_dict(service("web", "ClusterIP")), 4.0) == 0.0
    assert state.wait(Object.from_dict(service("web", uid="other")), 4.0) == 0.0
    gone = State(waiting=Waiting(until=10.0, tried=None, failures=1))
    assert (gone.wait(None, 4.0), gone.wait(tried, 4.0)) == (6.0, 0.0)


def test_an_outcome_that_no_action_has_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="does not end with"):
        done(State(), Seen(of()), AddFinalizer(of()), Finished())


@pytest.mark.parametrize(
    ("cached", "written", "own_write_counts"),
    [
        ("9", "10", True),
        ("10", "10", False),
        ("11", "10", False),
        ("9", "", False),
        # No numbers, or none that Python reads: the cached state counts.
        ("x", "10", False),
        ("9", "²", False),
        ("9" * 5000, "9" * 5001, True),
    ],
    ids=lambda value: str(value)[:8],
)
def test_the_last_write_counts_until_the_cache_has_it(
    cached: str, written: str, *, own_write_counts: bool
) -> None:
    value = service("web")
    value["metadata"]["resourceVersion"] = cached
    status = LoadBalancerStatus((Ingress(ip="192.0.2.1"),))
    state = State(written=written, status=status)
    seen = Seen.of(Service.of(Object.from_dict(value)), state, NODES, None, check=False)
    assert seen.has_finalizer == own_write_counts
    assert seen.status == (status if own_write_counts else LoadBalancerStatus())
