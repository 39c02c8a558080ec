"""Parses discovery responses; an invalid part affects only itself.

An aggregated server may return anything for its group. A null is an absent field, as everywhere in
the API. A resource whose name, kind or scope can't be read is skipped, and any other value of the
wrong type counts as absent.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from listwatch.client.resource import Resource
from listwatch.errors import FrameError


class Served(NamedTuple):
    """The resources in a response, and the group versions that it reports as incomplete."""

    resources: Sequence[Resource]
    unavailable: Sequence[str] = ()


def decode(body: bytes, path: str) -> Mapping[str, Any]:
    """Return a body as a mapping.

    Raises:
        FrameError: it is not a mapping.
    """
    try:
        try:
            value = msgspec.json.decode(body)
        except msgspec.DecodeError:  # stricter than Go about surrogates and invalid UTF-8
            value = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise FrameError(f"{path} did not return a discovery document")
    return value


def is_aggregated(answer: Mapping[str, Any]) -> bool:
    """Return whether the response is aggregated discovery."""
    return _text(answer, "kind") == "APIGroupDiscoveryList"


def aggregated(answer: Mapping[str, Any]) -> Served:
    """Parse an APIGroupDiscoveryList."""
    resources: list[Resource] = []
    unavailable: list[str] = []
    for group in _mappings(answer, "items"):
        name = _text(_mapping(group, "metadata"), "name")
        for item in _mappings(group, "versions"):
            version = _text(item, "version")
            if not version:
                continue
            found = [
                _aggregated(resource, name, version) for resource in _mappings(item, "resources")
            ]
            resources += [resource for resource in found if resource is not None]
            # Stale: an aggregated server does not respond, and its last resources are shown.
            if _text(item, "freshness") == "Stale" or None in found:
                unavailable.append(f"{name}/{version}")
    return Served(resources, unavailable)


def _aggregated(item: Mapping[str, Any], group: str, version: str) -> Resource | None:
    plural, scope = _text(item, "resource"), _text(item, "scope")
    response_kind = _mapping(item, "responseKind")
    if not plural or item.get("scope", scope) not in (None, scope):
        return None
    subresources = [sub for sub in _mappings(item, "subresources") if _text(sub, "subresource")]
    types = (
        (_text(sub, "subresource"), *_type(_mapping(sub, "responseKind"), group, version))
        for sub in subresources
    )
    return Resource(
        group=group,
        version=version,
        plural=plural,
        kind=_text(response_kind, "kind"),
        namespaced=scope == "Namespaced",
        singular=_text(item, "singularResource"),
        verbs=_texts(item, "verbs"),
        short_names=_texts(item, "shortNames"),
        categories=_texts(item, "categories"),
        subresources=tuple(_text(sub, "subresource") for sub in subresources),
        subresource_types=tuple(type_ for type_ in types if type_[2]),
    )


def core_versions(answer: Mapping[str, Any]) -> Sequence[str]:
    """Parse an APIVersions: the versions of the core group."""
    return _texts(answer, "versions")


def group_versions(answer: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Parse an APIGroupList: groups and versions, each group's preferred version first."""
    found: list[tuple[str, str]] = []
    for group in _mappings(answer, "groups"):
        versions = [_text(item, "version") for item in _mappings(group, "versions")]
        preferred = _text(_mapping(group, "preferredVersion"), "version")
        versions = sorted(versions, key=lambda version: version != preferred)
        if name := _text(group, "name"):
            found += [(name, version) for version in versions if version]
    return found


def plain(answer: Mapping[str, Any], group: str, version: str) -> Served:
    """Parse the APIResourceList of one group version."""
    listed = _mappings(answer, "resources")
    resources = [
        _plain(item, group, version, listed) for item in listed if "/" not in _text(item, "name")
    ]
    odd = [f"{group}/{version}"] if None in resources else []
    return Served([resource for resource in resources if resource is not None], odd)


def _plain(
    item: Mapping[str, Any], group: str, version: str, listed: Sequence[Mapping[str, Any]]
) -> Resource | None:
    plural, namespaced = _text(item, "name"), item.get("namespaced")
    if not plural or not isinstance(namespaced, bool | None):
        return None
    subresources = [
        (name.removeprefix(f"{plural}/"), sub)
        for sub in listed
        if (name := _text(sub, "name")).startswith(f"{plural}/")
    ]
    types = ((name, *_type(sub, group, version)) for name, sub in subresources)
    return Resource(
        group=group,
        version=version,
        plural=plural,
        kind=_text(item, "kind"),
        namespaced=bool(namespaced),
        singular=_text(item, "singularName"),
        verbs=_texts(item, "verbs"),
        short_names=_texts(item, "shortNames"),
        categories=_texts(item, "categories"),
        subresources=tuple(name for name, _ in subresources),
        subresource_types=tuple(type_ for type_ in types if type_[2]),
    )


def _type(item: Mapping[str, Any], group: str, version: str) -> tuple[str, str]:
    """Return the apiVersion and kind of an entry, by default those of the group version."""
    own = _text(item, "version")
    if own:
        group, version = _text(item, "group"), own
    return f"{group}/{version}" if group else version, _text(item, "kind")


def _text(value: Mapping[str, Any], field: str) -> str:
    found = value.get(field)
    return found if isinstance(found, str) else ""


def _texts(value: Mapping[str, Any], field: str) -> tuple[str, ...]:
    found = value.get(field)
    return tuple(t for t in found if isinstance(t, str)) if isinstance(found, list) else ()


def _mapping(value: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    found = value.get(field)
    return found if isinstance(found, dict) else {}


def _mappings(value: Mapping[str, Any], field: str) -> Sequence[Mapping[str, Any]]:
    found = value.get(field)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
