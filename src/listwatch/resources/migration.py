"""Rewrites the objects of a custom resource that are stored in old versions.

A server stores an object in the storage version whenever it is written, even without a change. When
all objects have been written, no old version is stored, and it can be removed from the definition's
`status.storedVersions` and then from its versions.

Progress is kept in an annotation of the definition, so another run continues after a crash. Nothing
depends on it: writing an object twice does no harm.
"""

import contextlib
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from listwatch.backoff import MIGRATION, retry
from listwatch.errors import (
    ConflictError,
    DisconnectedError,
    ExpiredError,
    InternalServerError,
    ListWatchError,
    NotFoundError,
    ServerTimeoutError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from listwatch.objects import Object

if TYPE_CHECKING:
    from listwatch.client.client import Client
    from listwatch.client.resource import Resource

#: The annotation of a definition with the progress of its migration.
ANNOTATION: Final = "listwatch/storage-migration"
#: A migration stops after this many objects in a row have failed.
_IN_A_ROW: Final = 10
_DEFINITIONS: Final = "customresourcedefinitions.v1.apiextensions.k8s.io"
_PASSING: Final = (
    DisconnectedError,
    InternalServerError,
    ServerTimeoutError,
    ServiceUnavailableError,
    TimeoutError,
    TooManyRequestsError,
)


class MigrationError(ListWatchError):
    """A migration can't be done; the message says why. Nothing was pruned."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a migration is.

    Attributes:
        rewritten: objects rewritten so far, in this run and those before.
        failed: objects that failed in this run.
        remaining: objects left, if the server says.
    """

    rewritten: int
    failed: int
    remaining: int | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a migration.

    Attributes:
        version: the storage version.
        rewritten: objects rewritten, in this run and those before.
        failed: objects that failed; then nothing was pruned.
        pruned: versions removed from `status.storedVersions`; with a dry run, those that would be.
    """

    version: str
    rewritten: int = 0
    failed: int = 0
    pruned: tuple[str, ...] = ()


class _Kept(msgspec.Struct, kw_only=True):
    """Progress as kept in the annotation; valid for one state of the definition's spec."""

    generation: int
    after: str = ""
    rewritten: int = 0


class Migration:
    """Migrates one custom resource. Use it once, in one event loop.

    Args:
        client: sends the requests.
        word: the resource, such as "websites" or "websites.example.com".
        rate: maximum objects per second.
        dry_run: let the server check every rewrite, but change nothing.
        page_size: objects per page; progress is kept after each.
        on_failure: called with the object and the error for each one that can't be rewritten.
        on_progress: called after each page.
    """

    def __init__(
        self,
        client: "Client",
        word: str,
        *,
        rate: float = 50.0,
        dry_run: bool = False,
        page_size: int = 200,
        on_failure: Callable[[Object, Exception], object] = lambda *_: None,
        on_progress: Callable[[Progress], object] = lambda _: None,
    ) -> None:
        if not rate > 0:
            raise ValueError(f"rate must be above 0 objects per second, not {rate:g}")
        self._client = client
        self._word = word
        self._interval = 1 / rate
        self._dry_run = dry_run
        self._page_size = page_size
        self._on_failure = on_failure
        self._on_progress = on_progress
        self._clock = client.clock
        self._next = 0.0
        self._failed = 0
        self._in_a_row = 0
        #: The last object of this run; the kept progress stays before the first failure.
        self._last = ""

    async def run(self) -> Outcome:
        """Rewrite what is needed, then prune the old versions.

        Raises:
            MigrationError: the resource is not custom; its definition changed meanwhile; too many
                objects in a row failed.
            UnknownResourceError: the server has no such resource.
            ListWatchError: a request failed.
        """
        resource = await self._client.discovery.find(self._word)
        name = f"{resource.plural}.{resource.group}"
        try:
            crd = await self._client.get(_DEFINITIONS, name)
        except NotFoundError:
            raise MigrationError(
                f"{self._word} has no CustomResourceDefinition: only the versions in which custom "
                "resources are stored can be migrated"
            ) from None
        version = _storage_version(crd)
        old = _old_versions(crd, version)
        if not old:
            return Outcome(version=version)
        stored = await self._client.discovery.for_kind(f"{resource.group}/{version}", resource.kind)
        kept = _kept(crd)
        self._last = kept.after
        await self._rewrite_all(stored, crd, kept)
        if self._failed:
            return Outcome(version=version, rewritten=kept.rewritten, failed=self._failed)
        if not self._dry_run:
            await self._prune(crd, version)
        return Outcome(version=version, rewritten=kept.rewritten, pruned=old)

    async def _rewrite_all(self, resource: "Resource", crd: Object, kept: _Kept) -> None:
        again = True
        while again:
            again = False
            try:
                await self._rewrite_pages(resource, crd, kept)
            except ExpiredError:  # the list took too long; the rest begins after the last object
                again = True

    async def _rewrite_pages(self, resource: "Resource", crd: Object, kept: _Kept) -> None:
        previous = ""
        pages = self._client.pages(resource, page_size=self._page_size)
        async with aclosing(pages):
            async for page in pages:
                if page.undecodable:
                    raise MigrationError(f"an object can't be read: {page.undecodable[0]}")
                for obj in page.items:
                    if obj.key.encode() < previous.encode():
                        # Not etcd's order, so nothing is known about the objects after a key.
                        raise MigrationError(
                            f"the server lists {obj.key} after {previous}: without an order by "
                            "name, a migration can't be continued safely"
                        )
                    previous = obj.key
                    if obj.key.encode() > self._last.encode():
                        await self._rewrite_or_note(resource, obj, kept)
                        self._last = obj.key
                await self._keep(crd, kept)
                self._on_progress(
                    Progress(
                        rewritten=kept.rewritten, failed=self._failed, remaining=page.remaining
                    )
                )

    async def _rewrite_or_note(self, resource: "Resource", obj: Object, kept: _Kept) -> None:
        await self._pace()
        try:
            await self._rewrite(resource, obj)
        except (ListWatchError, TimeoutError) as error:
            self._on_failure(obj, error)
            self._failed += 1
            self._in_a_row += 1
            if self._in_a_row == _IN_A_ROW:
                raise MigrationError(
                    f"{_IN_A_ROW} objects in a row could not be rewritten, the last one with: "
                    f"{error}"
                ) from error
            return
        self._in_a_row = 0
        kept.rewritten += 1
        if not self._failed:  # another run has to come back to what failed
            kept.after = obj.key

    async def _rewrite(self, resource: "Resource", obj: Object) -> None:
        """Write an object unchanged."""
        same = {"metadata": {"uid": obj.uid, "resourceVersion": obj.resource_version}}
        namespace = obj.namespace or None
        patch = partial(
            self._client.patch, resource, obj.name, same, namespace, dry_run=self._dry_run
        )
        try:
            await self._patiently(patch)
        except NotFoundError:
            return
        except ConflictError:
            # Whoever has changed it since has stored it in the new version.
            with contextlib.suppress(NotFoundError):
                get = partial(self._client.get, resource, obj.name, namespace)
                if (await self._patiently(get)).resource_version == obj.resource_version:
                    raise

    async def _patiently(self, call: Callable[[], Any]) -> Object:
        def after(error: Exception, delay: float) -> float | None:
            return delay if isinstance(error, _PASSING) else None

        found: Object = await retry(call, MIGRATION, after, clock=self._clock)
        return found

    async def _pace(self) -> None:
        now = self._clock.now()
        if now < self._next:
            await self._clock.sleep(self._next - now)
        self._next = max(now, self._next) + self._interval

    async def _keep(self, crd: Object, kept: _Kept) -> None:
        """Write the progress into the definition, whose spec must still be the same."""
        if self._dry_run:
            return
        text = msgspec.json.encode(kept).decode()
        await self._change(crd, {"metadata": {"annotations": {ANNOTATION: text}}}, "")

    async def _prune(self, crd: Object, version: str) -> None:
        await self._change(crd, {"status": {"storedVersions": [version]}}, "status")
        await self._change(crd, {"metadata": {"annotations": {ANNOTATION: None}}}, "")

    async def _change(self, crd: Object, patch: dict[str, Any], subresource: str) -> None:
        async def attempt() -> Object:
            now = await self._client.get(_DEFINITIONS, crd.name)
            if (now.uid, now.meta.generation) != (crd.uid, crd.meta.generation):
                raise MigrationError(
                    f"{crd.name} has changed since the migration began: run it again"
                )
            same = {"uid": now.uid, "resourceVersion": now.resource_version}
            whole = {**patch, "metadata": {**patch.get("metadata", {}), **same}}
            return await self._client.patch(_DEFINITIONS, crd.name, whole, subresource=subresource)

        def after(error: Exception, delay: float) -> float | None:
            return delay if isinstance(error, (ConflictError, *_PASSING)) else None

        await retry(attempt, MIGRATION, after, clock=self._clock)


def _storage_version(crd: Object) -> str:
    versions = crd["spec"]["versions"]
    name: str = next(one["name"] for one in versions if one.get("storage"))
    if not next(one.get("served") for one in versions if one["name"] == name):
        raise MigrationError(
            f"{crd.name}: the storage version {name} is not served, so its objects can't be written"
        )
    return name


def _old_versions(crd: Object, version: str) -> tuple[str, ...]:
    stored = (crd.to_dict().get("status") or {}).get("storedVersions") or ()
    return tuple(one for one in stored if one != version)


def _kept(crd: Object) -> _Kept:
    """Return the progress of an earlier run, unless the definition has changed since."""
    generation = crd.meta.generation or 0
    text = crd["metadata"].get("annotations", {}).get(ANNOTATION)
    if text is not None:
        with contextlib.suppress(msgspec.MsgspecError):  # somebody else's text: start over
            kept = msgspec.json.decode(text, type=_Kept)
            if kept.generation == generation:
                return kept
    return _Kept(generation=generation)
