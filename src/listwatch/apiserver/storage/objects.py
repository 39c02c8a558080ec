"""Finds, decodes and encodes objects of the store."""

import random
import sys
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.kinds.catalog import selectable_fields
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.store import Bucket, Entry, Storage
from listwatch.apiserver.webhooks.consultation import CURRENT
from listwatch.clock import Clock
from listwatch.schema.facts import ANY

Object = dict[str, Any]

_META_ORDER = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
)
_encode_into = msgspec.json.Encoder().encode_into


class StoredObjects:
    """Reads objects of a store, and stores them without rules.

    Like the store: one event loop, no awaits.

    Args:
        store: contains the objects.
        clock: dates changes outside of requests.
        randomness: for uids.
    """

    def __init__(self, store: Storage, clock: Clock, *, randomness: random.Random) -> None:
        self.store = store
        self._clock = clock
        self._random = randomness
        self._now: tuple[int | None, str] = (None, "")
        # encode() allocates in powers of two and frees the unused rest, a hole in the heap that is
        # too small for the next result: 6 KB for each pod of 10 KB
        self._buffer = bytearray()

    def now(self, offset: float = 0.0) -> str:
        """Return the current timestamp, or that of `offset` seconds later."""
        request = CURRENT.get()
        second = int((self._clock.time() if request is None else request.time) + offset)
        if self._now[0] != second:
            stamp = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._now = (second, stamp)
        return self._now[1]

    def new_uid(self) -> str:
        """Return an unused uid."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def bucket(self, resource: APIResource) -> Bucket:
        """Return the bucket of a resource."""
        return self.store.bucket(resource.storage)

    def find(self, resource: APIResource, namespace: str, name: str) -> Entry | None:
        """Return the current state of an object, or None."""
        key = f"{namespace}/{name}" if namespace else name
        return self.bucket(resource).entries.get(key)

    def get(self, resource: APIResource, namespace: str, name: str) -> Entry:
        """Return the current state of an object; raise 404 if there is none."""
        entry = self.find(resource, namespace, name)
        if entry is None:
            raise refusal.not_found(resource, name)
        return entry

    def under(self, storage: str, namespace: str) -> Iterable[Object]:
        """Yield the objects under a storage key, in a namespace or ("") in all."""
        bucket = self.store.bucket(storage)
        return map(self.decode, bucket.span(namespace)) if bucket.entries else ()

    def store_as_is(self, resource: APIResource, obj: Object) -> Entry:
        """Store a changed object without the update rules, and without an owner of the change."""
        made = self.entry(resource, obj, self.store.revision + 1)
        self.store.put(self.bucket(resource), made)
        return made

    # -- bytes -------------------------------------------------------------------------------

    @staticmethod
    def decode(entry: Entry) -> Object:
        """Return an entry's object as a fresh dict, without kind and apiVersion."""
        obj: Object = msgspec.json.decode(entry.data)
        return obj

    def read(self, resource: APIResource, entry: Entry) -> Object:
        """Return an entry's object for a resource's rules: the result of `decode` in most cases.

        A custom resource with several versions is converted to the resource's version.
        """
        obj = self.decode(entry)
        return obj if resource.versions is None else resource.versions.outward(obj)

    def present(self, resource: APIResource, entry: Entry) -> Object:
        """Return the same as `read`, but don't call a webhook again that has converted the object.

        Changes start from this state, as with a real server's watch cache.
        """
        known = None if resource.mirror is None else resource.mirror.bucket.entries.get(entry.key)
        if known is not None and known.revision == entry.revision:
            return self.decode(known)
        return self.read(resource, entry)

    def _is_current(self, resource: APIResource, entry: Entry) -> bool:
        versions = resource.versions
        return versions is None or versions.is_current(self.decode(entry))

    def entry(self, resource: APIResource, obj: Mapping[str, Any], revision: int) -> Entry:
        """Encode an object as the state at a revision; 0 for one that is not stored."""
        if resource.versions is not None:
            obj = resource.versions.inward(dict(obj))
        return self.entry_as_is(resource, obj, revision)

    def entry_as_is(self, resource: APIResource, obj: Mapping[str, Any], revision: int) -> Entry:
        """Encode an object that is already in its stored form."""
        metadata = obj["metadata"]
        if revision:
            metadata = {**metadata, "resourceVersion": str(revision)}
        ordered = {key: metadata[key] for key in _META_ORDER if key in metadata}
        if len(ordered) != len(metadata):
            ordered |= {key: value for key, value in metadata.items() if key not in ordered}
        whole = {"metadata": ordered}
        whole |= {
            key: value
            for key, value in obj.items()
            if key not in {"metadata", "kind", "apiVersion"}
        }
        if "apiVersion" in obj and (resource.custom is not None or resource.schema is ANY):
            whole["apiVersion"] = obj["apiVersion"]  # the storage version, if there are several
        return Entry(
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            uid=metadata["uid"],
            revision=revision,
            labels=_shared(metadata.get("labels") or {}),
            data=self._encoded(whole),
            fields=_shared(selectable_fields(resource, obj)),
            owners=tuple(each["uid"] for each in metadata.get("ownerReferences") or ()),
            deleting=bool(metadata.get("deletionTimestamp")),
        )

    def _encoded(self, value: Mapping[str, Any]) -> bytes:
        _encode_into(value, self._buffer)
        return bytes(self._buffer)


def _shared(texts: Mapping[str, str]) -> dict[str, str]:
    """Return shared copies of texts: many objects have the same labels."""
    return {sys.intern(key): sys.intern(value) for key, value in texts.items()}
