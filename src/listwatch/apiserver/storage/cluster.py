"""What admission asks about the objects that are stored and the kinds that are served."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.table import ResourceTable
from listwatch.apiserver.storage.store import Storage
from listwatch.schema.facts import ANY

Object = dict[str, Any]

_NAMESPACES = APIResource("", "v1", "namespaces", "Namespace", schema=ANY, namespaced=False)


class StoredCluster:
    """Answers what `admission/matching.py` asks. As the store: one event loop, no awaits."""

    def __init__(self, store: Storage, table: ResourceTable) -> None:
        self._namespaces = store.bucket("namespaces")
        self._table = table

    def namespace(self, name: str) -> Object | None:
        """Return a namespace, decoded afresh, or None."""
        entry = self._namespaces.entries.get(name)
        return None if entry is None else msgspec.json.decode(entry.data)

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """Return the labels of a namespace.

        Raises:
            NotFoundError: 404, there is none of that name.
        """
        entry = self._namespaces.entries.get(name)
        if entry is None:
            raise refusal.not_found(_NAMESPACES, name)
        return entry.labels

    def equivalents(self, resource: APIResource, subresource: str) -> Sequence[APIResource]:
        """Return the other versions and groups under which the same objects are served."""
        return [
            each
            for each in self._table.of_storage(resource.storage)
            if each is not resource and (not subresource or subresource in each.subresources)
        ]
