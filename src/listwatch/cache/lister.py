"""Reads a cache: by name, by selector, by namespace, by owner."""

from collections.abc import Iterable
from typing import Any, Generic, TypeAlias

from listwatch.cache.store import Indexer
from listwatch.cache.typed import Into, T
from listwatch.errors import NotFoundError
from listwatch.objects import Object, ObjectKey, select
from listwatch.selector import LabelSelector, parse_label_selector

#: The index by namespace.
NAMESPACE_INDEX = "namespace"
#: The index by the uids of an object's owners.
OWNER_INDEX = "owner"

# `list` is a method below, so annotations can't use it.
_List: TypeAlias = list[T]


def namespace_of(obj: Object) -> Iterable[str]:
    """Return an object's namespace: the function of `NAMESPACE_INDEX`."""
    return (obj.meta.namespace,)


def owners_of(obj: Object) -> Iterable[str]:
    """Return the uids of an object's owners: the function of `OWNER_INDEX`."""
    owners = obj.meta.owner_references
    return [owner.uid for owner in owners] if owners else ()


class Lister(Generic[T]):
    """Reads a cache from any thread, without waiting. The caller owns the results.

    With `decode`, each call decodes its results afresh, and may raise `ObjectDecodeError` for an
    object that does not fit the type.

    Args:
        indexer: the cache, with the indices by namespace and owner.
        namespace: namespace to read; None for all.
        name: name of the resource, for errors.
        decode: type of the results; by default `Object`.
    """

    def __init__(
        self,
        indexer: Indexer,
        *,
        namespace: str | None = None,
        name: str = "",
        decode: Into[T] | None = None,
    ) -> None:
        self._indexer = indexer
        self._namespace = namespace
        self._name = name
        self._into = decode

    def namespaced(self, namespace: str) -> "Lister[T]":
        """Return a lister of one namespace; "" for cluster-scoped objects."""
        return Lister(self._indexer, namespace=namespace, name=self._name, decode=self._into)

    def get(self, name: str, namespace: str | None = None) -> T:
        """Return an object.

        Args:
            name: its name.
            namespace: its namespace; by default the lister's, or none for cluster-scoped objects.

        Raises:
            NotFoundError: the cache has no object of this name.
        """
        key = self._key(name, namespace)
        obj = self._indexer.get_by_key(key)
        if obj is None:
            raise NotFoundError(f"{self._name or 'object'} {key!r} not found in the cache")
        return self._value(obj)

    def find(self, name: str, namespace: str | None = None) -> T | None:
        """Return an object, or None; otherwise like `get`."""
        obj = self._indexer.get_by_key(self._key(name, namespace))
        return None if obj is None else self._value(obj)

    def _key(self, name: str, namespace: str | None) -> str:
        if namespace is None:
            namespace = self._namespace or ""
        return str(ObjectKey(namespace, name))

    def list(self, selector: LabelSelector | str = "") -> _List[T]:
        """Return the objects whose labels match a selector, such as `app in (a,b),!old`.

        Raises:
            SelectorError: the selector can't be parsed.
        """
        if self._namespace is None:
            objects = self._indexer.list()
        else:
            objects = self._indexer.by_index(NAMESPACE_INDEX, self._namespace)
        return self._values(_selected(objects, selector))

    def by_index(self, index: str, value: str) -> _List[T]:
        """Return the objects that have this value in an index.

        Raises:
            UnknownIndexError: there is no index of this name.
        """
        objects = self._indexer.by_index(index, value)
        if self._namespace is not None:
            objects = [obj for obj in objects if obj.meta.namespace == self._namespace]
        return self._values(objects)

    def by_owner(self, uid: str) -> _List[T]:
        """Return the objects that an object owns."""
        return self.by_index(OWNER_INDEX, uid)

    def __len__(self) -> int:
        if self._namespace is None:
            return len(self._indexer)
        return len(self._indexer.index_keys(NAMESPACE_INDEX, self._namespace))

    def _value(self, obj: Any) -> T:
        value: T = obj if self._into is None else obj.decode(self._into)
        return value

    def _values(self, objects: Any) -> _List[T]:
        values: _List[T] = objects if self._into is None else [self._value(obj) for obj in objects]
        return values


def _selected(objects: list[Object], selector: LabelSelector | str) -> list[Object]:
    if isinstance(selector, str):
        selector = parse_label_selector(selector)
    return objects if selector.is_everything else select(objects, selector)
