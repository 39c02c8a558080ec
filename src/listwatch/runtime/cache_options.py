"""What a cache of a manager holds: the options of its sources, and their defaults."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import msgspec

from listwatch.cache.factory import Selection
from listwatch.cache.store import IndexFunc
from listwatch.cache.transform import Transform
from listwatch.runtime.predicates import Predicate
from listwatch.shard_range import ShardRange


class DefaultCacheOptions(TypedDict, total=False):
    """The options of a cache that may have defaults; see `Manager.cache_defaults`.

    Attributes:
        namespaces: only objects in these; each has its own watch. None for all. A cluster-scoped
            resource is then watched as a whole.
        label_selector: only objects with such labels.
        field_selector: only such objects.
        metadata_only: cache only apiVersion, kind and metadata of each object.
        fields: decode these fields with each object, for predicates and `obj.fields`.
        transform: changes objects before they are stored, for example to save memory.
        indexers: index functions by name, for `lister.by_index`. They get `Object`s.
    """

    namespaces: Sequence[str] | None
    label_selector: str
    field_selector: str
    metadata_only: bool
    fields: type[msgspec.Struct] | None
    transform: Transform | None
    indexers: Mapping[str, IndexFunc]


class CacheOptions(DefaultCacheOptions, total=False):
    """The options of a source's cache.

    Attributes:
        namespace: only objects in this one; None for all.
        name: the source's name for `lister`, `catch_up` and `remove`; by default that of its
            resource. Two selections of one resource need names.
    """

    namespace: str | None
    name: str


class SourceOptions(CacheOptions, total=False):
    """The options of a source whose changes wake keys.

    Attributes:
        predicates: only changes that all of these accept.
    """

    predicates: Sequence[Predicate]


class PrimaryOptions(SourceOptions, total=False):
    """The options of `Reconciler.for_`.

    Attributes:
        shard: only this range of uids, for replicas with a fixed share each. Other sources then
            wake only keys of cached objects: the rest belong to another replica.
    """

    shard: ShardRange | None


class CachePlan(msgspec.Struct, frozen=True):
    """One cache that a source needs.

    Attributes:
        selection: what it holds, without `fields`.
        fields: decoded with each object.
        indexers: index functions by name.
    """

    selection: Selection
    fields: type[msgspec.Struct] | None
    indexers: Mapping[str, IndexFunc]


class CacheDefaults:
    """The defaults of a manager's caches, the more specific first.

    An option of a source counts before one for its resource in its namespace, that before one for
    its resource, that before one for the namespace, and that before one for all. Index functions
    add up.
    """

    def __init__(self) -> None:
        self._layers: dict[tuple[str, str], DefaultCacheOptions] = {}
        self._planned: set[str] = set()
        self._limit: Sequence[str] = ()

    def limit(self, namespaces: Sequence[str]) -> None:
        """Watch only these namespaces where neither a source nor its resource has others.

        Counts before the manager's default, so that an operator can override it.
        """
        self._limit = namespaces

    def set(self, resource: str, namespace: str, options: DefaultCacheOptions) -> None:
        """Set defaults.

        Args:
            resource: as the sources name it; empty for all.
            namespace: empty for all.
            options: the defaults.

        Raises:
            ValueError: `namespaces` within a namespace.
            RuntimeError: a source that they concern has already been named.
        """
        if namespace and "namespaces" in options:
            raise ValueError(f"the defaults within {namespace} can't choose other namespaces")
        if resource in self._planned if resource else self._planned:
            raise RuntimeError(
                f"a source of {resource or next(iter(self._planned))} exists: set cache defaults "
                "before the reconcilers name their sources"
            )
        layer = self._layers.setdefault((resource, namespace), DefaultCacheOptions())
        layer.update(options)

    def plan(
        self, resource: str, options: CacheOptions, shard: ShardRange | None
    ) -> list[CachePlan]:
        """Return the caches of a source, one for each of its namespaces.

        Raises:
            ValueError: both `namespace` and `namespaces`, or no namespace at all.
        """
        self._planned.add(resource)
        return [
            self._plan(resource, namespace, options, shard)
            for namespace in self._namespaces(resource, options)
        ]

    def _namespaces(self, resource: str, options: CacheOptions) -> Sequence[str | None]:
        if "namespace" in options:
            if "namespaces" in options:
                raise ValueError(f"{resource}: give either namespace= or namespaces=, not both")
            return [options["namespace"] or None]
        limit = DefaultCacheOptions(namespaces=self._limit) if self._limit else self._layer("")
        for layer in (options, self._layer(resource), limit):
            if "namespaces" in layer:
                chosen = layer["namespaces"]
                if chosen is None:
                    return [None]
                if isinstance(chosen, str) or not chosen:
                    raise ValueError(
                        f"{resource}: namespaces= takes a list of names, not {chosen!r}; "
                        "None for all namespaces"
                    )
                return list(dict.fromkeys(chosen))
        return [None]

    def _plan(
        self,
        resource: str,
        namespace: str | None,
        options: CacheOptions,
        shard: ShardRange | None,
    ) -> CachePlan:
        layers: list[DefaultCacheOptions] = [self._layer("")]
        if namespace:
            layers.append(self._layer("", namespace))
        layers.append(self._layer(resource))
        if namespace:
            layers.append(self._layer(resource, namespace))
        layers.append(options)
        merged: dict[str, Any] = {}
        indexers: dict[str, IndexFunc] = {}
        for layer in layers:
            merged |= layer
            indexers |= layer.get("indexers", {})
        chosen = cast("CacheOptions", merged)
        selection = Selection(
            resource,
            namespace,
            chosen.get("label_selector", ""),
            chosen.get("field_selector", ""),
            chosen.get("metadata_only", False),
            transform=chosen.get("transform"),
            shard=shard,
        )
        return CachePlan(selection, chosen.get("fields"), indexers)

    def _layer(self, resource: str, namespace: str = "") -> DefaultCacheOptions:
        return self._layers.get((resource, namespace), DefaultCacheOptions())
