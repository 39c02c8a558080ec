"""The soak's oracle finds every kind of mistake."""

import pytest

from soak.facts import GONE, Facts, Reader, Told

#: Three states of an object, its deletion, and another object of the same name.
STATES = (1, 2, 3, GONE, 4)
TRUE_STORY = (
    Told("Added", "ns/a", 1),
    Told("Updated", "ns/a", 2),
    Told("Updated", "ns/a", 3),
    Told("Deleted", "ns/a", 3),
    Told("Added", "ns/a", 4),
)


def _facts() -> Facts:
    facts = Facts()
    for number in STATES:
        facts.wrote("ns/a", number)
    return facts


def _read(*story: Told, may_skip: bool = False, repeats_allowed: bool = False) -> Reader:
    reader = Reader(_facts(), repeats_allowed)
    for line in story:
        reader.read(line, may_skip=may_skip)
    return reader


def test_writes_are_counted_by_what_they_did() -> None:
    facts = _facts()
    assert (facts.creations, facts.changes, facts.deletions) == (2, 2, 1)
    assert facts.alive() == {"ns/a": 4}
    assert facts.alive("other") == {}


def test_a_true_story_has_no_mistakes_and_lacks_nothing() -> None:
    reader = _read(*TRUE_STORY)
    assert (reader.mistakes, list(reader.missing()), reader.skipped) == ([], [], 0)


@pytest.mark.parametrize("left_out", range(len(TRUE_STORY)))
def test_whatever_is_left_out_is_found(left_out: int) -> None:
    story = [line for at, line in enumerate(TRUE_STORY) if at != left_out]
    reader = _read(*story)
    assert [*reader.mistakes, *reader.missing()]


def test_a_list_may_skip_states_but_not_the_last() -> None:
    reader = _read(TRUE_STORY[0], TRUE_STORY[3], TRUE_STORY[4], may_skip=True)
    assert (reader.mistakes, list(reader.missing()), reader.skipped) == ([], [], 2)
    reader = _read(TRUE_STORY[0], TRUE_STORY[2], may_skip=True)
    assert list(reader.missing()) == ["ns/a: written was 4, told 3"]


def test_an_object_that_came_and_went_unseen_is_found_unless_a_list_excuses_it() -> None:
    facts = _facts()
    reader = Reader(facts)
    for line in TRUE_STORY:
        reader.read(line, may_skip=False)
    facts.wrote("ns/b", 5)
    facts.wrote("ns/b", GONE)
    reader.end_round("other", may_skip=False)
    assert (reader.mistakes, reader.skipped) == ([], 0)
    reader.end_round("ns", may_skip=True)
    assert (reader.mistakes, reader.skipped) == ([], 2)
    facts.wrote("ns/b", 6)
    facts.wrote("ns/b", GONE)
    reader.end_round(may_skip=False)
    assert reader.mistakes == ["ns/b: [6, 0] were never told, though it has not listed"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (Told("Updated", "ns/a", 2), "not written after"),  # again, and out of order
        (Told("Added", "ns/a", 4), "it was there already"),
        (Told("Updated", "ns/b", 1), "it was never added"),
        (Told("Added", "ns/b", 1), "not written after"),
        (Told("Deleted", "ns/b", 1), "it was not told to be there"),
    ],
)
def test_what_cannot_be_is_named(line: Told, why: str) -> None:
    reader = _read(*TRUE_STORY[:3], line, may_skip=True)
    assert any(why in mistake for mistake in reader.mistakes)


def test_only_what_was_killed_may_say_its_last_word_again() -> None:
    again = (*TRUE_STORY[:2], TRUE_STORY[1])
    assert _read(*again).mistakes
    reader = _read(*again, repeats_allowed=True)
    assert (reader.mistakes, reader.repeats) == ([], 1)


def test_a_sync_stands_for_an_addition_a_change_or_nothing_new() -> None:
    reader = _read(Told("Sync", "ns/a", 1), Told("Sync", "ns/a", 1), Told("Sync", "ns/a", 2))
    assert reader.mistakes == []
    assert reader.state() == {"ns/a": 2}
