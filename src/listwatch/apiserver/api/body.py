"""Request bodies: from bytes to a decoded object of the expected kind."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from listwatch.apiserver import refusal
from listwatch.apiserver.http.negotiation import JSON, PROTOBUF, YAML
from listwatch.apiserver.kinds.defaults import apply_defaults
from listwatch.apiserver.kinds.resources import Resource
from listwatch.schema.facts import Form, Schema, facts
from listwatch.schema.fast_typed import QuickDecoder
from listwatch.schema.typed import Conversion, Pairs, WrongTypeError

Object = dict[str, Any]

_ACCEPTED = f"{JSON}, {YAML}, {PROTOBUF}"
_CUSTOM_ACCEPTED = f"{JSON}, {YAML}"
#: So many nodes may be made of any YAML by its aliases; of a long one, more.
_ALIASES_LIMIT = 100_000
_STRUCT_WORDS = (
    'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string '
    '"json:\\"kind,omitempty\\"" }'
)


class Decoded(msgspec.Struct):
    """A body: the object without kind and apiVersion, and what a strict decoder refuses."""

    obj: Object
    problems: list[str]


def media_type_of(content_type: str) -> str:
    """Return the bare media type of a Content-Type header; none means JSON."""
    return content_type.partition(";")[0].strip().lower() or JSON


def unsupported(resource: Resource) -> Exception:
    """Return the refusal of a body's media type."""
    kinds = _ACCEPTED if resource.custom is None else _CUSTOM_ACCEPTED
    return refusal.unsupported_media_type(
        "the body of the request was in an unknown format - accepted media types include: " + kinds
    )


def summary(data: bytes) -> str:
    """Return the beginning of a body as the messages show it."""
    if not data:
        return "<empty>"
    dots = " ..." if len(data) > 30 else ""
    if data[:1] == b"{":
        return data[:30].decode(errors="replace") + dots
    return data[:30].hex() + dots


def parse_json(data: bytes) -> Any:
    """Decode JSON; objects in which a key is repeated become `Pairs`.

    Raises:
        ValueError: in the words of Go's decoder.
    """
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_slowly(data)
    if not may_repeat(data, value):
        return value
    return _parse_slowly(data)


def may_repeat(data: bytes, value: Any) -> bool:
    """Tell whether some object in the body may have a key twice.

    Each key and string is two quotes: where the quotes of the value written anew are as many,
    nothing was lost. Escaped quotes make the counts differ either way, and are looked at slowly.
    """
    return data.count(b'"') != msgspec.json.encode(value).count(b'"') or b"\\u0022" in data


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else Pairs(pairs)


