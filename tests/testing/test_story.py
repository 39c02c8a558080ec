import pytest

from listwatch.testing.story import Chapter, ChapterType, Gap, compare

A, U, D, S = ChapterType.ADDED, ChapterType.UPDATED, ChapterType.DELETED, ChapterType.SYNC
DONE = [
    Chapter(A, "ns/a", "u1", 1),
    Chapter(A, "ns/b", "u2", 2),
    Chapter(U, "ns/a", "u1", 3),
    Chapter(D, "ns/a", "u1", 4),
    Chapter(A, "ns/a", "u3", 5),
    Chapter(U, "ns/b", "u2", 6),
    Chapter(U, "ns/b", "u2", 7),
]


def test_a_story_told_as_done_has_no_mistakes() -> None:
    result = compare(DONE, DONE)
    assert (result.done, result.told, result.mistakes) == (7, 7, [])
    assert (result.skipped_updates, result.skipped_lives) == (0, 0)


def test_what_a_list_skipped_over_is_counted_and_no_mistake() -> None:
    told = [Chapter(S, "ns/a", "u3", 5), Chapter(S, "ns/b", "u2", 7)]
    result = compare(DONE, told, [Gap(0, 7)])
    assert result.mistakes == []
    assert (result.skipped_updates, result.skipped_lives) == (2, 1)
    assert compare(DONE, told).mistakes != []


def test_a_missed_deletion_is_told_with_the_last_known_version() -> None:
    told = [*DONE[:3], Chapter(D, "ns/a", "u1", 3), *DONE[4:]]
    assert compare(DONE, told).mistakes == []


def test_a_list_may_tell_a_known_state_again() -> None:
    assert compare(DONE, [*DONE, Chapter(S, "ns/b", "u2", 7)]).mistakes == []


def _without(index: int) -> list[Chapter]:
    return DONE[:index] + DONE[index + 1 :]


@pytest.mark.parametrize(
    ("told", "mistake"),
    [
        (_without(0), "ns/a: Updated to version 3, but it was never added"),
        (_without(2), "ns/a: version 3 of uid u1 was never delivered"),
        (_without(3), "ns/a: Added of uid u3 before uid u1 was deleted"),
        (_without(4), "ns/a: uid u3 was never delivered"),
        (_without(5), "ns/b: version 6 of uid u2 was never delivered"),
        (_without(6), "ns/b: its last state is version 7, delivered was 6"),
        ([*DONE, DONE[6]], "ns/b: Updated at version 7 after version 7"),
        ([*DONE, Chapter(S, "ns/b", "u2", 6)], "ns/b: Sync at version 6 after version 7"),
        (
            [*DONE, Chapter(A, "ns/b", "u2", 7)],
            "ns/b: Added at version 7, but it existed already",
        ),
        ([*DONE, Chapter(D, "ns/b", "u2", 8)], "ns/b: Deleted uid u2, which still exists"),
        ([*DONE, DONE[3]], "ns/a: Deleted uid u1, which was not delivered as existing"),
        ([*DONE, Chapter(A, "ns/c", "u9", 9)], "ns/c: Added of uid 'u9', which never existed"),
        ([*DONE, Chapter(U, "ns/b", "u2", 9)], "ns/b: Updated at version 9, which was never made"),
        ([*DONE, DONE[0]], "ns/a: Added of uid u1 before uid u3 was deleted"),
    ],
)
def test_every_doctored_story_is_found_out(told: list[Chapter], mistake: str) -> None:
    assert mistake in compare(DONE, told).mistakes


def test_a_gap_excuses_nothing_outside_it() -> None:
    told = _without(2)
    assert compare(DONE, told, [Gap(4, 7)]).mistakes == [
        "ns/a: version 3 of uid u1 was never delivered"
    ]
    # The last state within the gap must be delivered: the next one came after the list.
    assert compare(DONE, _without(5), [Gap(0, 6)]).mistakes != []


def test_a_mark_of_deletion_is_told_once_before_the_deletion() -> None:
    done = [Chapter(A, "a", "u", 1), Chapter(U, "a", "u", 2), Chapter(D, "a", "u", 4)]
    mark = Chapter(U, "a", "u", 3, deleting=True)
    assert compare(done, [*done[:2], mark, done[2]], marked=True).mistakes == []
    assert compare(done, done, [Gap(2, 4)], marked=True).mistakes == []
    (missing,) = compare(done, done, marked=True).mistakes
    assert missing == "a: uid u was delivered 0 times as marked, not once"
    assert compare(done, [*done[:2], mark, mark, done[2]], marked=True).mistakes != []
    early = Chapter(U, "a", "u", 2, deleting=True)
    assert compare(done, [*done[:2], early, done[2]], marked=True).mistakes == [
        "a: marked for deletion at version 2, which never happened"
    ]
    assert compare(done[:2], [*done[:2], mark], marked=True).mistakes != []
