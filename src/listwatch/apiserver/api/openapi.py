"""The OpenAPI documents, which kubectl uses to explain and check objects."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from aiohttp.web_response import Response, StreamResponse

from listwatch.apiserver.api.openapi_v2 import (
    PROTOBUF_V2,
    custom_schema_v2,
    encode_document,
    path_item_v2,
    wants_protobuf,
)
from listwatch.apiserver.http.call import Call, text_answer
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.table import ResourceTable
from listwatch.schema.facts import OBJECT_META

Object = dict[str, Any]
_GVK = "x-kubernetes-group-version-kind"
_DELETE_OPTIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"


def answer_openapi(call: Call, table: ResourceTable, path: str) -> StreamResponse:
    """Answer a request below /openapi."""
    if path == "/openapi/v3":
        return call.answer_value(_index(table))
    if path.startswith("/openapi/v3/"):
        parts = path.removeprefix("/openapi/v3/").split("/")
        group = _group_of(parts)
        if group is None or group not in table.groups():
            return text_answer("404 page not found\n", 404)
        document = _documents(table).get("/".join(parts))
        if document is None:
            return text_answer("404 page not found\n", 404)
        return _document_answer(call, path, document)
    if path == "/openapi/v2":
        plain, packed = _documents_v2(table)
        if wants_protobuf(call.header("Accept")):
            return call.answer(packed, content_type=PROTOBUF_V2)
        return call.answer(plain)
    return text_answer("404 page not found\n", 404)


def _document_answer(call: Call, path: str, document: bytes) -> StreamResponse:
    """Return a document; one requested by its hash never changes (`handler3` of kube-openapi)."""
    tag = _hash_of(document)
    asked = call.first("hash")
    if asked and asked != tag:
        return Response(status=301, headers={"Location": f"{path}?hash={tag}"})
    headers = {"ETag": f'"{tag}"', "Vary": "Accept"}
    if asked:
        headers["Cache-Control"] = "public, immutable"
    if call.header("If-None-Match") == headers["ETag"]:
        return Response(status=304, headers=headers)
    return call.answer(document, headers=headers)


def _hash_of(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest().upper()


def _group_of(parts: list[str]) -> str | None:
    if parts[0] == "api" and len(parts) == 2:
        return ""
    return parts[1] if parts[0] == "apis" and len(parts) == 3 else None


def _index(table: ResourceTable) -> Object:
    return {
        "paths": {
            name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={_hash_of(document)}"}
            for name, document in _documents(table).items()
        }
    }


def _documents(table: ResourceTable) -> Mapping[str, bytes]:
    """Return the document of every group version, rebuilt when the table has changed."""
    kept = table.documents
    if kept is None:
        kept = {}
        for group, versions in table.groups().items():
            for version in versions:
                name = f"apis/{group}/{version}" if group else f"api/{version}"
                kept[name] = msgspec.json.encode(_document(table, group, version))
        table.documents = kept
    return kept


def _document(table: ResourceTable, group: str, version: str) -> Object:
    resources = list(table.of_version(group, version))
    names: list[str] = [OBJECT_META, _DELETE_OPTIONS]
    custom: Object = {}
    for resource in resources:
        if resource.custom is not None:
            custom[_custom_name(resource)] = _custom_schema(resource)
            continue
        name = table.facts.definition_name(group, version, resource.kind)
        if name is not None:
            names.append(name)
        list_name = table.facts.definition_name(group, version, resource.list_kind)
        if list_name is not None:
            names.append(list_name)
    schemas = {name: _version_3(table.facts.definitions[name]) for name in _closure(table, names)}
    paths: Object = {}
    for resource in resources:
        paths |= _paths(resource)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.2"},
        "paths": paths,
        "components": {"schemas": {**schemas, **custom}},
    }


def _closure(table: ResourceTable, names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    waiting = [name for name in names if name in table.facts.definitions]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += _references(table.facts.definitions[name])
    return sorted(seen)


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        found = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        for each in value.values():
            found += _references(each)
        return found
    if isinstance(value, list):
        return [name for each in value for name in _references(each)]
    return []


def _version_3(value: Any) -> Any:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            return {"allOf": [{"$ref": f"#/components/schemas/{value['$ref']}"}], "default": {}}
        if value.get("format") == "int-or-string":
            return {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"}
        return {key: _version_3(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_version_3(each) for each in value]
    return value


def _custom_name(resource: APIResource) -> str:
    reverse = ".".join(reversed(resource.group.split(".")))
    return f"{reverse}.{resource.version}.{resource.kind}"


def _custom_schema(resource: APIResource) -> Object:
    assert resource.custom is not None  # noqa: S101 - called for custom resources only
    raw: Object = dict(resource.custom["raw"]) or {"type": "object"}
    raw["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        **(raw.get("properties") or {}),
        "metadata": {"allOf": [{"$ref": f"#/components/schemas/{OBJECT_META}"}]},
    }
    raw[_GVK] = [_kind(resource)]
    return raw


def _kind(resource: APIResource) -> Object:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string"}}
    for name in ("dryRun", "fieldManager", "fieldValidation", "pretty")
]


def _paths(resource: APIResource) -> Object:
    root = f"/apis/{resource.group}" if resource.group else "/api"
    place = "/namespaces/{namespace}" if resource.namespaced else ""
    base = f"{root}/{resource.version}{place}/{resource.name}"
    kind = _kind(resource)

    def operation(action: str, *, parameters: bool = False) -> Object:
        made: Object = {
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": action,
            _GVK: kind,
        }
        if parameters:
            made["parameters"] = _PARAMETERS
        return made

    collection: Object = {}
    single: Object = {}
    verbs = resource.verbs
    if "list" in verbs:
        collection["get"] = operation("list")
    if "create" in verbs:
        collection["post"] = operation("post", parameters=True)
    if "get" in verbs:
        single["get"] = operation("get")
    if "update" in verbs:
        single["put"] = operation("put", parameters=True)
    if "patch" in verbs:
        single["patch"] = operation("patch", parameters=True)
    if "delete" in verbs:
        single["delete"] = operation("delete", parameters=True)
    paths = {base: collection}
    if single:
        paths[base + "/{name}"] = single
    return paths


def _documents_v2(table: ResourceTable) -> tuple[bytes, bytes]:
    """Return the version 2 document in JSON and in protobuf, cached like the others."""
    kept = table.documents_v2
    if kept is None:
        document = _version_2(table)
        kept = msgspec.json.encode(document), encode_document(document)
        table.documents_v2 = kept
    return kept


def _version_2(table: ResourceTable) -> Object:
    def pointed(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: f"#/definitions/{each}"
                if key == "$ref" and isinstance(each, str)
                else pointed(each)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [pointed(each) for each in value]
        return value

    definitions: Object = {
        name: pointed(definition) for name, definition in table.facts.definitions.items()
    }
    paths: Object = {}
    for group, versions in table.groups().items():
        for version in versions:
            for resource in table.of_version(group, version):
                for path, item in _paths(resource).items():
                    paths[path] = path_item_v2(item)
                if resource.custom is not None:
                    schema = custom_schema_v2(_custom_schema(resource))
                    if "properties" in schema:  # otherwise anything is allowed
                        schema["properties"]["metadata"] = {"$ref": f"#/definitions/{OBJECT_META}"}
                    definitions[_custom_name(resource)] = schema
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.36.2"},
        "paths": paths,
        "definitions": definitions,
    }
