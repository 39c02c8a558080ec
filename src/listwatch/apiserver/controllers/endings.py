"""The cluster's controllers that end objects.

The garbage collector (background, foreground, orphan), the deletion of namespaces, and the end of
pods whose grace period is over. The rules are those of `kube-controller-manager`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.table import ResourceTable
from listwatch.apiserver.storage.deletion import DeleteOptions, delete
from listwatch.apiserver.storage.registry import Registry, WriteContext
from listwatch.apiserver.storage.store import (
    Bucket,
    Entry,
    NotStoredError,
    Storage,
    StoredChange,
    StoredChangeType,
)
from listwatch.clock import Clock, Timer

_log = logging.getLogger(__name__)

Object = dict[str, Any]

_CONTEXT = WriteContext(manager="kube-controller-manager")
#: Steps before other tasks run.
_SLICE = 100
_FOREGROUND = "foregroundDeletion"
_ORPHAN = "orphan"
#: Seconds until a step that could not be stored is retried, and the key of its timer.
_RETRY_SECONDS = 10
_RETRY = "retry"


class Controllers:
    """Follows every change and deletes the objects that must end. For the event loop of the store.

    Works in slices between other tasks, never within a commit. With `ends_pods`, bound pods are
    removed when their grace period is over; otherwise kubelets do that.
    """

    def __init__(
        self,
        store: Storage,
        registry: Registry,
        table: ResourceTable,
        clock: Clock,
        *,
        ends_pods: bool = True,
    ) -> None:
        self._ends_pods = ends_pods
        self._store = store
        self._registry = registry
        self._table = table
        self._clock = clock
        #: the bucket and key of each existing uid
        self._homes: dict[str, tuple[Bucket, str]] = {}
        #: the buckets and keys of the objects that a uid owns
        self._owned: dict[str, set[tuple[str, str]]] = {}
        self._work: deque[Callable[[], None]] = deque()
        self._due = False
        self._terminating: set[str] = set()
        self._emptying: set[str] = set()
        self._timers: dict[str, Timer] = {}
        store.observers.append(self._observe)
        self._running = False
        self._note_all()

    def start(self) -> None:
        """Start with all existing objects, then follow every change."""
        self._running = True
        for bucket in self._store.buckets():
            for entry in bucket.current():
                self._look(bucket, entry)
        self._schedule()

    def reset(self) -> None:
        """Look at all objects again, after a change without a notification."""
        running = self._running
        self.stop()
        for known in (self._homes, self._owned, self._terminating):
            known.clear()
        self._note_all()
        if running:
            self.start()

    def _note_all(self) -> None:
        for bucket in self._store.buckets():
            for entry in bucket.current():
                self._note(bucket, entry)

    def stop(self) -> None:
        """Stop working; changes are still recorded."""
        self._running = False
        self._work.clear()
        self._emptying.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._due = False

    # -- existing objects ----------------------------------------------------------------------

    def _note(self, bucket: Bucket, entry: Entry) -> None:
        self._homes[entry.uid] = (bucket, entry.key)
        for owner in entry.owners:
            self._owned.setdefault(owner, set()).add((bucket.name, entry.key))

    def _forget(self, bucket: Bucket, entry: Entry) -> None:
        for owner in entry.owners:
            owned = self._owned.get(owner)
            if owned is not None:
                owned.discard((bucket.name, entry.key))
                if not owned:
                    del self._owned[owner]

    def _observe(self, bucket: Bucket, change: StoredChange) -> None:
        previous, entry = change.previous, change.entry
        if previous is not None and previous.owners:
            self._forget(bucket, previous)
        if change.type is StoredChangeType.DELETED:
            self._homes.pop(entry.uid, None)
            if self._running:
                self._after_deletion(bucket, entry)
            return
        self._note(bucket, entry)
        if self._running:
            self._look(bucket, entry)

    def _look(self, bucket: Bucket, entry: Entry) -> None:
        """Plan what an entry's current state requires."""
        if entry.owners and (not any(owner in self._homes for owner in entry.owners)):
            self._plan(lambda: self._check_owners(bucket, entry.key))
        if entry.deleting:
            if bucket.name == "namespaces":
                self._terminating.add(entry.name)
                self._plan_emptying(entry.name)
            elif bucket.name == "pods" and self._ends_pods:
                self._end_of_grace(bucket, entry)
            if b'"foregroundDeletion"' in entry.data or b'"orphan"' in entry.data:
                self._plan(lambda: self._finalize(bucket, entry.key))

    def _after_deletion(self, bucket: Bucket, entry: Entry) -> None:
        for name, key in list(self._owned.get(entry.uid, ())):
            dependents = self._store.bucket(name)
            self._plan(partial(self._check_owners, dependents, key))
        for owner in entry.owners:
            home = self._homes.get(owner)
            if home is not None:
                self._plan(partial(self._finalize, *home))
        if entry.namespace in self._terminating:
            self._plan_emptying(entry.namespace)
        if bucket.name == "namespaces":
            self._terminating.discard(entry.name)
        timer = self._timers.pop(entry.uid, None)
        if timer is not None:
            timer.cancel()

    # -- work --------------------------------------------------------------------------------

    def _plan(self, step: Callable[[], None]) -> None:
        self._work.append(step)
        self._schedule()

    def _plan_emptying(self, namespace: str) -> None:
        # once for many changes: each look covers all remaining objects
        if namespace not in self._emptying:
            self._emptying.add(namespace)
            self._plan(lambda: self._empty_namespace(namespace))

    def _schedule(self) -> None:
        if self._running and self._work and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._due = False
        for _ in range(min(_SLICE, len(self._work))):
            if not self._work:
                break
            step = self._work.popleft()
            try:
                step()
            except NotStoredError as error:
                self._try_again(step, error)
                return
            except Exception:  # noqa: BLE001 - logged; one object must not end the loop
                _log.exception("a controller's step failed; it is taken again at the next change")
        self._schedule()

    def _try_again(self, step: Callable[[], None], error: NotStoredError) -> None:
        _log.warning("a controller's step is tried again in %d s: %s", _RETRY_SECONDS, error)
        self._work.appendleft(step)
        self._due = True  # try nothing else until then: it would fail, too

        def run() -> None:
            del self._timers[_RETRY]
            self._run()

        self._timers[_RETRY] = self._clock.call_later(_RETRY_SECONDS, run)

    def _resource(self, bucket: Bucket) -> APIResource | None:
        for resource in self._table:
            if resource.storage == bucket.name and resource.convert is None:
                return resource
        return None

    def _is_there(self, reference: Object) -> bool:
        """Return whether an owner exists; owners of kinds that are not served count as existing."""
        if reference.get("uid") in self._homes:
            return True
        group, _, version = str(reference.get("apiVersion", "")).rpartition("/")
        return self._table.of_kind(group, version, str(reference.get("kind", ""))) is None

    def _check_owners(self, bucket: Bucket, key: str) -> None:
        """Delete an object without owners; drop references to owners that are gone."""
        entry = bucket.entries.get(key)
        resource = self._resource(bucket)
        if entry is None or not entry.owners or resource is None:
            return
        obj = self._registry.decode(entry)
        references = obj["metadata"].get("ownerReferences") or []
        alive = [each for each in references if self._is_there(each)]
        if len(alive) == len(references):
            return
        if alive:
            self._change(resource, entry, lambda metadata: metadata.update(ownerReferences=alive))
            return
        if entry.deleting:
            return
        delete(
            self._registry,
            resource,
            entry.namespace,
            entry.name,
            DeleteOptions(propagation=_kept_policy(obj) or "Background", uid=entry.uid),
        )

    def _finalize(self, bucket: Bucket, key: str) -> None:
        """Process the garbage collector's finalizers of an object being deleted."""
        entry = bucket.entries.get(key)
        resource = self._resource(bucket)
        if entry is None or resource is None or not entry.deleting:
            return
        finalizers = self._registry.decode(entry)["metadata"].get("finalizers") or []
        if _ORPHAN in finalizers:
            self._orphan(entry)
            self._drop_finalizer(resource, entry, _ORPHAN)
        elif _FOREGROUND in finalizers and not self._delete_dependents(entry):
            self._drop_finalizer(resource, entry, _FOREGROUND)

    def _dependents(self, entry: Entry) -> list[tuple[APIResource, Entry]]:
        found = []
        for name, key in sorted(self._owned.get(entry.uid, ())):
            bucket = self._store.bucket(name)
            dependent, resource = bucket.entries.get(key), self._resource(bucket)
            if dependent is not None and resource is not None:
                found.append((resource, dependent))
        return found

    def _orphan(self, entry: Entry) -> None:
        for resource, dependent in self._dependents(entry):

            def leave(metadata: Object) -> None:
                references = [
                    each
                    for each in metadata.get("ownerReferences") or ()
                    if each.get("uid") != entry.uid
                ]
                if references:
                    metadata["ownerReferences"] = references
                else:
                    metadata.pop("ownerReferences", None)

            self._change(resource, dependent, leave)

    def _delete_dependents(self, entry: Entry) -> bool:
        """Delete an object's dependents; return True while one of them blocks it."""
        held = False
        for resource, dependent in self._dependents(entry):
            obj = self._registry.decode(dependent)
            references = obj["metadata"].get("ownerReferences") or []
            others = [
                each for each in references if each.get("uid") != entry.uid and self._is_there(each)
            ]
            if others:
                continue
            if not dependent.deleting:
                deleted = delete(
                    self._registry,
                    resource,
                    dependent.namespace,
                    dependent.name,
                    DeleteOptions(propagation="Foreground", uid=dependent.uid),
                )
                if deleted.gone:
                    continue
            held |= any(
                each.get("uid") == entry.uid and each.get("blockOwnerDeletion")
                for each in references
            )
        return held

    def _drop_finalizer(self, resource: APIResource, entry: Entry, name: str) -> None:
        def drop(metadata: Object) -> None:
            left = [each for each in metadata.get("finalizers") or () if each != name]
            if left:
                metadata["finalizers"] = left
            else:
                metadata.pop("finalizers", None)

        self._change(resource, entry, drop)

    def _change(
        self, resource: APIResource, entry: Entry, change: Callable[[Object], None]
    ) -> None:
        def produce(old: Object | None, _: Entry | None) -> Object:
            assert old is not None  # noqa: S101 - update has refused a missing object
            change(old["metadata"])
            return old

        self._registry.update(
            resource, entry.namespace, entry.name, produce, _CONTEXT, is_put=False
        )

    # -- namespaces and pods -----------------------------------------------------------------

    def _empty_namespace(self, name: str) -> None:
        """Delete everything in a namespace; release it when nothing is left."""
        self._emptying.discard(name)
        entry = self._store.bucket("namespaces").entries.get(name)
        if entry is None or not entry.deleting:
            return
        left, deletions = False, 0
        for resource in self._table:
            if not resource.namespaced or resource.convert is not None:
                continue
            for each in self._store.bucket(resource.storage).current(name):
                if each.deleting:
                    left = True
                    continue
                if deletions == _SLICE:
                    self._plan_emptying(name)
                    return
                deletions += 1
                deleted = delete(
                    self._registry,
                    resource,
                    name,
                    each.name,
                    DeleteOptions(propagation="Background"),
                )
                left |= not deleted.gone
        if not left:
            namespaces = self._table.get("", "v1", "namespaces")
            if namespaces is not None:
                _finalize(self._registry, namespaces, entry)

    def _end_of_grace(self, bucket: Bucket, entry: Entry) -> None:
        metadata = self._registry.decode(entry)["metadata"]
        stamp = metadata.get("deletionTimestamp")
        if stamp is None or metadata.get("finalizers"):
            return
        due = datetime.fromisoformat(stamp).timestamp() - self._clock.time()
        timer = self._timers.pop(entry.uid, None)
        if timer is not None:
            timer.cancel()

        def end() -> None:
            self._timers.pop(entry.uid, None)
            self._plan(lambda: self._end_pod(bucket, entry))

        self._timers[entry.uid] = self._clock.call_later(max(0.0, due), end)

    def _end_pod(self, bucket: Bucket, entry: Entry) -> None:
        present = bucket.entries.get(entry.key)
        resource = self._resource(bucket)
        if present is None or resource is None or present.uid != entry.uid:
            return
        delete(
            self._registry,
            resource,
            entry.namespace,
            entry.name,
            DeleteOptions(grace_period=0, uid=entry.uid),
        )


def _kept_policy(obj: Object) -> str | None:
    finalizers = obj["metadata"].get("finalizers") or ()
    if _ORPHAN in finalizers:
        return "Orphan"
    return "Foreground" if _FOREGROUND in finalizers else None


def _finalize(registry: Registry, resource: APIResource, entry: Entry) -> None:
    """Remove a namespace in which nothing is left."""
    obj = registry.decode(entry)
    spec = obj.get("spec") or {}
    left = [name for name in spec.get("finalizers") or () if name != "kubernetes"]
    if left or obj["metadata"].get("finalizers"):
        if left != spec.get("finalizers"):
            obj["spec"] = {**spec, "finalizers": left} if left else {}
            made = registry.entry(resource, obj, registry.store.revision + 1)
            registry.store.put(registry.bucket(resource), made)
        return
    registry.store.delete(registry.bucket(resource), entry)
