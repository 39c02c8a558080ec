"""What an API server serves, and which resource a user's word means."""

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote

from listwatch.client import discovery_answers as answers
from listwatch.client.discovery_answers import Served
from listwatch.client.http import HTTP
from listwatch.client.resource import Resource
from listwatch.errors import (
    DisconnectedError,
    FrameError,
    NotFoundError,
    StatusError,
    UnknownResourceError,
    unwrap,
)
from listwatch.printable import printable

__all__ = ["Discovery", "Resource", "UnknownResourceError"]

_log = logging.getLogger(__name__)

_AGGREGATED: Final = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,"
    "application/json"
)
#: Group versions requested at a time if the server has no aggregated discovery.
_AT_ONCE: Final = 8
#: Maximum different complaints about groups that are logged.
_MOST_WARNINGS: Final = 1000


class Discovery:
    """Finds resources; asks the server on first use, and again if a name is not found.

    Uses aggregated discovery (two requests) if the server supports it, otherwise one request per
    group version. If a group's server fails, only that group's resources are missing; the failure
    is logged. For one event loop; any number of tasks may use it, and one of them sends the
    requests.
    """

    def __init__(self, http: HTTP) -> None:
        self._http = http
        self._resources: tuple[Resource, ...] | None = None
        self._unavailable: tuple[str, ...] = ()
        self._warned: dict[str, str] = {}
        self._lock = asyncio.Lock()

    async def resources(self) -> Sequence[Resource]:
        """Return all resources: groups in the server's order, preferred versions first."""
        resources = self._resources
        return await self.refresh() if resources is None else resources

    async def refresh(self) -> Sequence[Resource]:
        """Ask the server again.

        Raises:
            As `HTTP.request`.
        """
        before = self._resources
        async with self._lock:
            if self._resources is None or self._resources is before:
                core, groups = await self._load("/api"), await self._load("/apis")
                self._unavailable = (*core.unavailable, *groups.unavailable)
                self._resources = (*core.resources, *groups.resources)
            return self._resources

    def forget(self) -> None:
        """Ask the server again at the next look-up."""
        self._resources = None

    async def find(self, word: str) -> Resource:
        """Return the resource that a word means.

        The word is a plural, singular, short name or kind, alone or followed by `.GROUP` or
        `.VERSION.GROUP`: `pods`, `po`, `Pod`, `deployments.apps`, `deployments.v1.apps`. If several
        groups serve it, the core group comes first, then the groups of Kubernetes itself.

        Raises:
            UnknownResourceError: the word means no resource, or several of equal rank.
        """
        asked = self._resources is None
        found = _candidates(await self.resources(), word)
        if not found and not asked:
            found = _candidates(await self.refresh(), word)
        if not found:
            missing = (
                f" (the server did not say what {', '.join(self._unavailable)} serves)"
                if self._unavailable
                else ""
            )
            raise UnknownResourceError(f"the server has no resource {word!r}{missing}")
        best = min(_rank(resource.group) for resource in found)
        first = {r.group: r for r in reversed(found) if _rank(r.group) == best}
        if len(first) > 1:
            names = sorted(str(resource) for resource in first.values())
            raise UnknownResourceError(
                f"{word!r} is ambiguous: {' or '.join(names)}; choose one", candidates=names
            )
        return first.popitem()[1]

    async def category(self, name: str) -> Sequence[Resource]:
        """Return the resources of a category, such as "all", each in its preferred version."""
        first = {
            (resource.group, resource.plural): resource
            for resource in reversed(await self.resources())
            if name in resource.categories
        }
        return list(reversed(first.values()))

    async def for_kind(self, api_version: str, kind: str) -> Resource:
        """Return the resource of an object's apiVersion and kind.

        Raises:
            UnknownResourceError: the server has none.
        """
        group, _, version = api_version.rpartition("/")
        asked = self._resources is None
        resources = await self.resources()
        while True:
            for resource in resources:
                if (resource.group, resource.version, resource.kind) == (group, version, kind):
                    return resource
            if asked:
                break
            asked = True
            resources = await self.refresh()
        raise UnknownResourceError(f"the server has no kind {kind!r} in {api_version!r}")

    async def with_subresource(self, name: str, api_version: str, kind: str) -> Sequence[Resource]:
        """Return the resources whose subresource of this name accepts an apiVersion and kind.

        If none is known, return the resource of that kind itself.

        Raises:
            UnknownResourceError: the server has none.
        """
        asked = self._resources is None
        resources = await self.resources()
        while True:
            own: list[Resource] = []
            others: dict[tuple[str, str], Resource] = {}
            silent: list[Resource] = []  # the server lists no subresources
            for resource in resources:
                if (resource.api_version, resource.kind) == (api_version, kind):
                    (own if name in resource.subresources else silent).append(resource)
                elif (name, api_version, kind) in resource.subresource_types:
                    others.setdefault((resource.group, resource.plural), resource)
            if found := own or list(others.values()) or silent:
                return found
            if asked:
                break
            asked = True
            resources = await self.refresh()
        raise UnknownResourceError(
            f"the server has no resource with a subresource {name!r} of the kind {kind!r} in "
            f"{api_version!r}"
        )

    async def _load(self, path: str) -> Served:
        answer = answers.decode(
            (await self._http.request("GET", path, accept=_AGGREGATED)).body, path
        )
        if answers.is_aggregated(answer):
            return answers.aggregated(answer)
        if path == "/api":
            names = [("", version) for version in answers.core_versions(answer)]
        else:
            names = list(answers.group_versions(answer))
        gate = asyncio.Semaphore(_AT_ONCE)

        async def load(group: str, version: str) -> Served:
            parts = (path, quote(group), quote(version)) if group else (path, quote(version))
            async with gate:
                return await self._load_version("/".join(parts), group, version)

        try:
            async with asyncio.TaskGroup() as tasks:
                loads = [tasks.create_task(load(*name)) for name in names]
        except ExceptionGroup as failed:
            raise unwrap(failed, first=True) from None
        served = [task.result() for task in loads]
        return Served(
            [resource for part in served for resource in part.resources],
            [name for part in served for name in part.unavailable],
        )

    async def _load_version(self, path: str, group: str, version: str) -> Served:
        try:
            answer = await self._http.request("GET", path)
            return answers.plain(answers.decode(answer.body, path), group, version)
        except NotFoundError:
            return Served(())  # it disappeared after the groups were listed
        except (StatusError, FrameError, DisconnectedError, TimeoutError) as error:
            # An aggregated server may answer for a group; if nothing listens at all, it is ours
            # that fails.
            if not group or getattr(error, "refused", False):
                raise
            self._warn(f"{group}/{version}", str(error))
            return Served((), [f"{group}/{version}"])

    def _warn(self, name: str, words: str) -> None:
        if self._warned.get(name) != words and len(self._warned) < _MOST_WARNINGS:
            self._warned[name] = words
            _log.warning("the server does not say what %s serves: %s", printable(name), words)


