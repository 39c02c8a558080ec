"""Changes of a key, converted to a type that some states do not fit."""

from typing import assert_never

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from listwatch.cache.handlers import Added, Change, ChangeDecoder, Deleted, Updated
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
def test_decoded_changes_are_consistent_and_lack_only_states_that_do_not_fit(
    lives: list[tuple[list[bool], str]],
) -> None:
    decoder = ChangeDecoder(Pod)
    number = 0
    delivered: int | None = None  # number of the last delivered state

    def decoded(change: Change) -> Change[Pod] | None:
        try:
            return decoder.decode(change)
        except ObjectDecodeError:
            return None

    for fitting, end in lives:
        before: Object | None = None
        for fits in fitting:
            number += 1
            now = state(number, fits=fits)
            change = decoded(Added(now) if before is None else Updated(before, now))
            before = now
            if not fits:
                assert change is None
                continue
            assert change is not None
            assert change.key == "a"
            match change:
                case Added(obj):
                    assert delivered is None
                    assert obj.spec.x == number
                case Updated(old, new):
                    assert (old.spec.x, new.spec.x) == (delivered, number)
                case Deleted():
                    raise AssertionError
                case _:
                    assert_never(change)
            delivered = number
        number += 1
        last = state(number, fits=end == "yes")
        ended = decoded(Deleted(DeletedFinalStateUnknown("a", last) if end == "unseen" else last))
        if delivered is None:
            assert ended is None
        else:
            assert isinstance(ended, Deleted)
            assert ended.key == "a"
            if end == "yes":
                assert ended.obj == Pod(Spec(number))
            else:
                assert ended.obj == DeletedFinalStateUnknown("a", last)
        delivered = None


def test_what_is_told_in_objects_stays_as_it_is() -> None:
    changes: list[Change] = [Added(state(1, fits=True)), Deleted(state(1, fits=False))]
    decoder = ChangeDecoder[Object](None)
    assert [decoder.decode(change) for change in changes] == changes
