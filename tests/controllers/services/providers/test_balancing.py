from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from listwatch.clock import FakeClock
from listwatch.controllers.services.providers.balancing import AFFINITY_LIMIT, Backend, Balancer

A, B, C = (Backend("192.0.2.1", port) for port in (1, 2, 3))


def balancer(*backends: Backend, affinity: int = 0) -> tuple[Balancer, FakeClock]:
    clock = FakeClock()
    made = Balancer(clock)
    made.set_backends(backends)
    made.affinity_seconds = affinity
    return made, clock


def test_backends_take_turns() -> None:
    made, _ = balancer(A, B, C)
    assert Counter(made.choose("x") for _ in range(9)) == {A: 3, B: 3, C: 3}


def test_shares_are_by_weight_and_spread_out() -> None:
    made, _ = balancer(A, B, C)
    made.set_weights({A: 3, B: 0, Backend("192.0.2.9", 1): 5})
    turns = [made.choose("x") for _ in range(10)]
    assert Counter(turns) == {A: 6, B: 2, C: 2}
    assert turns[:5].count(A) == 3
    made.set_backends([B, C])
    made.set_backends([A, B, C])
    assert Counter(made.choose("x") for _ in range(9)) == {A: 3, B: 3, C: 3}


def test_the_backend_with_the_fewest_connections_for_its_weight_is_next() -> None:
    made, _ = balancer(A, B)
    made.least_connections = True
    made.began(A)
    assert [made.choose("x") for _ in range(3)] == [B, B, B]
    made.began(B)
    assert {made.choose("x") for _ in range(2)} == {A, B}
    made.set_weights({A: 3})
    made.began(A)
    assert made.choose("x") == A
    for _ in range(3):
        made.ended(A)
    made.began(A)
    made.began(A)
    made.began(A)
    made.began(A)
    assert made.choose("x") == B


def test_without_a_backend_there_is_none_to_choose() -> None:
    made, _ = balancer()
    assert made.choose("x") is None


def test_a_failed_backend_is_passed_over_until_it_is_well() -> None:
    made, _ = balancer(A, B)
    assert made.report(A, well=False)
    assert not made.report(A, well=False)
    assert {made.choose("x") for _ in range(4)} == {B}
    assert made.report(A, well=True)
    assert not made.report(A, well=True)
    assert {made.choose("x") for _ in range(4)} == {A, B}


def test_when_all_have_failed_all_are_tried_each_once() -> None:
    made, _ = balancer(A, B)
    made.report(A, well=False)
    made.report(B, well=False)
    first = made.choose("x")
    assert first is not None
    second = made.choose("x", {first})
    assert {first, second} == {A, B}
    assert made.choose("x", {A, B}) is None


def test_what_is_reported_of_a_removed_backend_is_forgotten() -> None:
    made, _ = balancer(A, B)
    made.report(A, well=False)
    assert made.set_backends([B, C]) == {A}
    assert not made.report(A, well=False)
    assert made.failed == frozenset()
    assert made.set_backends([A, B]) == {C}
    assert {made.choose("x") for _ in range(4)} == {A, B}


def remembered(made: Balancer) -> Mapping[str, object]:
    """Return the remembered clients; no public attribute shows them."""
    return made._affinities


def test_a_client_keeps_its_backend_until_it_was_away_for_the_time() -> None:
    made, clock = balancer(A, B, C, affinity=60)
    first = made.choose("x")
    others = {made.choose(f"client-{n}") for n in range(6)}
    assert others == {A, B, C}
    for _ in range(5):
        clock.stall(59)
        assert made.choose("x") == first
    clock.stall(61)
    made.set_backends([b for b in (A, B, C) if b != first])
    made.set_backends([A, B, C])
    assert made.choose("x") is not None
    assert len(remembered(made)) == 1


def test_an_affinity_to_a_failed_or_removed_backend_moves() -> None:
    made, _ = balancer(A, B, affinity=60)
    first = made.choose("x")
    assert first is not None
    made.report(first, well=False)
    second = made.choose("x")
    assert second not in {first, None}
    assert second is not None
    made.report(first, well=True)
    assert made.choose("x") == second
    made.set_backends([first])
    assert made.choose("x") == first


def test_the_memory_of_affinities_is_bounded() -> None:
    made, _ = balancer(A, affinity=60)
    for number in range(AFFINITY_LIMIT + 50):
        made.choose(str(number))
    assert len(remembered(made)) == AFFINITY_LIMIT
    assert "0" not in remembered(made)


BACKENDS = st.sampled_from([Backend("192.0.2.1", port) for port in range(5)])


@given(st.lists(st.tuples(st.sampled_from(["set", "fail", "heal", "choose"]), st.sets(BACKENDS))))
def test_a_choice_is_well_and_present_whenever_one_is(
    steps: list[tuple[str, set[Backend]]],
) -> None:
    made, _ = balancer()
    present: set[Backend] = set()
    failed: set[Backend] = set()
    for step, backends in steps:
        if step == "set":
            assert made.set_backends(backends) == present - backends
            present, failed = set(backends), failed & backends
        elif step == "choose":
            chosen = made.choose("x")
            if chosen is None:
                assert not present
            else:
                assert chosen in ((present - failed) or present)
        else:
            for backend in backends:
                made.report(backend, well=step == "heal")
            failed = failed - backends if step == "heal" else failed | (backends & present)
    assert made.failed == failed


def test_who_was_away_is_forgotten_though_somebody_who_came_earlier_was_not() -> None:
    made, clock = balancer(A, B, affinity=60)
    made.choose("x")
    clock.stall(10)
    made.choose("y")
    clock.stall(40)
    made.choose("x")
    clock.stall(30)
    made.choose("z")
    assert set(remembered(made)) == {"x", "z"}