# --- What a word means ---------------------------------------------------------------------------

_BUILT_IN: Final = re.compile(
    r"[a-z]+|[a-z]+\.k8s\.io|flowcontrol\.apiserver\.k8s\.io|rbac\.authorization\.k8s\.io"
    r"|internal\.apiserver\.k8s\.io"
)


def _rank(group: str) -> int:
    if not group:
        return 0
    return 1 if _BUILT_IN.fullmatch(group) else 2


def _candidates(resources: Iterable[Resource], word: str) -> list[Resource]:
    resources = list(resources)
    for name, version, group in _readings(word):
        for is_prefix in (False, True):  # kubectl accepts a prefix of the group's name too
            fitting = [
                resource
                for resource in resources
                if (version is None or resource.version == version)
                and (
                    group is None
                    or resource.group == group
                    or (is_prefix and group and resource.group.startswith(group))
                )
            ]
            found = [r for r in fitting if name in {r.plural, r.singular, r.kind.lower()}] or [
                r for r in fitting if name in r.short_names
            ]
            if found:
                return found
    return []


def _readings(word: str) -> Iterable[tuple[str, str | None, str | None]]:
    """Yield name, version and group for each way to read a word, most likely first."""
    name, _, rest = word.strip().partition(".")
    name = name.lower()
    if "." not in word:
        yield name, None, None
        return
    yield name, None, rest
    version, dot, group = rest.partition(".")
    if dot:
        yield name, version, group
