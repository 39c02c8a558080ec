"""The controller that serves the resources of CustomResourceDefinitions, and removes them."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from listwatch.apiserver.controllers.conversions import Conversions
from listwatch.apiserver.kinds.catalog import selectable_fields
from listwatch.apiserver.kinds.custom import resources_of
from listwatch.apiserver.kinds.definitions import CLEANUP, DEFINITIONS, Object, is_established
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.table import ResourceTable
from listwatch.apiserver.storage.deletion import DeleteOptions, delete
from listwatch.apiserver.storage.registry import Registry, WriteContext
from listwatch.apiserver.storage.store import Bucket, Entry, Storage, StoredChange
from listwatch.schema.facts import Schema
from listwatch.schema.structural import apply_schema_defaults, build_root

_log = logging.getLogger(__name__)


class CustomResources:
    """Follows the definitions: serves their resources, and deletes the objects they leave behind.

    For the store's event loop.

    Args:
        table: the served resources, which this changes.
        registry: used to write.
        store: contains the definitions; each change of it is followed.
        stop_watches: ends the watches of a bucket whose resource is no longer served.
        conversions: converts objects between versions.
    """

    def __init__(
        self,
        table: ResourceTable,
        registry: Registry,
        store: Storage,
        stop_watches: Callable[[Bucket], None],
        conversions: Conversions,
    ) -> None:
        self._table = table
        self._registry = registry
        self._store = store
        self._stop_watches = stop_watches
        self._conversions = conversions
        self._served: dict[str, tuple[str, str]] = {}
        #: the revision of each definition that is served as it says
        self._revisions: dict[str, int] = {}
        self._bucket = store.bucket(DEFINITIONS)
        #: the buckets of definitions, and of resources whose definition is being removed
        self._followed = {self._bucket}
        store.observers.append(self._on_change)
        self._due = False
        #: the storage version's schema of each definition, for the defaults of objects
        self._schemas: dict[str, object] = {}
        for entry in self._bucket.current():
            self._look_at(entry, self._serve)

    def _on_change(self, bucket: Bucket, _: StoredChange) -> None:
        # not at once: all listeners must see a change before the next one
        if bucket in self._followed and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._sync)

    def refresh(self) -> None:
        """Serve the current definitions, after a change without a notification."""
        self._conversions.forget()
        self._revisions.clear()
        self._sync()

    def _sync(self) -> None:
        self._due = False
        for name in [name for name in self._served if name not in self._bucket.entries]:
            group, plural = self._served.pop(name)
            self._schemas.pop(name, None)
            self._revisions.pop(name, None)
            self._table.set_custom(group, plural, [])
            bucket = self._store.bucket(f"{group}/{plural}")
            self._followed.discard(bucket)
            self._stop_watches(bucket)
            self._conversions.drop(name)
        for entry in self._bucket.current():
            # those that are deleted wait for their objects
            if entry.deleting or self._revisions.get(entry.name) != entry.revision:
                self._look_at(entry, self._sync_one)

    @staticmethod
    def _look_at(entry: Entry, step: Callable[[Entry], None]) -> None:
        try:
            step(entry)
        except Exception:  # noqa: BLE001 - logged; one definition must not end the others
            _log.exception("the definition %s can't be served", entry.name)

    def _sync_one(self, entry: Entry) -> None:
        definition = self._registry.decode(entry)
        if definition["metadata"].get("deletionTimestamp"):
            self._serve(entry)
            self._clean_up(entry, definition)
            return
        if not is_established(definition):
            self._establish(entry.name)
        self._serve(self._bucket.entries[entry.name])

    def _serve(self, entry: Entry) -> None:
        definition = self._registry.decode(entry)
        if not is_established(definition):
            return
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        if entry.name not in self._served:
            # a real server's watch cache of a custom resource starts here
            self._store.bucket(f"{group}/{plural}").since_served = entry.revision
        self._served[entry.name] = (group, plural)
        resources = resources_of(definition)
        self._conversions.attach(entry, definition, resources)
        self._table.set_custom(group, plural, resources)
        self._select(resources)
        for version in definition["spec"].get("versions") or ():
            raw = (version.get("schema") or {}).get("openAPIV3Schema")
            if version.get("storage") and self._schemas.get(entry.name) != raw:
                self._schemas[entry.name] = raw
                self._default(f"{group}/{plural}", build_root(raw or {}))
        self._revisions[entry.name] = entry.revision

    def _default(self, storage: str, schema: Schema) -> None:
        """Make objects stored earlier show the schema's current defaults."""
        entries = self._store.bucket(storage).entries
        for key, entry in entries.items():
            obj = self._registry.decode(entry)
            apply_schema_defaults(obj, schema)
            if obj != self._registry.decode(entry):
                entries[key] = msgspec.structs.replace(entry, data=msgspec.json.encode(obj))

    def _select(self, resources: list[APIResource]) -> None:
        """Give objects stored earlier the values of the current selectable fields."""
        for resource in resources:
            paths = set((resource.custom or {}).get("selectable") or ())
            entries = self._store.bucket(resource.storage).entries
            for key, entry in entries.items():
                if not paths <= entry.fields.keys():
                    values = selectable_fields(resource, self._registry.decode(entry))
                    entries[key] = msgspec.structs.replace(entry, fields={**entry.fields, **values})

    def _definitions(self) -> APIResource:
        resource = self._table.get("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        assert resource is not None  # noqa: S101 - a built-in resource
        return resource

    def _establish(self, name: str) -> None:
        def produce(old: Object | None, _: Entry | None) -> Object:
            assert old is not None  # noqa: S101 - update has refused a missing object
            now = self._registry.now()
            status = old.setdefault("status", {})
            status["acceptedNames"] = dict(old["spec"]["names"])
            status["conditions"] = [
                {
                    "type": "NamesAccepted",
                    "status": "True",
                    "lastTransitionTime": now,
                    "reason": "NoConflicts",
                    "message": "no conflicts found",
                },
                {
                    "type": "Established",
                    "status": "True",
                    "lastTransitionTime": now,
                    "reason": "InitialNamesAccepted",
                    "message": "the initial names have been accepted",
                },
            ]
            return old

        self._registry.update(
            self._definitions(),
            "",
            name,
            produce,
            WriteContext(manager="kube-apiserver", subresource="status"),
            is_put=False,
        )

    def _clean_up(self, entry: Entry, definition: Object) -> None:
        resources = resources_of(definition)
        if resources:
            bucket = self._store.bucket(resources[0].storage)
            for each in bucket.current():
                delete(self._registry, resources[0], each.namespace, each.name, DeleteOptions())
            if bucket.entries:
                # finalizers keep some objects; the deletion of the last one releases the definition
                self._followed.add(bucket)
                return
        finalizers = definition["metadata"].get("finalizers") or []
        if finalizers == [CLEANUP]:
            self._store.delete(self._bucket, entry)
