"""Proves that a resource is no longer defined, so that its cache can be emptied."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from listwatch.client import discovery_answers as answers
from listwatch.client.http import HTTP
from listwatch.client.resource import Resource
from listwatch.clock import Clock
from listwatch.errors import (
    ForbiddenError,
    FrameError,
    NotFoundError,
    StatusError,
    UnauthorizedError,
)

_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_AGGREGATED: Final = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
)
#: Seconds between two discovery responses that together are a proof: a server that has just started
#: may not have read all definitions yet.
_APART: Final = 10.0
#: Seconds after which the first response no longer counts.
_STALE: Final = 300.0


class Definition:
    """What is known about the definition of one resource.

    A resource is gone if its CustomResourceDefinition is not found, or if two complete discovery
    responses, some time apart, lack it in every version of its group. No other response is proof:
    the server may be starting, older than others, or not the right server.

    Args:
        http: the server.
        clock: the time.
    """

    def __init__(self, http: HTTP, clock: Clock) -> None:
        self._http = http
        self._clock = clock
        self._may_read = True
        #: When a discovery response first lacked the resource.
        self._lacking_since: float | None = None

    def seen(self) -> None:
        """Note that the resource was listed, so it is defined."""
        self._lacking_since = None

    async def is_gone(self, resource: Resource) -> bool:
        """Ask the server, with at most two requests if discovery is aggregated.

        Raises:
            DisconnectedError: no connection, or it broke.
            TimeoutError: no response in time.
        """
        group = resource.group
        if not group:
            return False  # every server has these
        # A custom resource can't have such a group: kubernetes/enhancements, protected groups.
        may_be_custom = "." in group and not group.endswith(".k8s.io")
        if may_be_custom and self._may_read:
            defined = await self._is_defined(resource)
            if defined is not None:
                self._lacking_since = None
                return not defined
        return await self._is_missing_in_discovery(resource)

    async def _is_defined(self, resource: Resource) -> bool | None:
        path = f"{_DEFINITIONS}/{quote(resource.plural)}.{quote(resource.group)}"
        try:
            await self._http.request("GET", path)
        except NotFoundError as error:
            # A load balancer or another server may also respond with 404, but without a Status.
            return False if error.is_status else None
        except (ForbiddenError, UnauthorizedError):
            self._may_read = False
            return None
        except (StatusError, FrameError):
            return None
        return True

    async def _is_missing_in_discovery(self, resource: Resource) -> bool:
        now = self._clock.now()
        since = self._lacking_since
        if since is not None and now - since < _APART:
            return False  # another response would prove nothing yet
        served = await self._is_served(resource)
        if served is None:
            return False
        if served or since is None or now - since > _STALE:
            self._lacking_since = None if served else now
            return False
        return True

    async def _is_served(self, resource: Resource) -> bool | None:
        """Return whether discovery has the resource in some version; None if unknown."""
        try:
            answer = await self._ask("/apis", _AGGREGATED)
            if answers.is_aggregated(answer):
                served = answers.aggregated(answer)
                if served.unavailable or not _is_complete(answer, "items"):
                    return None
                return any(_is_same(resource, other) for other in served.resources)
            if not _is_complete(answer, "groups"):
                return None
            for group, version in answers.group_versions(answer):
                if group == resource.group and await self._is_in(group, version, resource):
                    return True
        except (StatusError, FrameError):
            return None
        return False

    async def _is_in(self, group: str, version: str, resource: Resource) -> bool:
        path = f"/apis/{quote(group)}/{quote(version)}"
        answer = await self._ask(path, "application/json")
        served = answers.plain(answer, group, version)
        if served.unavailable or not isinstance(answer.get("resources"), list):
            raise FrameError(f"{path} does not list everything it serves")
        return any(_is_same(resource, other) for other in served.resources)

    async def _ask(self, path: str, accept: str) -> Mapping[str, Any]:
        return answers.decode((await self._http.request("GET", path, accept=accept)).body, path)


def _is_complete(answer: Mapping[str, Any], key: str) -> bool:
    """Return whether the response has groups, all of them in the expected form.

    A response without any group is from a server that has just started, or from something else.
    """
    groups = answer.get(key)
    return isinstance(groups, list) and bool(groups) and all(map(_is_whole, groups))


def _is_whole(group: object) -> bool:
    if not isinstance(group, dict):
        return False
    versions = group.get("versions")
    if not isinstance(versions, list) or not versions:
        return False
    if "metadata" not in group:  # a group of an APIGroupList
        return isinstance(group.get("name"), str)
    return isinstance(group["metadata"], dict) and all(
        isinstance(version, dict) and isinstance(version.get("resources"), list)
        for version in versions
    )


def _is_same(resource: Resource, other: Resource) -> bool:
    return (resource.group, resource.plural) == (other.group, other.plural)
