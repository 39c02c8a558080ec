"""Provides the version conversions of custom resources."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.mirror import Mirror
from listwatch.apiserver.storage.registry import Registry
from listwatch.apiserver.storage.store import Bucket, Entry, Storage, StoredChange
from listwatch.apiserver.webhooks.client import WebhookClient
from listwatch.apiserver.webhooks.consultation import Consultation, ask_all
from listwatch.apiserver.webhooks.conversion import ConversionWebhook, Versions
from listwatch.clock import Clock
from listwatch.schema.structural import build_root

Object = dict[str, Any]


class Conversions:
    """Gives custom resources their converters, and mirrors if a webhook converts.

    For one event loop.

    Args:
        store: contains the objects; each change of it is followed.
        registry: encodes the converted objects.
        client: calls the webhooks.
        clock: times the mirrors' retries.
        stop_watches: ends the watches of a bucket.
    """

    def __init__(
        self,
        store: Storage,
        registry: Registry,
        client: WebhookClient,
        clock: Clock,
        stop_watches: Callable[[Bucket], None],
    ) -> None:
        self._store = store
        self._registry = registry
        self._client = client
        self._clock = clock
        self._stop_watches = stop_watches
        #: definitions that have, or had, several versions
        self._several: set[str] = set()
        self._resources: dict[tuple[str, str], APIResource] = {}
        #: by definition and version, with the configuration for which each was created
        self._mirrors: dict[str, dict[str, tuple[object, Mirror]]] = {}
        self._by_source: dict[Bucket, list[Mirror]] = {}
        self._started = False

    @property
    def ask(self) -> bool:
        """Whether webhooks convert any objects."""
        return bool(self._by_source)

    def start(self) -> None:
        """Start to follow the objects that webhooks convert. Needs a running loop."""
        self._started = True
        for source in self._by_source:
            self._begin(source)

    async def stop(self) -> None:
        """Stop following; later changes are followed after the next start."""
        self._started = False
        mirrors = self._all()
        for mirror in mirrors:
            mirror.stop()
        await asyncio.gather(*(mirror.ended() for mirror in mirrors))

    def _all(self) -> list[Mirror]:
        return [mirror for each in self._mirrors.values() for _, mirror in each.values()]

    def attach(
        self, entry: Entry, definition: Mapping[str, Any], resources: list[APIResource]
    ) -> None:
        """Set the converters of a definition's resources; the storage version comes first."""
        spec = definition["spec"]
        versions = spec.get("versions") or ()
        if len(versions) > 1 or self._has_marks(spec):
            self._several.add(entry.name)
        if entry.name not in self._several:
            return
        stored = next((each["name"] for each in versions if each.get("storage")), "")
        before = ((definition.get("status") or {}).get("storedVersions") or [stored])[0]
        conversion = spec.get("conversion") or {}
        webhook = None
        if conversion.get("strategy") == "Webhook":
            webhook = ConversionWebhook(
                self._client,
                conversion.get("webhook") or {},
                spec["names"]["kind"],
                (entry.uid, entry.revision),
            )
        schemas = {
            each["name"]: build_root((each.get("schema") or {}).get("openAPIV3Schema") or {})
            for each in versions
        }
        converters = Versions(spec["group"], schemas, stored, before, webhook)
        for resource in resources:
            resource.versions = converters.of(resource.version)
        resources.sort(key=lambda resource: resource.version != stored)
        self._mirror(entry, versions, resources if webhook is not None else ())

    def _has_marks(self, spec: Mapping[str, Any]) -> bool:
        """Return whether objects record their storage version: those of several versions do."""
        mark = f',"apiVersion":"{spec["group"]}/'.encode()
        entries = self._store.bucket(f"{spec['group']}/{spec['names']['plural']}").entries
        return any(mark in each.data[-300:] for each in entries.values())

    def _mirror(
        self, entry: Entry, versions: Sequence[Object], resources: Sequence[APIResource]
    ) -> None:
        specs = {each["name"]: each for each in versions}
        known = self._mirrors.setdefault(entry.name, {})
        for version in [each for each in known if each not in {r.version for r in resources}]:
            self._drop(entry.name, version)
        for resource in resources:
            made_for = (entry.uid, specs[resource.version])
            if resource.version in known and known[resource.version][0] != made_for:
                self._drop(entry.name, resource.version)
            self._resources[entry.name, resource.version] = resource
            if resource.version not in known:
                mirror = self._made(entry.name, resource)
                known[resource.version] = (made_for, mirror)
                if not self._by_source:
                    self._store.observers.append(self._on_change)
                self._by_source.setdefault(mirror.source, []).append(mirror)
            resource.mirror = known[resource.version][1]

    def _made(self, name: str, resource: APIResource) -> Mirror:
        async def convert(entries: Sequence[Entry]) -> list[Entry]:
            now = self._resources[name, resource.version]

            def converted(entry: Entry) -> Entry:
                obj = self._registry.read(now, entry)
                return self._registry.entry_as_is(now, obj, entry.revision)

            async def attempt() -> list[Entry]:
                return ask_all([partial(converted, entry) for entry in entries])

            return await Consultation(self._clock).settle(attempt)

        bucket = self._store.bucket(resource.storage)
        begin = partial(self._begin, bucket)
        return Mirror(self._store, bucket, resource.version, convert, self._clock, begin)

    def _begin(self, source: Bucket) -> None:
        """Start to follow a resource in all its versions, at the first request for it."""
        if self._started:
            for mirror in self._by_source.get(source, ()):
                mirror.start()

    def drop(self, name: str) -> None:
        """Forget a deleted definition."""
        for version in list(self._mirrors.get(name, ())):
            self._drop(name, version)
        self._mirrors.pop(name, None)
        self._several.discard(name)

    def forget(self) -> None:
        """Forget all converted objects, because the history has changed."""
        for name in list(self._mirrors):
            self.drop(name)

    def _drop(self, name: str, version: str) -> None:
        _, mirror = self._mirrors[name].pop(version)
        self._resources.pop((name, version), None)
        mirror.stop()
        self._stop_watches(mirror.bucket)
        left = [each for each in self._by_source[mirror.source] if each is not mirror]
        if left:
            self._by_source[mirror.source] = left
        else:
            del self._by_source[mirror.source]
        if not self._by_source:
            self._store.observers.remove(self._on_change)

    def _on_change(self, bucket: Bucket, change: StoredChange) -> None:
        for mirror in self._by_source.get(bucket, ()):
            mirror.on_change(change)
            mirror.begin()
