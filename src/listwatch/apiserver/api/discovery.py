"""Discovery of groups, versions and resources, plain and aggregated."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec
from aiohttp.web_response import Response

from listwatch.apiserver.http.call import Call
from listwatch.apiserver.http.negotiation import Representation, Target
from listwatch.apiserver.kinds.catalog import kind_of
from listwatch.apiserver.kinds.resources import APIResource, Subresource
from listwatch.apiserver.kinds.table import ResourceTable

Object = dict[str, Any]
VERSION: Object = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2+listwatch",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "python",
    "platform": "linux/amd64",
}
_AGGREGATED = Target("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList")


def api_versions(address: str) -> Object:
    """Return the response to /api."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def group(table: ResourceTable, name: str) -> Object:
    """Return one group, without kind."""
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version}
        for version in table.groups()[name]
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def group_list(table: ResourceTable) -> Object:
    """Return the response to /apis."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            group(table, name) for name, versions in table.groups().items() if name and versions
        ],
    }


#: A real server's order of the verbs of custom resources.
_CUSTOM_VERBS = (
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
)


def _verbs(resource: APIResource) -> list[str]:
    if resource.custom is None:
        return sorted(resource.verbs)
    return [verb for verb in _CUSTOM_VERBS if verb in resource.verbs]


def _row(resource: APIResource) -> Object:
    row: Object = {
        "name": resource.name,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _verbs(resource),
    }
    if resource.short_names:
        row["shortNames"] = list(resource.short_names)
    if resource.categories:
        row["categories"] = list(resource.categories)
    if {"list", "watch"} <= resource.verbs:
        row["storageVersionHash"] = _storage_hash(resource)
    return row


def _storage_hash(resource: APIResource) -> str:
    import base64  # noqa: PLC0415 - only used here
    import hashlib  # noqa: PLC0415 - only used here

    stored = kind_of(resource).stored_as or f"{resource.group}/{resource.version}"
    text = f"{stored}/{resource.kind}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def _subresource_row(resource: APIResource, sub: Subresource) -> Object:
    row: Object = {
        "name": f"{resource.name}/{sub.name}",
        "singularName": "",
        "namespaced": resource.namespaced,
    }
    if sub.version:
        row["group"] = sub.group
        row["version"] = sub.version
    row["kind"] = sub.kind
    row["verbs"] = sorted(sub.verbs)
    return row


def resource_list(table: ResourceTable, group_name: str, version: str) -> Object:
    """Return the resources of one group version."""
    rows = []
    for resource in table.of_version(group_name, version):
        rows.append(_row(resource))
        rows += [
            _subresource_row(resource, sub) for _, sub in sorted(resource.subresources.items())
        ]
    answer: Object = {"kind": "APIResourceList"}
    if group_name:
        answer["apiVersion"] = "v1"
    answer["groupVersion"] = f"{group_name}/{version}" if group_name else version
    answer["resources"] = rows
    return answer


def _aggregated_version(table: ResourceTable, group_name: str, version: str) -> msgspec.Raw:
    resources = tuple(table.of_version(group_name, version))
    if any(resource.custom is not None for resource in resources):
        return _encoded_version(version, resources)
    return _built_in_version(version, resources)


def _encoded_version(version: str, served: Iterable[APIResource]) -> msgspec.Raw:
    resources = []
    for resource in served:
        custom = resource.custom is not None
        row: Object = {
            "resource": resource.name,
            "responseKind": {
                "group": resource.group if custom else "",
                "version": resource.version if custom else "",
                "kind": resource.kind,
            },
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "singularResource": resource.singular,
            "verbs": _verbs(resource),
        }
        if resource.short_names:
            row["shortNames"] = list(resource.short_names)
        if resource.categories:
            row["categories"] = list(resource.categories)
        if resource.subresources:
            row["subresources"] = [
                {
                    "subresource": name,
                    "responseKind": {
                        "group": sub.group or (resource.group if custom else ""),
                        "version": sub.version or (resource.version if custom else ""),
                        "kind": sub.kind,
                    },
                    "verbs": sorted(sub.verbs),
                }
                for name, sub in sorted(resource.subresources.items())
            ]
        resources.append(row)
    found = {"version": version, "resources": resources, "freshness": "Current"}
    return msgspec.Raw(msgspec.json.encode(found))


@lru_cache(maxsize=128)
def _built_in_version(version: str, served: tuple[APIResource, ...]) -> msgspec.Raw:
    """Return the same for built-in resources, which all servers share."""
    return _encoded_version(version, served)


def is_aggregated(_: str, target: Target | None) -> bool:
    """Return whether a client wants the aggregated form."""
    return target == _AGGREGATED


def answer_aggregated(call: Call, table: ResourceTable, media_type: str, *, core: bool) -> Response:
    """Respond with all of /api (core) or /apis, unless the client already has it.

    Like `ServeHTTPWithETag` of apiserver/pkg/endpoints/discovery/aggregated.
    """
    if core not in table.discovery:
        document = msgspec.json.encode(_aggregated(table, core=core))
        table.discovery[core] = document, f'"{hashlib.sha512(document).hexdigest().upper()}"'
    body, tag = table.discovery[core]
    headers = {"ETag": tag, "Vary": "Accept", "Cache-Control": "public"}
    if call.header("If-None-Match") == tag:
        return Response(status=304, headers=headers)
    group, version, kind = _AGGREGATED
    call.representation = Representation(media_type)
    headers["Content-Type"] = f"{media_type};g={group};v={version};as={kind}"
    return call.answer_json(body + b"\n", headers=headers)


def _aggregated(table: ResourceTable, *, core: bool) -> Object:
    items = []
    for name, versions in table.groups().items():
        if (not name) is not core or not versions:
            continue
        items.append(
            {
                "metadata": {"name": name} if name else {},
                "versions": [_aggregated_version(table, name, each) for each in versions],
            }
        )
    return {
        "kind": _AGGREGATED.kind,
        "apiVersion": f"{_AGGREGATED.group}/{_AGGREGATED.version}",
        "metadata": {},
        "items": items,
    }
