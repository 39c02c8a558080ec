"""Keys of objects in a cache, and the tombstone of an object whose deletion was missed."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from listwatch.errors import ListWatchError
from listwatch.objects.object import Object


class KeyFunctionError(ListWatchError):
    """No key: not an object, or without a name."""


class ObjectKey(NamedTuple):
    """Namespace (empty for a cluster-scoped object) and name; `str()` is the store's key."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class DeletedFinalStateUnknown(msgspec.Struct, frozen=True, gc=False):
    """The tombstone of an object whose deletion was missed and found later.

    Attributes:
        key: the object's key.
        obj: its last known state, which may be stale; None if only the key is known.
    """

    key: str
    obj: Object | None = None


def object_key(item: object) -> ObjectKey:
    """Return the namespace and name of an `Object`, or of a mapping with an object's form.

    Raises:
        KeyFunctionError: anything else, tombstones included, or no name.
    """
    if isinstance(item, Object):
        return ObjectKey(item.meta.namespace, item.meta.name)
    if isinstance(item, Mapping):
        meta = item.get("metadata")
        if isinstance(meta, Mapping):
            name, namespace = meta.get("name"), meta.get("namespace") or ""
            if isinstance(name, str) and name and isinstance(namespace, str):
                return ObjectKey(namespace, name)
        raise KeyFunctionError("an object without metadata.name has no key")
    raise KeyFunctionError(f"a {type(item).__name__} has no key; pass a Kubernetes object")


def meta_namespace_key(item: object) -> str:
    """Return "namespace/name", or "name" for a cluster-scoped object.

    Raises:
        KeyFunctionError: not an object, a tombstone included, or no name.
    """
    if isinstance(item, Object):
        return item.key
    return str(object_key(item))


def deletion_handling_meta_namespace_key(item: object) -> str:
    """Return the key of an object or of a tombstone, as `meta_namespace_key` does for objects.

    Raises:
        KeyFunctionError: neither of them.
    """
    if isinstance(item, Object | DeletedFinalStateUnknown):
        return item.key
    return meta_namespace_key(item)


def split_key(key: str) -> ObjectKey:
    """Return namespace and name of a key; the namespace is empty for a cluster-scoped object.

    Raises:
        KeyFunctionError: more than one slash, or no name.
    """
    namespace, slash, name = key.rpartition("/")
    if not name or "/" in namespace or (slash and not namespace):
        raise KeyFunctionError(f"unexpected key {key!r}: expected 'namespace/name' or 'name'")
    return ObjectKey(namespace, name)
