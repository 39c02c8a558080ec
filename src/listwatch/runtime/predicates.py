"""Filters for changes that need a reconcile: functions of a `Change`.

They see the old and the new state of an update, and decide before a key is queued. As in
controller-runtime, the comparing ones accept every addition and deletion.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from listwatch.cache.handlers import Added, Change, Deleted, Updated, last_state
from listwatch.objects import Object

#: Returns whether a change counts. Must be quick, and must not raise.
Predicate: TypeAlias = Callable[[Change], bool]


def differs(part: Callable[[Object], object]) -> Predicate:
    """Return a predicate for updates in which a part of the object differs.

    Args:
        part: returns the part of an object, for example `lambda obj: obj.fields.replicas` for an
            informer with `fields=`; results are compared with `==`.
    """

    def predicate(change: Change) -> bool:
        return not isinstance(change, Updated) or part(change.old) != part(change.new)

    return predicate


def _annotations(obj: Object) -> Mapping[str, Any]:
    return obj["metadata"].get("annotations") or {}


#: Updates of the spec: those that change metadata.generation. A resource whose server keeps no
#: generation has none of them. Deleting an object that has finalizers counts.
generation_changed: Predicate = differs(
    lambda obj: (obj.meta.generation, obj.meta.deletion_timestamp)
)

#: Updates that change a label.
labels_changed: Predicate = differs(lambda obj: dict(obj.labels))

#: Updates that change an annotation.
annotations_changed: Predicate = differs(lambda obj: dict(_annotations(obj)))

#: Updates that change anything; a resync changes nothing.
resource_version_changed: Predicate = differs(lambda obj: obj.resource_version)

#: Updates that change the fields that an informer with `fields=` decodes.
fields_changed: Predicate = differs(lambda obj: obj.fields)


def has(condition: Callable[[Object], bool]) -> Predicate:
    """Return a predicate for objects that meet a condition.

    An update counts if either state does, so that an object that stops meeting it is noticed.
    """

    def predicate(change: Change) -> bool:
        if isinstance(change, Updated):
            return condition(change.new) or condition(change.old)
        obj = change.obj if isinstance(change, Added) else last_state(change.obj)
        return obj is None or condition(obj)

    return predicate


def any_of(*predicates: Predicate) -> Predicate:
    """Return a predicate for changes that any of these accepts."""
    return lambda change: any(predicate(change) for predicate in predicates)


def all_of(*predicates: Predicate) -> Predicate:
    """Return a predicate for changes that all of these accept."""
    return lambda change: all(predicate(change) for predicate in predicates)


def none_of(*predicates: Predicate) -> Predicate:
    """Return a predicate for changes that none of these accepts.

    As a comparing predicate accepts every addition and deletion, its contrary rejects them all.
    """
    return lambda change: not any(predicate(change) for predicate in predicates)


def not_deleted(change: Change) -> bool:
    """Reject deletions, for controllers that do nothing after one."""
    return not isinstance(change, Deleted)
