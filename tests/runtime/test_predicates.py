from typing import Any

import pytest

from listwatch.cache.handlers import Added, Deleted, Updated
from listwatch.objects import DeletedFinalStateUnknown, Object
from listwatch.runtime import predicates
from runtime.reconciler_world import widget


def obj(**more: Any) -> Object:
    return Object.from_dict(widget("a", **more))


@pytest.mark.parametrize(
    ("predicate", "field", "other"),
    [
        (predicates.generation_changed, {"generation": 1}, {"generation": 2}),
        (predicates.generation_changed, {}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        (predicates.labels_changed, {"labels": {"a": "1"}}, {"labels": {"a": "2"}}),
        (predicates.annotations_changed, {"annotations": {"a": "1"}}, {"annotations": {}}),
        (predicates.resource_version_changed, {"resourceVersion": "1"}, {"resourceVersion": "2"}),
    ],
)
def test_a_predicate_sees_the_change_of_its_field_and_of_no_other(
    predicate: predicates.Predicate, field: dict[str, Any], other: dict[str, Any]
) -> None:
    assert predicate(Updated(obj(meta=field), obj(meta=other)))
    assert not predicate(Updated(obj(meta=field), obj(meta=field, status={"x": 1})))
    assert predicate(Added(obj(meta=field)))
    assert predicate(Deleted(obj(meta=field)))


def test_has_notices_that_an_object_ceases_to_fulfil_the_condition() -> None:
    predicate = predicates.has(lambda o: "keep" in o.labels)
    kept, other = obj(meta={"labels": {"keep": ""}}), obj()
    assert predicate(Updated(kept, other))
    assert predicate(Updated(other, kept))
    assert not predicate(Updated(other, other))
    assert not predicate(Added(other))
    assert not predicate(Deleted(other))
    assert predicate(Deleted(DeletedFinalStateUnknown("ns/a")))


def test_predicates_can_be_joined() -> None:
    change = Updated(obj(meta={"labels": {"a": "1"}}), obj())
    both = predicates.all_of(predicates.labels_changed, predicates.generation_changed)
    either = predicates.any_of(predicates.labels_changed, predicates.generation_changed)
    neither = predicates.none_of(predicates.labels_changed, predicates.generation_changed)
    assert (both(change), either(change), neither(change)) == (False, True, False)
    assert predicates.none_of(predicates.generation_changed)(change)
    assert not predicates.not_deleted(Deleted(obj()))
