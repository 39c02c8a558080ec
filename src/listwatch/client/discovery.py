"""What an API server serves, and which resource a user's word means."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from listwatch.client.http import HTTP
from listwatch.errors import FrameError, ListWatchError, NotFoundError, StatusError

_AGGREGATED: Final = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,"
    "application/json"
)
#: How many group versions are asked for at a time where the server can't tell all at once.
_AT_ONCE: Final = 8


class UnknownResourceError(ListWatchError):
    """The server serves no resource of this name, or several and none of them comes first.

    Attributes:
        candidates: the resources that it could mean, each in words that mean it alone.
    """

    def __init__(self, message: str, candidates: Sequence[str] = ()) -> None:
        self.candidates = tuple(candidates)
        super().__init__(message)


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of object as an API server serves it.

    Attributes:
        group: empty for the core group.
        plural: the name in URLs.
        namespaced: objects live in namespaces.
        subresources: such as "status" and "scale".
    """

    group: str = ""
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    verbs: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """As in an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """The words that mean this resource alone, such as "deployments.v1.apps"."""
        return f"{self.plural}.{self.version}.{self.group}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of a collection, an object or a subresource, percent-encoded.

        Raises:
            ValueError: a namespace for a cluster-scoped resource, or a name that no object has.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace:
            if not self.namespaced:
                raise ValueError(f"{self.plural} have no namespace, but {namespace!r} was given")
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        for part in parts:
            if part in {".", ".."} or "/" in part:
                raise ValueError(f"{part!r} can't be the name of an object")
        return "/" + "/".join(quote(part, safe=":") for part in parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


# --- What servers answer -------------------------------------------------------------------------


class _Kind(msgspec.Struct):
    kind: str = ""


class _Sub(msgspec.Struct):
    subresource: str = ""


class _AggregatedResource(msgspec.Struct, rename="camel"):
    resource: str
    response_kind: _Kind | None = None
    scope: str = ""
    singular_resource: str = ""
    verbs: tuple[str, ...] | None = ()
    short_names: tuple[str, ...] | None = ()
    categories: tuple[str, ...] | None = ()
    subresources: list[_Sub] | None = None


class _AggregatedVersion(msgspec.Struct):
    version: str
    resources: list[_AggregatedResource] | None = None
    freshness: str = ""


class _Name(msgspec.Struct):
    name: str = ""


class _AggregatedGroup(msgspec.Struct):
    metadata: _Name = msgspec.field(default_factory=_Name)
    versions: list[_AggregatedVersion] | None = None


class _AggregatedGroups(msgspec.Struct):
    kind: str = ""
    items: list[_AggregatedGroup] | None = None


class _GroupVersion(msgspec.Struct, rename="camel"):
    group_version: str
    version: str = ""


class _Group(msgspec.Struct, rename="camel"):
    name: str
    versions: list[_GroupVersion] = []
    preferred_version: _GroupVersion | None = None


class _Groups(msgspec.Struct):
    groups: list[_Group] | None = None


class _Versions(msgspec.Struct):
    versions: list[str] | None = None


class _PlainResource(msgspec.Struct, rename="camel"):
    name: str
    singular_name: str = ""
    namespaced: bool = False
    kind: str = ""
    verbs: tuple[str, ...] | None = ()
    short_names: tuple[str, ...] | None = ()
    categories: tuple[str, ...] | None = ()


class _PlainResources(msgspec.Struct):
    resources: list[_PlainResource] | None = None


class Discovery:
    """Finds resources; asks the server when it is first used, and again on a miss.

    Aggregated discovery (two requests) where the server has it, else one request for each group
    version. Belongs to one event loop; any number of tasks may ask, one of them does the work.
    """

    def __init__(self, http: HTTP) -> None:
        self._http = http
        self._resources: tuple[Resource, ...] | None = None
        self._unavailable: tuple[str, ...] = ()
        self._lock = asyncio.Lock()

    async def resources(self) -> Sequence[Resource]:
        """Return all that is served: groups in the server's order, preferred versions first."""
        resources = self._resources
        return await self.refresh() if resources is None else resources

    async def refresh(self) -> Sequence[Resource]:
        """Ask the server anew.

        Raises:
            As `HTTP.request`.
        """
        before = self._resources
        async with self._lock:
            if self._resources is None or self._resources is before:
                self._unavailable = ()
                core = await self._load("/api")
                self._resources = (*core, *await self._load("/apis"))
            return self._resources

    def forget(self) -> None:
        """Ask the server anew when something is looked up next."""
        self._resources = None

    async def find(self, word: str) -> Resource:
        """Return the resource that a word means.

        The word is a plural, singular, short name or kind, alone or followed by `.GROUP` or
        `.VERSION.GROUP`: `pods`, `po`, `Pod`, `deployments.apps`, `deployments.v1.apps`. Where
        several groups serve it, the core group comes first, then the groups that Kubernetes
        itself brings.

        Raises:
            UnknownResourceError: none is meant, or several that none comes before.
        """
        asked = self._resources is None
        found = _candidates(await self.resources(), word)
        if not found and not asked:
            found = _candidates(await self.refresh(), word)
        if not found:
            missing = (
                f" (the server could not tell what {', '.join(self._unavailable)} serves)"
                if self._unavailable
                else ""
            )
            raise UnknownResourceError(f"the server has no resource {word!r}{missing}")
        best = min(_rank(resource.group) for resource in found)
        first = {r.group: r for r in reversed(found) if _rank(r.group) == best}
        if len(first) > 1:
            names = sorted(str(resource) for resource in first.values())
            raise UnknownResourceError(
                f"{word!r} may mean {' or '.join(names)}; say which", candidates=names
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

    async def _load(self, path: str) -> list[Resource]:
        answer = await self._http.request("GET", path, accept=_AGGREGATED)
        groups = _read(answer.body, _AggregatedGroups, path)
        if groups.kind == "APIGroupDiscoveryList":
            return [r for group in groups.items or () for r in self._aggregated(group)]
        if path == "/api":
            versions = _read(answer.body, _Versions, path).versions or []
            names = [(f"{path}/{quote(version)}", "", version) for version in versions]
        else:
            names = [
                (f"{path}/{quote(group.name)}/{quote(version)}", group.name, version)
                for group in _read(answer.body, _Groups, path).groups or ()
                for version in _versions_of(group)
            ]
        return await self._load_all(names)

    def _aggregated(self, group: _AggregatedGroup) -> Iterable[Resource]:
        for version in group.versions or ():
            if version.freshness == "Stale":
                # An aggregated server that does not answer: what it served last is shown.
                self._unavailable += (f"{group.metadata.name}/{version.version}",)
            for item in version.resources or ():
                yield Resource(
                    group=group.metadata.name,
                    version=version.version,
                    plural=item.resource,
                    kind=item.response_kind.kind if item.response_kind else "",
                    namespaced=item.scope == "Namespaced",
                    singular=item.singular_resource,
                    verbs=item.verbs or (),
                    short_names=item.short_names or (),
                    categories=item.categories or (),
                    subresources=tuple(sub.subresource for sub in item.subresources or ()),
                )

    async def _load_all(self, names: Sequence[tuple[str, str, str]]) -> list[Resource]:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def load(path: str, group: str, version: str) -> list[Resource]:
            async with gate:
                try:
                    answer = await self._http.request("GET", path)
                except NotFoundError:
                    return []  # it went away since the groups were listed
                except StatusError:
                    if not group:
                        raise
                    self._unavailable += (f"{group}/{version}",)
                    return []
            return _plain(_read(answer.body, _PlainResources, path), group, version)

        try:
            async with asyncio.TaskGroup() as tasks:
                loads = [tasks.create_task(load(*name)) for name in names]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [resource for task in loads for resource in task.result()]


def _read(body: bytes, into: type[Any], path: str) -> Any:
    try:
        return msgspec.json.decode(body, type=into)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameError(f"{path} answered with something else than discovery: {error}") from None


def _versions_of(group: _Group) -> list[str]:
    versions = [version.version for version in group.versions]
    if group.preferred_version and group.preferred_version.version in versions:
        versions.remove(group.preferred_version.version)
        versions.insert(0, group.preferred_version.version)
    return versions


def _plain(answer: _PlainResources, group: str, version: str) -> list[Resource]:
    listed = answer.resources or []
    return [
        Resource(
            group=group,
            version=version,
            plural=item.name,
            kind=item.kind,
            namespaced=item.namespaced,
            singular=item.singular_name,
            verbs=item.verbs or (),
            short_names=item.short_names or (),
            categories=item.categories or (),
            subresources=tuple(
                sub.name.removeprefix(f"{item.name}/")
                for sub in listed
                if sub.name.startswith(f"{item.name}/")
            ),
        )
        for item in listed
        if "/" not in item.name
    ]


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
        for is_prefix in (False, True):  # kubectl takes the beginning of a group's name too
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
    """Yield name, version and group as a word can be read, the likeliest first."""
    name, _, rest = word.strip().partition(".")
    name = name.lower()
    if "." not in word:
        yield name, None, None
        return
    yield name, None, rest
    version, dot, group = rest.partition(".")
    if dot:
        yield name, version, group
