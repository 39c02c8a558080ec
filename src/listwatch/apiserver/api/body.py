"""Decodes request bodies into objects of the expected kind."""

from collections.abc import Mapping
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.http.negotiation import JSON, PROTOBUF, YAML
from listwatch.apiserver.kinds.catalog import apply_defaults
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.schema.causes import quoted
from listwatch.schema.facts import OBJECT_META, facts
from listwatch.schema.fast_typed import QuickDecoder
from listwatch.schema.parsing import parse_json, parse_yaml
from listwatch.schema.structural import apply_schema_defaults, embedded, prune
from listwatch.schema.typed import Conversion, Pairs, WrongTypeError

Object = dict[str, Any]


_ACCEPTED = f"{JSON}, {YAML}, {PROTOBUF}"


_CUSTOM_ACCEPTED = f"{JSON}, {YAML}"


_STRUCT_WORDS = (
    'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string '
    '"json:\\"kind,omitempty\\"" }'
)


class Decoded(msgspec.Struct):
    """A decoded body: the object without kind and apiVersion, and strict decoding's problems."""

    obj: Object
    problems: list[str]


def media_type_of(content_type: str) -> str:
    """Return the bare media type of a Content-Type header; none means JSON."""
    return content_type.partition(";")[0].strip().lower() or JSON


def unsupported(resource: APIResource) -> Exception:
    """Return the refusal of a body's media type."""
    kinds = _ACCEPTED if resource.custom is None else _CUSTOM_ACCEPTED
    return refusal.unsupported_media_type(
        "the body of the request was in an unknown format - accepted media types include: " + kinds
    )


def summary(data: bytes) -> str:
    """Return the start of a body for messages."""
    if not data:
        return "<empty>"
    dots = " ..." if len(data) > 30 else ""
    if data[:1] == b"{":
        return data[:30].decode(errors="replace") + dots
    return data[:30].hex() + dots


def decode_body(
    data: bytes, content_type: str, resource: APIResource, quick: QuickDecoder | None = None
) -> Decoded:
    """Decode a body of a create or PUT into an object of the resource's kind.

    Args:
        data: the body.
        content_type: the header; "" means JSON.
        resource: determines the kind.
        quick: the fast decoder for kinds with many bodies, tried first.

    Raises:
        UnsupportedMediaTypeError: the server does not support the media type.
        BadRequestError: the body is not of that type, or of another kind.
    """
    media_type = media_type_of(content_type)
    if media_type == JSON:
        if quick is not None and resource.custom is None:
            obj = quick.decode(data, resource.schema)
            if obj is not None and _is_meant(obj, resource):
                return _complete(obj, resource, [], default=True)
        try:
            value = parse_json(data)
        except ValueError as error:
            raise _unrecognized(resource, f"json parse error: {error}", data) from None
    elif media_type == YAML:
        try:
            value = parse_yaml(data)
        except ValueError as error:
            raise _unrecognized(resource, str(error), data) from None
    elif media_type == PROTOBUF and resource.custom is None:
        from listwatch.apiserver.http.protobuf import decode_object  # noqa: PLC0415 - rarely needed

        value = decode_object(data, resource)
    else:
        raise unsupported(resource)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        word = {list: "array", str: "string", bool: "bool"}.get(type(value), "number")
        raise _unrecognized(
            resource,
            f"json parse error: json: cannot unmarshal {word} into Go value of type "
            f"{_STRUCT_WORDS}",
            data,
        )
    return decode_value(value, resource, data)


def _unrecognized(resource: APIResource, why: str, data: bytes) -> Exception:
    return refusal.bad_request(
        f"the object provided is unrecognized (must be of type {resource.kind}): couldn't get "
        f"version/kind; {why} ({summary(data)})"
    )


def decode_value(
    value: Object,
    resource: APIResource,
    data: bytes = b"",
    *,
    default: bool = True,
) -> Decoded:
    """Turn a decoded JSON object into one of the resource's kind.

    Args:
        value: the JSON object; may be kept and changed.
        resource: determines the kind.
        data: the body, for the message of a refusal.
        default: whether to set the kind's defaults.

    Raises:
        BadRequestError: the value is of another kind, or a field has the wrong type.
    """
    if resource.custom is not None:
        obj, problems = decode_custom(value, resource, data)
        return Decoded(obj, problems)
    try:
        check_kind(value, resource)
        conversion = Conversion()
        obj = conversion.convert(value, resource.schema)
    except WrongTypeError as error:
        kind = value.get("kind") or resource.kind
        version = _short(value.get("apiVersion") or resource.api_version)
        raise refusal.bad_request(
            f'{kind} in version "{version}" cannot be handled as a {resource.kind}: {error}'
        ) from None
    return _complete(obj, resource, conversion.problems, default=default)


