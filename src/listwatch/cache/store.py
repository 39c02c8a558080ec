"""The local copy of a resource: one writer in the event loop, readers in any thread.

Readers take no lock. A writer changes a dict in single steps, and a reader copies it in one call.
To replace many objects, a writer builds new dicts and swaps them in by one assignment. So a reader
never waits, sees all of a replace or none of it, and owns the list that it gets.
"""

from asyncio import CancelledError
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from listwatch.cache.deltas import Item, KeyFunc
from listwatch.clock import Clock
from listwatch.errors import ListWatchError
from listwatch.objects import (
    Object,
    ObjectMeta,
    deletion_handling_meta_namespace_key,
    meta_namespace_key,
)

#: Returns the values under which an index finds an object: none, one or several. Must return the
#: same values for the same object, and must not block.
IndexFunc: TypeAlias = Callable[[Object], Iterable[str]]

# `list` is a method below, so annotations can't use it.
_Objects: TypeAlias = list[Object]
_Strings: TypeAlias = list[str]

_T = TypeVar("_T")

#: Key functions that return an object's own key.
_KEY_OF_OBJECTS: tuple[KeyFunc, ...] = (deletion_handling_meta_namespace_key, meta_namespace_key)
_SECONDS_BETWEEN_YIELDS = 0.005
_OBJECTS_IN_A_STEP = 32


class IndexFunctionError(ListWatchError):
    """An index function raised, or returned values that are not strings.

    Attributes:
        index: the index's name.
        key: the object's key.
    """

    def __init__(self, index: str, key: str, reason: str) -> None:
        self.index = index
        self.key = key
        super().__init__(f"index function {index!r} failed for {key}: {reason}")


class UnknownIndexError(ListWatchError):
    """There is no index of this name."""


class StoreStatistics(msgspec.Struct, frozen=True, gc=False):
    """Statistics of a store.

    Attributes:
        objects: number of objects.
        index_values: for each index, the number of different values.
        replaces: how often the whole content was replaced.
        last_store_sync_resource_version: as the store's property.
    """

    objects: int
    index_values: dict[str, int]
    replaces: int
    last_store_sync_resource_version: str


class Replacement(msgspec.Struct, frozen=True):
    """The content of a store before and after a replace; neither mapping changes afterwards."""

    old: Mapping[str, Object]
    new: Mapping[str, Object]


class _Index:
    """Maps values to objects; `values` caches each object's values, so that functions run once.

    The objects of a bucket share one tuple in `values`, kept in `alone`.
    """

    __slots__ = ("alone", "buckets", "func", "name", "values")

    def __init__(self, name: str, func: IndexFunc) -> None:
        self.name = name
        self.func = func
        self.buckets: dict[str, dict[str, Object]] = {}
        self.values: dict[str, tuple[str, ...]] = {}
        self.alone: dict[str, tuple[str, ...]] = {}

    def values_of(self, key: str, obj: Object) -> tuple[str, ...]:
        try:
            found: Any = self.func(obj)
            kind = found.__class__
            if (kind is tuple or kind is list) and len(found) == 1:
                value = found[0]
                if value.__class__ is str:  # the usual case, at a third of the cost
                    return self.alone.get(value) or (value,)
            values = () if isinstance(found, str) else tuple(found)
        except (Exception, CancelledError) as error:
            raise IndexFunctionError(self.name, key, f"{type(error).__name__}: {error}") from error
        if isinstance(found, str):
            raise IndexFunctionError(self.name, key, "it returned a string, not a list of strings")
        for value in values:
            if not isinstance(value, str):
                raise IndexFunctionError(
                    self.name,
                    key,
                    f"it returned a {type(value).__name__} among the values, which are strings",
                )
        return values if len(values) < 2 else tuple(dict.fromkeys(values))

    def put_new(self, key: str, obj: Object, values: tuple[str, ...]) -> None:
        """Put an object whose key is not in the index yet."""
        buckets = self.buckets
        for value in values:
            if value in buckets:
                buckets[value][key] = obj
            else:
                self._open(value, values, {key: obj})
            self.values[key] = values

    def fill(
        self,
        items: Mapping[str, Object],
        known: "_Index",
        known_items: Mapping[str, Object],
        refused: set[str],
        on_error: Callable[[IndexFunctionError], None] | None,
    ) -> Generator[None, None, None]:
        """Fill this empty index with all items, in steps.

        Values that the previous index has for an object are reused. Keys of objects that the
        function refuses are added to `refused`; keys already in it are skipped.

        Raises:
            IndexFunctionError: the function refuses an object, and there is no `on_error`.
        """
        entries = iter(items.items())
        for _ in range(0, len(items), _OBJECTS_IN_A_STEP):
            yield
            for key, obj in islice(entries, _OBJECTS_IN_A_STEP):
                if known_items and known_items.get(key) is obj:
                    self.put_new(key, obj, known.values.get(key, ()))
                elif key not in refused:
                    try:
                        values = self.values_of(key, obj)
                    except IndexFunctionError as error:
                        if on_error is None:
                            raise
                        on_error(error)
                        refused.add(key)
                    else:
                        self.put_new(key, obj, values)

    def put(self, key: str, obj: Object, values: tuple[str, ...]) -> None:
        old = self.values.get(key, ())
        buckets = self.buckets
        if values is old:
            for value in values:
                buckets[value][key] = obj
            return
        # New buckets first: a reader may see a moving object twice, but never nowhere.
        for value in values:
            bucket = buckets.get(value)
            if bucket is None:
                self._open(value, values, {key: obj})
            else:
                bucket[key] = obj
        if values != old:
            if values:
                self.values[key] = values
            else:
                del self.values[key]
            for value in old:
                if value not in values:
                    self._take_out(key, value)

    def remove(self, key: str) -> None:
        for value in self.values.pop(key, ()):
            self._take_out(key, value)

    def _open(self, value: str, values: tuple[str, ...], bucket: dict[str, Object]) -> None:
        self.buckets[value] = bucket
        self.alone[value] = values if len(values) == 1 else (value,)

    def _take_out(self, key: str, value: str) -> None:
        bucket = self.buckets[value]
        if len(bucket) == 1:
            del self.alone[value]
            del self.buckets[value]  # a reader must never see an empty bucket (kubernetes#84959)
        else:
            del bucket[key]


