"""Reads a cache: by name, by selector, by namespace, by owner."""

from collections.abc import Iterable
from typing import TypeAlias

from listwatch.cache.store import Indexer
from listwatch.errors import NotFoundError
from listwatch.objects import Object, ObjectKey
from listwatch.selector import LabelSelector, parse_label_selector

#: The index by namespace.
NAMESPACE_INDEX = "namespace"
#: The index by the uids of an object's owners.
OWNER_INDEX = "owner"

# `list` is a method below, so that annotations can't say it.
_Objects: TypeAlias = list[Object]


def namespace_of(obj: Object) -> Iterable[str]:
    """Return an object's namespace: the function of `NAMESPACE_INDEX`."""
    return (obj.meta.namespace,)


def owners_of(obj: Object) -> Iterable[str]:
    """Return the uids of an object's owners: the function of `OWNER_INDEX`."""
    owners = obj.meta.owner_references
    return [owner.uid for owner in owners] if owners else ()


class Lister:
    """Reads a cache, from any thread and without waiting; what it returns is the caller's own.

    Args:
        indexer: the cache, with the indices by namespace and owner.
        namespace: reads only this one; None reads all.
        name: of the resource, for errors.
    """

    def __init__(self, indexer: Indexer, *, namespace: str | None = None, name: str = "") -> None:
        self._indexer = indexer
        self._namespace = namespace
        self._name = name

    def namespaced(self, namespace: str) -> "Lister":
        """Return a lister of one namespace; "" is that of cluster-scoped objects."""
        return Lister(self._indexer, namespace=namespace, name=self._name)

    def get(self, name: str, namespace: str | None = None) -> Object:
        """Return an object.

        Args:
            name: its name.
            namespace: its namespace; the lister's if not given, and none for cluster-scoped ones.

        Raises:
            NotFoundError: the cache has none of this name.
        """
        obj = self.find(name, namespace)
        if obj is None:
            key = self._key(name, namespace)
            raise NotFoundError(f"{self._name or 'object'} {key!r} not found in the cache")
        return obj

    def find(self, name: str, namespace: str | None = None) -> Object | None:
        """Return an object, or None; as `get`."""
        return self._indexer.get_by_key(self._key(name, namespace))

    def _key(self, name: str, namespace: str | None) -> str:
        if namespace is None:
            namespace = self._namespace or ""
        return str(ObjectKey(namespace, name))

    def list(self, selector: LabelSelector | str = "") -> _Objects:
        """Return the objects whose labels match a selector, such as `app in (a,b),!old`.

        Raises:
            SelectorError: the selector can't be parsed.
        """
        if self._namespace is None:
            return _selected(self._indexer.list(), selector)
        return _selected(self._indexer.by_index(NAMESPACE_INDEX, self._namespace), selector)

    def by_index(self, index: str, value: str) -> _Objects:
        """Return the objects that have this value in an index.

        Raises:
            UnknownIndexError: no index has this name.
        """
        return self._here(self._indexer.by_index(index, value))

    def by_owner(self, uid: str) -> _Objects:
        """Return the objects that an object owns."""
        return self.by_index(OWNER_INDEX, uid)

    def _here(self, objects: _Objects) -> _Objects:
        if self._namespace is None:
            return objects
        return [obj for obj in objects if obj.meta.namespace == self._namespace]

    def __len__(self) -> int:
        if self._namespace is None:
            return len(self._indexer)
        return len(self._indexer.index_keys(NAMESPACE_INDEX, self._namespace))


def _selected(objects: _Objects, selector: LabelSelector | str) -> _Objects:
    if isinstance(selector, str):
        selector = parse_label_selector(selector)
    if selector.is_everything:
        return objects
    return [obj for obj in objects if selector.matches(obj.meta.labels)]
