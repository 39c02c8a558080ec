"""List-watches that search for missed deletions (Go: `buildPodDeleteLW`, `buildDeleteLW`).

Both queue a deletion for each object that was deleted while nobody watched, and then return an
empty list to the reflector. The list alone cannot reveal such deletions, because no cache has the
objects; but a build names its pod, and a pod names its build.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Protocol

from listwatch.cache.deltas import Item
from listwatch.cache.list_watch import (
    ListerWatcher,
    ListOptions,
    ObjectList,
    WatchOptions,
    WatchStream,
)
from listwatch.controllers.builds.api import BuildsAPI
from listwatch.controllers.builds.naming import (
    NEW,
    POD_NAME,
    InvalidBuildError,
    belongs_to,
    build_name_of,
    build_pod_name,
    build_that_is_gone,
    build_uid_of,
    facts,
    pod_that_is_gone,
)
from listwatch.objects import DeletedFinalStateUnknown, Object, ObjectKey

_logger = logging.getLogger(__name__)

_PAGE_SIZE = 500


class Deletions(Protocol):
    """Receives the deletions that a list has found: a DeltaFIFO."""

    def delete(self, obj: Item, /) -> None:
        """Delete an object."""
        ...


class EveryKeyKnown:
    """Known objects that make a DeltaFIFO accept every deletion (Go: `keyListerGetter`).

    A DeltaFIFO drops the deletion of an unknown object, and here no store knows any.
    """

    def list_keys(self) -> Iterable[str]:
        """Return none, so that a replace finds nothing missing."""
        return ()

    def get_by_key(self, key: str) -> Item | None:
        """Return that the object is known, in an unknown state."""
        return DeletedFinalStateUnknown(key)


class DeletionsOnly:
    """Passes changes to a queue, but not complete lists.

    The list is always empty, and a DeltaFIFO would delete everything queued.
    """

    def __init__(self, queue: "_Queue") -> None:
        self._queue = queue

    def add(self, obj: Object) -> None:
        """Pass the object on."""
        self._queue.add(obj)

    def update(self, obj: Object) -> None:
        """Pass the object on."""
        self._queue.update(obj)

    def delete(self, obj: Item) -> None:
        """Pass the object on."""
        self._queue.delete(obj)

    def replace(self, objs: Sequence[Object], resource_version: str) -> None:
        """Do nothing: the list itself has queued the deletions."""

    def resync(self) -> None:
        """Do nothing: there is no state to deliver again."""

    def bookmark(self, resource_version: str) -> None:
        """Do nothing: no position is needed."""


class _Queue(Deletions, Protocol):
    def add(self, obj: Object, /) -> None: ...

    def update(self, obj: Object, /) -> None: ...


async def _all(source: ListerWatcher) -> tuple[Mapping[str, Object], str]:
    """Return all objects by key, and the version of the list."""
    found: dict[str, Object] = {}
    page = await source.list(ListOptions(limit=_PAGE_SIZE))
    # All pages have the first one's version; some servers send it only later.
    version = page.resource_version
    while True:
        found.update((obj.key, obj) for obj in page.items)
        if not page.continue_token:
            return found, version or page.resource_version
        page = await source.list(ListOptions(limit=_PAGE_SIZE, continue_token=page.continue_token))


class BuildPodDeleteListWatch:
    """Watches the pods of builds; its list finds the builds that run without their pod.

    New builds have no pod yet, ended ones need none, and pipelines never have one.

    Args:
        pods: the pods with the label of a build.
        builds: all builds.
        api: confirms that an object is gone, because the two lists are of different times.
        deletions: receives a deletion of each missing pod, with the build's name and uid.
    """

    def __init__(
        self, pods: ListerWatcher, builds: ListerWatcher, api: BuildsAPI, deletions: Deletions
    ) -> None:
        self._pods = pods
        self._builds = builds
        self._api = api
        self._deletions = deletions

    async def list(self, options: ListOptions) -> ObjectList:
        """Queue the missed deletions and return an empty list, for a watch to follow.

        The list has the version at which the pods were read, so no deletion falls between the list
        and its watch.
        """
        del options
        return ObjectList(items=[], resource_version=await self.find_deletions())

    async def find_deletions(self) -> str:
        """Queue the missed deletions; return the version at which the pods were read."""
        pods, version = await _all(self._pods)
        builds, _ = await _all(self._builds)
        for build in builds.values():
            with _costing_only_itself():
                if await self._has_lost_its_pod(build, pods):
                    self._deletions.delete(pod_that_is_gone(build))
        return version

    async def _has_lost_its_pod(self, build: Object, pods: Mapping[str, Object]) -> bool:
        if not _should_have_pod(build):
            return False
        name = build_pod_name(build)
        pod = pods.get(str(ObjectKey(build.namespace, name)))
        if pod is None or not belongs_to(pod, build):
            pod = await self._api.get_pod(build.namespace, name)
        return pod is None or not belongs_to(pod, build)

    def watch(self, options: WatchOptions) -> AbstractAsyncContextManager[WatchStream]:
        """Watch the pods."""
        return self._pods.watch(options)


@contextmanager
def _costing_only_itself() -> Iterator[None]:
    """Skip an object that can't be decoded, with a warning; the others are handled."""
    try:
        yield
    except InvalidBuildError as error:
        _logger.warning("skipped in the search for deletions: %s", error)


def _should_have_pod(build: Object) -> bool:
    known = facts(build)
    if known.is_complete or known.pipeline:
        return False
    return known.phase != NEW or POD_NAME in known.annotations


class BuildDeleteListWatch:
    """Watches the builds; its list finds the remaining pods of deleted builds.

    Args:
        builds: all builds.
        pods: the pods with the label of a build.
        api: confirms that an object is gone.
        deletions: receives a deletion of each missing build, with its pod's name.
    """

    def __init__(
        self, builds: ListerWatcher, pods: ListerWatcher, api: BuildsAPI, deletions: Deletions
    ) -> None:
        self._builds = builds
        self._pods = pods
        self._api = api
        self._deletions = deletions

    async def list(self, options: ListOptions) -> ObjectList:
        """Queue the missed deletions and return an empty list, for a watch to follow."""
        del options
        return ObjectList(items=[], resource_version=await self.find_deletions())

    async def find_deletions(self) -> str:
        """Queue the missed deletions; return the version at which the builds were read."""
        builds, version = await _all(self._builds)
        pods, _ = await _all(self._pods)
        for pod in pods.values():
            with _costing_only_itself():
                if await self._has_lost_its_build(pod, builds):
                    self._deletions.delete(build_that_is_gone(pod))
        return version

    async def _has_lost_its_build(self, pod: Object, builds: Mapping[str, Object]) -> bool:
        name = build_name_of(pod)
        if not name or pod.meta.deletion_timestamp is not None:
            return False
        build = builds.get(str(ObjectKey(pod.namespace, name)))
        if build is None or _is_of_another(pod, build):
            build = await self._api.get_build(pod.namespace, name)
        return build is None or _is_of_another(pod, build)

    def watch(self, options: WatchOptions) -> AbstractAsyncContextManager[WatchStream]:
        """Watch the builds."""
        return self._builds.watch(options)


def _is_of_another(pod: Object, build: Object) -> bool:
    uid = build_uid_of(pod)
    return bool(uid) and uid != build.uid
