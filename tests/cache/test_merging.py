"""Each queue merges waiting changes by its variant of the rule."""

from itertools import product

import pytest

from cache.queue_story import A, D, S, U, drain, known, make
from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import DeltaType
from listwatch.cache.handlers import Added, Change, Deleted, Updated
from listwatch.cache.merging import EACH_LIFE, LAST_STATE, ONE_DELETION, Merging, merge
from listwatch.cache.pending import Pending
from listwatch.objects import Object

PAIRS = list(product((A, U, D), repeat=2))


def change(kind: DeltaType, obj: Object) -> Change:
    if kind is A:
        return Added(obj)
    return Updated(make(obj.name, 1), obj) if kind is U else Deleted(obj)


KINDS: dict[type[Change], DeltaType] = {Added: A, Updated: U, Deleted: D}


def test_a_pair_becomes_nothing_one_event_or_stays_two() -> None:
    assert merge(LAST_STATE, A, D) == ()
    assert merge(LAST_STATE, D, A) == (U,)
    assert merge(EACH_LIFE, D, A) == (D, A)
    assert merge(ONE_DELETION, U, U) == (U, U)
    assert merge(ONE_DELETION, D, D) == (D,)


@pytest.mark.parametrize("variant", [LAST_STATE, EACH_LIFE, ONE_DELETION])
def test_nothing_but_an_addition_that_was_not_seen_becomes_nothing(variant: Merging) -> None:
    assert {pair for pair, kind in variant.items() if kind is None} <= {(A, D)}


@pytest.mark.parametrize(("first", "then"), PAIRS)
async def test_a_delta_fifo_does_what_its_variant_says(first: DeltaType, then: DeltaType) -> None:
    queue = DeltaFIFO(known_objects=known(make("a", 1)))
    for version, kind in ((2, first), (3, then)):
        {A: queue.add, U: queue.update, D: queue.delete}[kind](make("a", version))
    (told,) = await drain(queue)
    assert tuple(kind for kind, _ in told[1]) == merge(ONE_DELETION, first, then)


@pytest.mark.parametrize(("first", "then"), PAIRS)
def test_what_waits_for_a_handler_does_what_its_variant_says(
    first: DeltaType, then: DeltaType
) -> None:
    pending = Pending(bound=1)
    pending.put([change(first, make("a", 2)), change(then, make("a", 3))])
    taken = pending.take(10)
    assert not isinstance(taken, Added | Updated | Deleted)
    kinds = tuple(KINDS[type(each)] for each in taken)  # type: ignore[union-attr]  # no markers here
    assert kinds == merge(EACH_LIFE, first, then)


def test_a_resync_is_of_no_variant_but_the_last_states() -> None:
    assert all(S not in pair for table in (EACH_LIFE, ONE_DELETION) for pair in table)
    assert merge(LAST_STATE, S, U) == (S,)