def _parse_slowly(data: bytes) -> Any:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="replace")
    if "\\ud" in text or "\\uD" in text:
        text = _ESCAPE.sub(_whole_escape, text)
    try:
        return json.loads(text, object_pairs_hook=_pairs, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(_go_words(error)) from None
    except RecursionError:
        raise ValueError("exceeded max depth") from None


_ESCAPE = re.compile(
    r"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def _whole_escape(found: re.Match[str]) -> str:
    # half of a pair is no character; Go's decoder takes the replacement for it
    return r"\ufffd" if found["half"] else found[0]


def _no_constant(word: str) -> Any:
    raise ValueError(f"invalid character '{word[0]}' looking for beginning of value")


def _go_words(error: json.JSONDecodeError) -> str:
    text, at = error.doc, error.pos
    if error.msg.startswith("Unterminated") or at >= len(text.rstrip()):
        return "unexpected end of JSON input"
    shown = repr(text[at]) if text[at] != '"' else "'\"'"
    message = error.msg
    if message.startswith("Expecting property name"):
        where = "looking for beginning of object key string"
    elif message.startswith("Extra data"):
        where = "after top-level value"
    elif message.startswith("Expecting ':'"):
        where = "after object key"
    elif message.startswith("Expecting ','"):
        where = f"after {_container(text[:at])}"
    elif message.startswith("Invalid control"):
        where = "in string literal"
    elif message.startswith("Invalid"):
        where = "in string escape code"
    else:
        where = "looking for beginning of value"
    return f"invalid character {shown} {where}"


def _container(text: str) -> str:
    depth: list[str] = []
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', text):
        mark = found[0]
        if mark in "[{":
            depth.append(mark)
        elif mark in "]}" and depth:
            depth.pop()
    return "array element" if depth and depth[-1] == "[" else "object key:value pair"


def parse_yaml(data: bytes) -> Any:
    """Decode YAML.

    Raises:
        ValueError: in the words of the server.
    """
    try:
        value = _load_yaml(data)
    except yaml.YAMLError as error:
        line = _yaml_line(error)
        problem = getattr(error, "problem", None) or "cannot be read"
        raise ValueError(f"error converting YAML to JSON: yaml: {line}{problem}") from None
    except RecursionError:
        raise ValueError("error converting YAML to JSON: yaml: exceeded max depth") from None
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"error converting YAML to JSON: {error}") from None


def _load_yaml(data: bytes) -> Any:
    loader = _Loader(data)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded_size(node, {}) > max(_ALIASES_LIMIT, 10 * len(data)):
            raise yaml.MarkedYAMLError(problem="document contains excessive aliasing")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded_size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many nodes there are where each alias is what it stands for.

    A few hundred bytes can stand for gigabytes, each level for several times the one below. Go's
    parsers refuse that, too (`yaml.v3/decode.go`, allowedAliasRatio).
    """
    size = known.get(id(node))
    if size is None:
        known[id(node)] = 0  # an anchor within itself is refused later
        size = 1
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                size += _expanded_size(key, known) + _expanded_size(value, known)
        elif isinstance(node, yaml.SequenceNode):
            for each in node.value:
                size += _expanded_size(each, known)
        known[id(node)] = size
    return size


def _yaml_line(error: yaml.YAMLError) -> str:
    # the lines as Go's parser counts them: its scanner is one further than its grammar
    mark = getattr(error, "problem_mark", None)
    number = 0 if mark is None else mark.line
    if number and isinstance(error, yaml.scanner.ScannerError):
        number += 1
    if not number:
        mark = getattr(error, "context_mark", None)
        number = 0 if mark is None else mark.line
    return f"line {number}: " if number else ""


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]  # chosen at run time
    """A safe loader that leaves time stamps as the strings that JSON has."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def decode_body(
    data: bytes, content_type: str, resource: Resource, quick: QuickDecoder | None = None
) -> Decoded:
    """Decode a body of a create or PUT into an object of the resource's kind.

    Args:
        data: the body.
        content_type: the header; "" means JSON.
        resource: says which kind.
        quick: tries first, if given; for kinds of which many bodies come.

    Raises:
        UnsupportedMediaTypeError: a media type that bodies don't come in.
        BadRequestError: not of that type, or of another kind.
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


def _unrecognized(resource: Resource, why: str, data: bytes) -> Exception:
    return refusal.bad_request(
        f"the object provided is unrecognized (must be of type {resource.kind}): couldn't get "
        f"version/kind; {why} ({summary(data)})"
    )


def decode_value(
    value: Object,
    resource: Resource,
    data: bytes = b"",
    *,
    default: bool = True,
) -> Decoded:
    """Turn a decoded JSON object into one of the resource's kind.

    Args:
        value: the JSON object; may be kept and changed.
        resource: says which kind.
        data: the body, for the words of a refusal.
        default: whether to fill in the kind's defaults.

    Raises:
        BadRequestError: of another kind, or with a value of another type.
    """
    if resource.custom is not None:
        from listwatch.apiserver.kinds.custom_resources import decode_custom  # noqa: PLC0415 - a cycle

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


def _is_meant(obj: Object, resource: Resource) -> bool:
    """Tell whether a body's kind and version are those of the path."""
    kind, version = obj.get("kind"), obj.get("apiVersion")
    return kind in {None, resource.kind} and version in {None, resource.api_version}


def _complete(obj: Object, resource: Resource, problems: list[str], *, default: bool) -> Decoded:
    obj.pop("kind", None)
    obj.pop("apiVersion", None)
    if not isinstance(obj.get("metadata"), dict):
        obj["metadata"] = {}
    if default:
        apply_defaults(resource.storage, resource.group, obj)
    return Decoded(obj, problems)


def _short(version: object) -> str:
    return str(version).rpartition("/")[2]


_INTERNAL_PACKAGES = {"": "core"}


def check_kind(value: Mapping[str, Any], resource: Resource) -> None:
    """Refuse a body of another kind or version than the path's; absent ones are taken as meant.

    Raises:
        WrongTypeError: with the server's words.
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


def is_struct(schema: Schema) -> bool:
    """Tell whether a type has named fields."""
    return schema.form is Form.STRUCT
