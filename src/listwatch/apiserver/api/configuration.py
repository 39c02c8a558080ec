"""Reads an apply configuration from a body, and checks it against its type."""

from collections.abc import Mapping
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.http.call import Call
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.field_sets import item_key, key_of
from listwatch.schema.causes import go_quoted
from listwatch.schema.facts import ANY, Form, Schema
from listwatch.schema.parsing import parse_yaml

Object = dict[str, Any]


def shown_key(key: str) -> str:
    """Return an item's key for messages: `[name="app"]`, or `[="x"]` in a set."""
    if key.startswith("v:"):
        return f"[={key[2:]}]"
    pairs = sorted(msgspec.json.decode(key[2:]).items())
    shown = ",".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in pairs)
    return f"[{shown}]"


class _RejectedError(Exception):
    """A configuration that does not fit the type."""


_SCALAR_WORDS = {
    Form.STRING: (str, "string"),
    Form.BOOLEAN: (bool, "boolean"),
    Form.INTEGER: (int, "numeric (int or float)"),
}


def _check(value: Any, schema: Schema, place: str) -> None:
    """Refuse unknown fields and wrong types, with the messages of apply."""
    form = schema.form
    if form is Form.ANY or value is None:
        return
    if form is Form.STRUCT or form is Form.MAP:
        if not isinstance(value, dict):
            raise _RejectedError(f"{place}: expected map, got {_shown(value)}")
        for key, each in value.items():
            field = schema.fields.get(key) if form is Form.STRUCT else schema.item or ANY
            if field is not None:
                _check(each, field, f"{place}.{key}")
            elif not schema.preserve:
                raise _RejectedError(f"{place}.{key}: field not declared in schema")
    elif form is Form.LIST:
        if not isinstance(value, list):
            raise _RejectedError(f"{place}: expected list, got {_shown(value)}")
        _check_items(value, schema, place)
    elif form in _SCALAR_WORDS:
        kind, words = _SCALAR_WORDS[form]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise _RejectedError(f"{place}: expected {words}, got {_scalar_shown(form, value)}")


def misfit(value: Any, schema: Schema) -> str:
    """Return apply's message about a configuration that does not fit a schema; "" if it fits."""
    try:
        _check(value, schema, "")
    except _RejectedError as error:
        return str(error)
    return ""


def _check_items(value: list[Any], schema: Schema, place: str) -> None:
    seen: set[str] = set()
    for index, each in enumerate(value):
        shown = f"[{index}]"
        if schema.list_type in {"map", "set"}:
            problem = _key_problem(each, schema)
            if problem:
                raise _RejectedError(f"{place}: element {index}: {problem}")
            key = item_key(each, schema)
            shown = shown_key(key)
            if key in seen:
                raise _RejectedError(f"{place}: duplicate entries for key {shown}")
            seen.add(key)
        _check(each, schema.item or ANY, f"{place}{shown}")


def _key_problem(item: Any, schema: Schema) -> str:
    """Return why an item of a set or keyed list has no key; "" if it has one.

    The words are those of structured-merge-diff's `listItemToPathElement`.
    """
    if schema.list_type == "set":
        if item is None:
            return "associative list without keys has an element that's an explicit null"
        if isinstance(item, dict):
            return "associative list without keys has an element that's a map type"
        return (
            "not supported: associative list with lists as elements"
            if isinstance(item, list)
            else ""
        )
    if item is None:
        return "associative list with keys may not have a null element"
    if not isinstance(item, dict):
        return "associative list with keys may not have non-map elements"
    missing = next((key for key in schema.map_keys if key_of(item, schema, key) is None), None)
    if missing is None:
        return ""
    return (
        "associative list with keys has an element that omits key field "
        f"{go_quoted(missing)} (and doesn't have default value)"
    )


_GO_TYPES: Mapping[type, str] = {
    str: "string",
    bool: "bool",
    int: "int64",
    float: "float64",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}


def _scalar_shown(form: Form, value: Any) -> str:
    if form is Form.INTEGER:
        return _GO_TYPES[type(value)]
    if form is Form.STRING:
        return f"&value.valueUnstructured{{Value:{msgspec.json.encode(value).decode()}}}"
    return _shown(value)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"&{{{text}}}"


def configuration(call: Call, resource: APIResource, data: bytes) -> Object:
    """Return the apply configuration in a body, checked against its type.

    Raises:
        BadRequestError: 400, the body is not an object of that kind and name.
        StatusError: 500, it has unknown fields.
    """
    try:
        value = parse_yaml(data)
    except ValueError as error:
        raise refusal.bad_request(f"error decoding YAML: {error}") from None
    if not isinstance(value, dict):
        raise refusal.bad_request("error decoding YAML: the configuration is not an object")
    version, kind = value.get("apiVersion", ""), value.get("kind", "")
    if version != resource.api_version or kind != resource.kind:
        group, _, short = str(version).rpartition("/")
        shown = f"{group}/{short}, Kind={kind}"
        if not version or not kind:
            raise refusal.bad_request(f"invalid object type: {shown}")
        raise refusal.bad_request(
            f"invalid object type: {shown}"
            if kind != resource.kind
            else f"expected the version {resource.api_version}, got {version}"
        )
    metadata = value.get("metadata")
    if metadata is None:
        metadata = value["metadata"] = {}
    if not isinstance(metadata, dict):
        raise refusal.bad_request("metadata must be an object")
    if metadata.get("managedFields") is not None:
        raise refusal.bad_request("metadata.managedFields must be nil")
    metadata.pop("managedFields", None)
    name = metadata.get("name")
    if not name:
        raise refusal.bad_request(
            f"the name of the object ({call.info.name} based on URL) was undeterminable: name "
            "must be provided"
        )
    if name != call.info.name:
        raise refusal.bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({call.info.name})"
        )
    namespace = metadata.get("namespace")
    if namespace and namespace != call.namespace:
        raise refusal.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    try:
        _check(value, resource.schema, "")
    except _RejectedError as error:
        where = f"{namespace or ''}/{name}"
        group, short = resource.group, resource.version
        raise refusal.server_error(
            f"failed to create typed patch object ({where}; {group}/{short}, "
            f"Kind={resource.kind}): {error}"
        ) from None
    return value
