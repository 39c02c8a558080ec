"""Changes of a key, converted to a type that some states do not fit."""

from typing import assert_never

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from listwatch.cache.handlers import Added, Change, Deleted, Retelling, Updated
from listwatch.objects import DeletedFinalStateUnknown, Object, ObjectDecodeError
from listwatch.testing.fake_controller_source import pod


class Spec(msgspec.Struct):
    x: int


class Pod(msgspec.Struct):
    spec: Spec


def state(number: int, *, fits: bool) -> Object:
    return Object.from_dict(pod("a", x=number if fits else "?"))


# The lives of an object: whether each state fits the type, and whether the deletion is seen and
# its last state fits.
LIVES = st.lists(
    st.tuples(st.lists(st.booleans(), min_size=1), st.sampled_from(["yes", "no", "unseen"]))
)


@given(LIVES)
def test_a_story_told_again_is_consistent_and_lacks_only_what_does_not_fit(
    lives: list[tuple[list[bool], str]],
) -> None:
    retelling = Retelling(Pod)
    number = 0
    told: int | None = None  # number of the last delivered state

    def retold(change: Change) -> Change[Pod] | None:
        try:
            return retelling.retell(change)
        except ObjectDecodeError:
            return None

    for fitting, end in lives:
        before: Object | None = None
        for fits in fitting:
            number += 1
            now = state(number, fits=fits)
            change = retold(Added(now) if before is None else Updated(before, now))
            before = now
            if not fits:
                assert change is None
                continue
            assert change is not None
            assert change.key == "a"
            match change:
                case Added(obj):
                    assert told is None
                    assert obj.spec.x == number
                case Updated(old, new):
                    assert (old.spec.x, new.spec.x) == (told, number)
                case Deleted():
                    raise AssertionError
                case _:
                    assert_never(change)
            told = number
        number += 1
        last = state(number, fits=end == "yes")
        ended = retold(Deleted(DeletedFinalStateUnknown("a", last) if end == "unseen" else last))
        if told is None:
            assert ended is None
        else:
            assert isinstance(ended, Deleted)
            assert ended.key == "a"
            if end == "yes":
                assert ended.obj == Pod(Spec(number))
            else:
                assert ended.obj == DeletedFinalStateUnknown("a", last)
        told = None


def test_what_is_told_in_objects_stays_as_it_is() -> None:
    changes: list[Change] = [Added(state(1, fits=True)), Deleted(state(1, fits=False))]
    retelling = Retelling[Object](None)
    assert [retelling.retell(change) for change in changes] == changes
