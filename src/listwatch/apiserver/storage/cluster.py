"""Gives admission access to stored objects and served kinds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.admission.chain import whole_of
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.table import ResourceTable
from listwatch.apiserver.storage.store import Storage
from listwatch.schema.facts import ANY
from listwatch.selector import LabelSelector

Object = dict[str, Any]

_NAMESPACES = APIResource("", "v1", "namespaces", "Namespace", schema=ANY, namespaced=False)
_CONFIGURATION = (
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
)


class StoredCluster:
    """Implements `admission/matching.py`'s `Cluster`. Like the store: one event loop, no awaits."""

    def __init__(self, store: Storage, table: ResourceTable) -> None:
        self._store = store
        self._namespaces = store.bucket("namespaces")
        self._table = table

    def namespace(self, name: str) -> Object | None:
        """Return a namespace as a new dict, or None."""
        entry = self._namespaces.entries.get(name)
        return None if entry is None else msgspec.json.decode(entry.data)

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """Return the labels of a namespace.

        Raises:
            NotFoundError: 404, the namespace does not exist.
        """
        entry = self._namespaces.entries.get(name)
        if entry is None:
            raise refusal.not_found(_NAMESPACES, name)
        return entry.labels

    def equivalents(self, resource: APIResource, subresource: str) -> Sequence[APIResource]:
        """Return the other versions and groups that serve the same objects."""
        return [
            each
            for each in self._table.of_storage(resource.storage)
            if each is not resource and (not subresource or subresource in each.subresources)
        ]

    def of_kind(self, api_version: str, kind: str) -> APIResource | None:
        """Return the resource of a kind, or None."""
        group, _, version = api_version.rpartition("/")
        return self._table.of_kind(group, version, kind)

    def resource(self, group: str, version: str, plural: str) -> APIResource | None:
        """Return the resource of this plural name, or None."""
        return self._table.get(group, version, plural)

    def find(self, resource: APIResource, namespace: str, name: str) -> Object | None:
        """Return an object in its resource's version, or None."""
        key = f"{namespace}/{name}" if namespace else name
        entry = self._store.bucket(resource.storage).entries.get(key)
        return None if entry is None else whole_of(resource, msgspec.json.decode(entry.data))

    def select(
        self, resource: APIResource, namespace: str, selector: LabelSelector
    ) -> Sequence[Object]:
        """Return the objects with these labels, in a namespace or ("") in all."""
        return [
            whole_of(resource, msgspec.json.decode(entry.data))
            for entry in self._store.bucket(resource.storage).span(namespace)
            if selector.matches(entry.labels)
        ]


class StoredConfiguration:
    """Implements `admission/policies.py`'s `Configuration`. Like the store: one loop, no awaits."""

    def __init__(self, store: Storage) -> None:
        self._buckets = {
            name: store.bucket(f"admissionregistration.k8s.io/{name}") for name in _CONFIGURATION
        }

    def exists(self, plural: str) -> bool:
        """Return whether there are any objects of a kind."""
        return bool(self._buckets[plural].entries)

    def version(self, plural: str) -> int:
        """Return a number that increases with each change of an object of a kind."""
        return self._buckets[plural].version

    def objects(self, plural: str) -> Iterator[tuple[int, Object]]:
        """Yield the objects of a kind by name, each after its revision."""
        for entry in self._buckets[plural].current():
            yield entry.revision, msgspec.json.decode(entry.data)