class _State:
    """The state that one assignment swaps."""

    __slots__ = ("indices", "items")

    def __init__(self, items: dict[str, Object], indices: dict[str, _Index]) -> None:
        self.items = items
        self.indices = indices


class Store:
    """Objects by key.

    Reading methods may be called from any thread at any time and never wait. Writing methods belong
    to one event loop's thread. Objects are immutable and never copied.

    Args:
        key_func: returns the key of the arguments of `add`, `update`, `delete`, `get` and
            `replace`.
        clock: decides when a replace in steps lets other tasks run.
    """

    def __init__(
        self,
        key_func: KeyFunc = deletion_handling_meta_namespace_key,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._key_func = key_func
        self._clock = clock if clock is not None else Clock()
        self._state = _State({}, {})
        self._resource_version = ""
        self._replaces = 0

    # --- Reading, from any thread ---

    def get_by_key(self, key: str) -> Object | None:
        """Return the object of this key, or None."""
        return self._state.items.get(key)

    def get(self, item: Item) -> Object | None:
        """Return the stored object with the key of this object or tombstone, or None."""
        return self._state.items.get(self._key_func(item))

    def list(self) -> _Objects:
        """Return all objects, in a new list."""
        return list(self._state.items.values())

    def list_keys(self) -> _Strings:
        """Return all keys, in a new list."""
        return list(self._state.items)

    def __len__(self) -> int:
        return len(self._state.items)

    def __contains__(self, key: object) -> bool:
        return key in self._state.items

    @property
    def last_store_sync_resource_version(self) -> str:
        """The version of the newest write, replace or bookmark; empty before the first.

        Never ahead of the content: if the writer writes in the server's order, a reader that reads
        this first finds every change up to this version.
        """
        return self._resource_version

    def statistics(self) -> StoreStatistics:
        """Return statistics for metrics."""
        state = self._state
        return StoreStatistics(
            objects=len(state.items),
            index_values={name: len(index.buckets) for name, index in state.indices.items()},
            replaces=self._replaces,
            last_store_sync_resource_version=self._resource_version,
        )

    def stored_bytes(self) -> int:
        """Return the size of the objects' stored JSON in bytes. Looks at each object."""
        return sum(obj.stored_bytes for obj in self.list())

    # --- Writing, in the event loop's thread ---

    def add(self, obj: Object) -> None:
        """Store an object, whether or not its key exists.

        Raises:
            IndexFunctionError: nothing was changed.
        """
        self.put(self._key_func(obj), obj)
        self.bookmark(obj.meta.resource_version)

    def update(self, obj: Object) -> None:
        """Store an object, like `add`."""
        self.add(obj)

    def delete(self, obj: Item) -> None:
        """Remove the object with the key of this object or tombstone, if there is one."""
        self.remove(self._key_func(obj))
        if isinstance(obj, Object):
            self.bookmark(obj.meta.resource_version)

    def replace(self, objs: Sequence[Object], resource_version: str) -> None:
        """Replace the whole content with these objects, in one swap.

        A stored object with the same uid and resource version is kept, so a relist costs no memory.
        Of several objects with one key the last counts. Does not yield; `replace_in_steps` does.

        Raises:
            IndexFunctionError: nothing was changed.
        """
        self._swap(_run(self._build(objs, None)), resource_version)

    def resync(self) -> None:
        """Do nothing: a store has no consumer."""

    def bookmark(self, resource_version: str) -> None:
        """Note that everything up to this version has been stored; ignore an empty one."""
        if resource_version:
            self._resource_version = resource_version

    # --- Writing for a consumer of deltas ---

    def put(self, key: str, obj: Object) -> Object | None:
        """Store an object under a key and return the previous one.

        Unlike `add`, leaves `last_store_sync_resource_version` to the caller.

        Raises:
            IndexFunctionError: nothing was changed.
        """
        state = self._state
        items, indices = state.items, state.indices
        if indices:
            # Call all functions first, so that one that raises leaves nothing half done.
            found = [(index, index.values_of(key, obj)) for index in indices.values()]
            for index, values in found:
                if values is index.values.get(key, ()):  # `_Index.put`, at half the cost
                    buckets = index.buckets
                    for value in values:
                        buckets[value][key] = obj
                else:
                    index.put(key, obj, values)
        old = items.get(key)
        items[key] = obj
        return old

    def remove(self, key: str) -> Object | None:
        """Remove a key and return its object, as `put` does."""
        state = self._state
        for index in state.indices.values():
            index.remove(key)
        return state.items.pop(key, None)

    async def replace_in_steps(
        self,
        objs: Sequence[Object],
        resource_version: str,
        *,
        on_error: Callable[[IndexFunctionError], None] | None = None,
    ) -> Replacement:
        """Replace the content like `replace`, letting other tasks run every 5 ms.

        Readers see the old content until the one swap at the end. Other writes must wait, because
        the swap would undo them. Cancelling leaves everything as it was. Returns old and new
        content.

        Args:
            objs: the whole new content; must not change while this runs.
            resource_version: of the list.
            on_error: called with the error of an object that an index function refuses. Its key
                then keeps the old object, if there is one. Without it, such an error is raised.

        Raises:
            IndexFunctionError: without `on_error`; nothing was changed.
        """
        building = self._build(objs, on_error)
        state = await _run_in_steps(building, self._clock)
        old = self._swap(state, resource_version)
        return Replacement(old.items, dict(state.items))

    def _swap(self, state: _State, resource_version: str) -> _State:
        old, self._state = self._state, state
        self._replaces += 1
        # After the swap, so that the version is never ahead of the content.
        self.bookmark(resource_version)
        return old

    def _build(
        self, objs: Sequence[Object], on_error: Callable[[IndexFunctionError], None] | None
    ) -> Generator[None, None, _State]:
        key_func = None if self._key_func in _KEY_OF_OBJECTS else self._key_func
        while True:
            before = self._state
            old_items, indices = before.items, before.indices
            items: dict[str, Object] = {}
            remaining = iter(objs)
            for _ in range(0, len(objs), _OBJECTS_IN_A_STEP):
                yield
                for obj in islice(remaining, _OBJECTS_IN_A_STEP):
                    key = obj.key if key_func is None else key_func(obj)
                    old = old_items.get(key)
                    items[key] = old if old is not None and _is_same(old.meta, obj.meta) else obj
            fresh = {name: _Index(name, index.func) for name, index in indices.items()}
            refused: set[str] = set()
            for name, index in fresh.items():
                yield from index.fill(items, indices[name], old_items, refused, on_error)
            for key in refused:
                old = old_items.get(key)
                for name, index in fresh.items():
                    index.remove(key)
                    if old is not None:
                        index.put_new(key, old, indices[name].values.get(key, ()))
                if old is None:
                    del items[key]
                else:
                    items[key] = old
            if self._state.indices is indices:  # otherwise indexers were added between two steps
                return _State(items, fresh)


class Indexer(Store):
    """A store that also finds objects by the values of index functions.

    An index function runs once for each new state of an object, before anything is stored. If it
    raises, the write stops and leaves store and indices as they were.

    Args:
        key_func: as for `Store`.
        indexers: index functions by index name.
        clock: as for `Store`.
    """

    def __init__(
        self,
        key_func: KeyFunc = deletion_handling_meta_namespace_key,
        indexers: Mapping[str, IndexFunc] | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(key_func, clock=clock)
        self.add_indexers(indexers or {})

    # --- Reading, from any thread ---

    def by_index(self, name: str, value: str) -> _Objects:
        """Return the objects that have this value, in a new list.

        Raises:
            UnknownIndexError: there is no index of this name.
        """
        bucket = self._index(name).buckets.get(value)
        return [] if bucket is None else list(bucket.values())

    def index_keys(self, name: str, value: str) -> _Strings:
        """Return the keys of the objects that have this value.

        Raises:
            UnknownIndexError: there is no index of this name.
        """
        return list(self._index(name).buckets.get(value, ()))

    def list_index_values(self, name: str) -> _Strings:
        """Return all values of an index that have objects.

        Raises:
            UnknownIndexError: there is no index of this name.
        """
        return list(self._index(name).buckets)

    def index(self, name: str, obj: Object) -> _Objects:
        """Return each stored object that shares at least one value with this one, once.

        Raises:
            UnknownIndexError: there is no index of this name.
            IndexFunctionError: its function fails for the object.
        """
        index = self._index(name)
        found: dict[str, Object] = {}
        for value in index.values_of(self._key_func(obj), obj):
            for other in list(index.buckets.get(value, _NO_BUCKET).values()):
                found[self._key_func(other)] = other
        return list(found.values())

    @property
    def indexers(self) -> Mapping[str, IndexFunc]:
        """The index functions by name, in a new dict."""
        return {name: index.func for name, index in list(self._state.indices.items())}

    def _index(self, name: str) -> _Index:
        indices = self._state.indices
        try:
            return indices[name]
        except KeyError:
            names = ", ".join(map(repr, indices)) or "none"
            raise UnknownIndexError(f"no index {name!r}; known indices: {names}") from None

    # --- Writing, in the event loop's thread ---

    def add_indexers(self, indexers: Mapping[str, IndexFunc]) -> None:
        """Add indices and fill them from the stored objects. Does not yield.

        Raises:
            ValueError: an index of this name exists.
            IndexFunctionError: a function fails for a stored object. No index was added.
        """
        _run(self._reindex(indexers))

    async def add_indexers_in_steps(self, indexers: Mapping[str, IndexFunc]) -> None:
        """Add indices like `add_indexers`, letting other tasks run, and write, every 5 ms."""
        await _run_in_steps(self._reindex(indexers), self._clock)

    def _reindex(self, indexers: Mapping[str, IndexFunc]) -> Generator[None, None, None]:
        self._refuse_taken_names(indexers)
        fresh = {name: _Index(name, func) for name, func in indexers.items()}
        seen: dict[str, Object] = {}
        for rounds_left in reversed(range(8)):
            items = self._state.items
            changed = [(key, obj) for key, obj in items.items() if seen.get(key) is not obj]
            gone = seen.keys() - items.keys()
            # Few objects are written between two steps, so the last round needn't yield.
            last = not rounds_left or len(changed) + len(gone) < 256
            for key in gone:
                del seen[key]
                for index in fresh.values():
                    index.remove(key)
            for count, (key, obj) in enumerate(changed):
                if not last and not count % _OBJECTS_IN_A_STEP:
                    yield
                for index in fresh.values():
                    index.put(key, obj, index.values_of(key, obj))
                seen[key] = obj
            if last:
                break
        self._refuse_taken_names(indexers)
        self._state = _State(self._state.items, {**self._state.indices, **fresh})

    def _refuse_taken_names(self, indexers: Mapping[str, IndexFunc]) -> None:
        if taken := self._state.indices.keys() & indexers.keys():
            raise ValueError(f"index {min(taken)!r} already exists; choose another name")


_NO_BUCKET: Mapping[str, Object] = MappingProxyType({})


def _is_same(old: ObjectMeta, new: ObjectMeta) -> bool:
    version = new.resource_version
    return old.resource_version == version and version != "" and old.uid == new.uid


def _run(steps: Generator[None, None, _T]) -> _T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("_T", end.value)


async def _run_in_steps(steps: Generator[None, None, _T], clock: Clock) -> _T:
    began = clock.now()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("_T", end.value)
        if clock.now() - began >= _SECONDS_BETWEEN_YIELDS:
            await clock.sleep(0)
            began = clock.now()
