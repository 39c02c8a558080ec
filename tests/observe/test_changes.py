from listwatch.objects import Object
from listwatch.objects.differences import MISSING, differences
from listwatch.observe.changes import Observation, ObservationType, merged


def _object(version: int) -> Object:
    return Object.from_dict({"metadata": {"name": "a", "resourceVersion": str(version)}})


def test_lists_and_resyncs_are_called_sync_as_in_the_original() -> None:
    assert [kind.plain for kind in ObservationType] == [
        "Sync",
        "Added",
        "Updated",
        "Sync",
        "Sync",
        "Deleted",
    ]


def test_differences_name_the_deepest_fields_that_changed() -> None:
    old = {"a": {"b": 1, "same": [1]}, "list": [{"x": 1}, 2], "gone": None, "t": True}
    new = {"a": {"b": 2, "same": [1]}, "list": [{"x": 1}, 3, 4], "new/key": {}, "t": 1}
    assert [(d.path, d.old, d.new) for d in differences(old, new)] == [
        ("a.b", 1, 2),
        ("list[1]", 2, 3),
        ("list[2]", MISSING, 4),
        ('["new/key"]', MISSING, {}),
        ("t", True, 1),
        ("gone", None, MISSING),
    ]


def test_an_addition_and_updates_amount_to_an_addition_with_the_latest_state() -> None:
    added = Observation(ObservationType.ADDED, "a", _object(1))
    updated = Observation(ObservationType.UPDATED, "a", _object(2), old=_object(1))
    assert merged(added, updated) == (Observation(ObservationType.ADDED, "a", _object(2)),)


def test_updates_amount_to_one_from_the_first_old_state_to_the_latest() -> None:
    first = Observation(ObservationType.UPDATED, "a", _object(2), old=_object(1))
    second = Observation(ObservationType.UPDATED, "a", _object(3), old=_object(2))
    together = Observation(ObservationType.UPDATED, "a", _object(3), old=_object(1))
    assert merged(first, second) == (together,)


def test_what_came_and_went_amounts_to_nothing_and_what_was_known_to_a_deletion() -> None:
    deleted = Observation(ObservationType.DELETED, "a", _object(3), old=_object(2))
    assert merged(Observation(ObservationType.ADDED, "a", _object(2)), deleted) == ()
    updated = Observation(ObservationType.UPDATED, "a", _object(2), old=_object(1))
    together = Observation(ObservationType.DELETED, "a", _object(3), old=_object(1))
    assert merged(updated, deleted) == (together,)


def test_a_deletion_and_what_comes_after_it_stay_two() -> None:
    deleted = Observation(ObservationType.DELETED, "a", _object(1))
    added = Observation(ObservationType.ADDED, "a", _object(2))
    assert merged(deleted, added) == (deleted, added)