def _is_meant(obj: Object, resource: APIResource) -> bool:
    """Return whether a body's kind and version match the path."""
    kind, version = obj.get("kind"), obj.get("apiVersion")
    return kind in {None, resource.kind} and version in {None, resource.api_version}


def _complete(obj: Object, resource: APIResource, problems: list[str], *, default: bool) -> Decoded:
    obj.pop("kind", None)
    obj.pop("apiVersion", None)
    if not isinstance(obj.get("metadata"), dict):
        obj["metadata"] = {}
    if default:
        apply_defaults(resource, obj)
    return Decoded(obj, problems)


def _short(version: object) -> str:
    return str(version).rpartition("/")[2]


_INTERNAL_PACKAGES = {"": "core"}


def check_kind(value: Mapping[str, Any], resource: APIResource) -> None:
    """Refuse a body of another kind or version than the path's; both may be missing.

    Raises:
        WrongTypeError: the kind or version is another; the message is the server's.
    """
    kind = value.get("kind") or resource.kind
    version = value.get("apiVersion") or resource.api_version
    for key, given in (("kind", kind), ("apiVersion", version)):
        if not isinstance(given, str):
            word = "number" if isinstance(given, int | float) else type(given).__name__
            word = {"list": "array", "dict": "object", "bool": "bool"}.get(word, word)
            raise WrongTypeError(
                f"couldn't get version/kind; json parse error: json: cannot unmarshal {word} "
                f"into Go struct field .{key} of type string"
            )
    if kind == resource.kind and version == resource.api_version:
        return
    group, _, short = version.rpartition("/")
    if facts().definition_name(group, short, kind) is None:
        raise WrongTypeError(
            f'no kind "{kind}" is registered for version "{version}" in scheme '
            '"pkg/api/legacyscheme/scheme.go:30"'
        )
    package = _INTERNAL_PACKAGES.get(resource.group, resource.group.partition(".")[0])
    raise WrongTypeError(
        f"converting ({short}.{kind}) to ({package}.{resource.kind}): unknown conversion"
    )


def decode_custom(value: Object, resource: APIResource, data: bytes) -> tuple[Object, list[str]]:
    """Turn a decoded body into an object of a custom resource.

    Raises:
        BadRequestError: the kind is missing, or version or metadata are wrong.
    """
    kind, version = value.get("kind"), value.get("apiVersion")
    if not kind or not isinstance(kind, str):
        text = data.decode(errors="replace")
        raise refusal.bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): Object "
            f"'Kind' is missing in '{text}' ({text[:30]}{' ...' if len(text) > 30 else ''})"
        )
    if not version or not isinstance(version, str):
        raise refusal.bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): Object "
            f"'apiVersion' is missing in '{data.decode(errors='replace')}'"
        )
    if version != resource.api_version:
        raise refusal.bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({resource.api_version})"
        )
    problems: list[str] = []
    _repeated(value, "", problems)
    conversion = Conversion()
    try:
        metadata = conversion.convert(
            value.get("metadata") or {}, facts().definition(OBJECT_META), "metadata"
        )
    except WrongTypeError as error:
        raise refusal.bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: {error}"
        ) from None
    obj: Object = {"metadata": metadata}
    obj |= {
        key: _plain(each)
        for key, each in value.items()
        if key not in {"metadata", "kind", "apiVersion"}
    }
    if kind != resource.kind:
        obj["kind"] = kind  # validation refuses it
    _convert_embedded(obj, resource, conversion)
    unknown: list[str] = []
    prune(obj, resource.schema, "", unknown)
    apply_schema_defaults(obj, resource.schema)
    return obj, [*problems, *conversion.problems, *unknown]


def _convert_embedded(obj: Object, resource: APIResource, conversion: Conversion) -> None:
    """Decode the metadata of the objects within an object, in place."""
    for place, each in embedded(obj, resource.schema):
        where = f"{place}.metadata"
        try:
            each["metadata"] = conversion.convert(
                each["metadata"], facts().definition(OBJECT_META), where
            )
        except WrongTypeError as error:
            raise refusal.bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a '
                f"{resource.kind}: {where}: Invalid value: {quoted(each['metadata'])}: {error}"
            ) from None


def _repeated(value: Any, place: str, problems: list[str]) -> None:
    if isinstance(value, dict):
        if isinstance(value, Pairs):
            prefix = f"{place}." if place else ""
            problems += [f'duplicate field "{prefix}{key}"' for key in value.repeated]
        for key, each in value.items():
            _repeated(each, f"{place}.{key}" if place else key, problems)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _repeated(each, f"{place}[{index}]", problems)


def _plain(value: Any) -> Any:
    """Return a JSON value as Go writes it: whole numbers without a fraction."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    return value
