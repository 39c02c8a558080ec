"""A resource type and the reviews of its objects, for tests of hooks."""

import base64
from typing import Annotated, Any

import msgspec

from listwatch.resources import ListMap, ObjectMeta, resource


class Port(msgspec.Struct):
    name: str
    port: int


class WebsiteSpec(msgspec.Struct):
    host: str = "example.com"
    size: int = 1
    ports: Annotated[list[Port], ListMap("name")] = []


@resource("example.com", "v1")
class Website(msgspec.Struct):
    metadata: ObjectMeta
    spec: WebsiteSpec


def manifest(name: str = "shop", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def asked(
    obj: Any = None, old: Any = None, operation: str = "CREATE", **more: Any
) -> dict[str, Any]:
    """Return the request of a review, without nulls."""
    metadata = (obj or old or {}).get("metadata") or {}
    request = {
        "uid": "u1",
        "operation": operation,
        "kind": {"group": "example.com", "version": "v1", "kind": "Website"},
        "resource": {"group": "example.com", "version": "v1", "resource": "websites"},
        "name": metadata.get("name"),
        "namespace": "default",
        "userInfo": {"username": "jane", "groups": ["editors"]},
        "object": obj,
        "oldObject": old,
        **more,
    }
    return {key: value for key, value in request.items() if value is not None}


def operations(response: Any) -> list[dict[str, Any]]:
    """Return the operations of a response's patch."""
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    found: list[dict[str, Any]] = msgspec.json.decode(base64.b64decode(response["patch"]))
    return found
