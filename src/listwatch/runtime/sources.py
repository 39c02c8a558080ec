"""The sources of a reconciler's keys."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from listwatch.cache.deltas import Item
from listwatch.cache.handlers import Added, Change, Deleted, Updated, last_state
from listwatch.objects import Object, ObjectKey, OwnerReference
from listwatch.runtime.predicates import Predicate
from listwatch.runtime.reconcile_record import Trigger
from listwatch.workqueue.priority_queue import LOW_PRIORITY

#: Takes a key, its priority, and what woke it.
Enqueue: TypeAlias = Callable[[str, int, Trigger], object]
#: Returns the keys to reconcile because of an object.
MapFunc: TypeAlias = Callable[[Object], Iterable[str]]


class KeySource:
    """Turns changes of a resource into keys in a queue.

    The objects of the first list, and updates without a change, get low priority: real changes go
    first. Both states of an update give keys, so an object that moves from one owner to another
    wakes both.

    Args:
        resource: the resource, for the triggers.
        enqueue: receives the keys.
        map_func: returns the keys of an object; None for its own.
        predicates: all must accept a change.
        gone: called with the key of each deleted object, whatever the predicates say.
    """

    def __init__(
        self,
        resource: str,
        enqueue: Enqueue,
        map_func: MapFunc | None,
        predicates: Sequence[Predicate],
        gone: Callable[[str], object] | None = None,
    ) -> None:
        self._resource = resource
        self._enqueue = enqueue
        self._map = map_func
        self._predicates = predicates
        self._gone = gone

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:  # noqa: FBT001 - required by the protocol
        """Queue the keys of a new object."""
        if self._passes(Added(obj, is_in_initial_list)):
            if is_in_initial_list:
                self._put([obj], LOW_PRIORITY, "Listed")
            else:
                self._put([obj], 0, "Added")

    def on_update(self, old: Object, new: Object) -> None:
        """Queue the keys of both states."""
        if self._passes(Updated(old, new, is_resync=old is new)):
            if old.resource_version == new.resource_version:
                self._put([new] if old is new else [old, new], LOW_PRIORITY, "Resync")
            else:
                self._put([old, new], 0, "Updated")

    def on_delete(self, obj: Item) -> None:
        """Queue the keys of an object's last state."""
        if self._gone is not None:
            self._gone(obj.key)
        if not self._passes(Deleted(obj)):
            return
        if self._map is None:
            last = last_state(obj)
            version = "" if last is None else last.resource_version
            self._enqueue(obj.key, 0, Trigger("Deleted", self._resource, obj.key, version))
        elif (last := last_state(obj)) is not None:
            self._put([last], 0, "Deleted")

    def _passes(self, change: Change) -> bool:
        return all(predicate(change) for predicate in self._predicates)

    def _put(self, states: Sequence[Object], priority: int, change: str) -> None:
        newest = states[-1]
        own = newest.key
        trigger = Trigger(change, self._resource, own, newest.resource_version)
        if self._map is None:
            self._enqueue(own, priority, trigger)
            return
        for key in {key for obj in states for key in _keys(self._map(obj))}:
            self._enqueue(key, priority, trigger)


def _keys(keys: Iterable[str]) -> Iterable[str]:
    if isinstance(keys, str):
        raise TypeError(f"a map function must return a list of keys, not one string: {keys!r}")
    return keys


def owner_keys(
    group: str, kind: str, *, namespaced: bool, controllers_only: bool = True
) -> MapFunc:
    """Return a function that returns the keys of an object's owners of one kind.

    Args:
        group: the owners' API group; the version does not matter.
        kind: the owners' kind.
        namespaced: the owners are namespaced, so they are in the namespace of their objects.
        controllers_only: only the owner marked as the controller.
    """

    def matches(owner: OwnerReference) -> bool:
        owners_group, slash, _ = owner.api_version.rpartition("/")
        return (
            owner.kind == kind
            and (owners_group if slash else "") == group
            and (owner.controller is True or not controllers_only)
        )

    def map_func(obj: Object) -> Iterable[str]:
        return [
            str(ObjectKey(obj.namespace if namespaced else "", owner.name))
            for owner in obj.meta.owner_references
            if matches(owner)
        ]

    return map_func
