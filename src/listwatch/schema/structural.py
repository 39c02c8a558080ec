"""Structural schemas of custom resources: types, pruning, defaults, validation.

The messages are those of kube-apiserver (`apiextensions-apiserver`, `kube-openapi/pkg/validation`).
"""

import enum
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from listwatch.cel.errors import EvaluationError
from listwatch.schema.causes import Cause, duplicate, invalid_value, not_supported, required
from listwatch.schema.copying import copy_of
from listwatch.schema.facts import ANY, OBJECT_META, Form, Schema, facts

Raw = Mapping[str, Any]

_FORMS = {
    "string": Form.STRING,
    "integer": Form.INTEGER,
    "number": Form.NUMBER,
    "boolean": Form.BOOLEAN,
}


def build_root(raw: Raw | None) -> Schema:
    """Return the type of a custom resource's objects, with apiVersion, kind and metadata."""
    schema = build(raw) if raw else Schema(Form.STRUCT)
    if schema.form is not Form.STRUCT:
        schema.form = Form.STRUCT
    if not raw:
        schema.preserve = True
    schema.fields["apiVersion"] = schema.fields["kind"] = Schema(Form.STRING, "string")
    schema.fields["metadata"] = facts().definition(OBJECT_META)
    return schema


def build(raw: Raw) -> Schema:
    """Return the type that an OpenAPI v3 schema describes."""
    schema = Schema(Form.ANY)
    schema.extra = raw
    schema.preserve = bool(raw.get("x-kubernetes-preserve-unknown-fields"))
    schema.embedded = bool(raw.get("x-kubernetes-embedded-resource"))
    if raw.get("x-kubernetes-int-or-string"):
        schema.form = Form.INT_OR_STRING
        return schema
    kind = raw.get("type")
    if kind == "object":
        extra = raw.get("additionalProperties")
        if isinstance(extra, Mapping) and not raw.get("properties"):
            schema.form = Form.MAP
            schema.item = build(extra)
        elif extra is True and not raw.get("properties"):
            schema.form = Form.MAP
            # any values, but objects lose their fields
            schema.item = build({"nullable": True})
        else:
            schema.form = Form.STRUCT
            schema.fields = {
                key: build(each) for key, each in (raw.get("properties") or {}).items()
            }
            schema.required = frozenset(raw.get("required") or ())
            if schema.embedded:
                schema.fields["apiVersion"] = schema.fields["kind"] = Schema(Form.STRING, "string")
                schema.fields["metadata"] = facts().definition(OBJECT_META)
        schema.atomic = raw.get("x-kubernetes-map-type") == "atomic"
    elif kind == "array":
        schema.form = Form.LIST
        items = raw.get("items")
        schema.item = build(items) if isinstance(items, Mapping) else ANY
        schema.list_type = raw.get("x-kubernetes-list-type") or "atomic"
        schema.map_keys = tuple(raw.get("x-kubernetes-list-map-keys") or ())
    elif kind in _FORMS:
        schema.form = _FORMS[kind]
    return schema


def prune(value: Any, schema: Schema, place: str, problems: list[str]) -> None:
    """Remove the fields that the type lacks, in place, recording each."""
    if isinstance(value, dict):
        if schema.form is Form.STRUCT:
            for key in sorted(value):
                field = schema.fields.get(key)
                here = f"{place}.{key}" if place else key
                if field is not None:
                    if not field.go_name:  # metadata is decoded by its own type
                        prune(value[key], field, here, problems)
                elif not schema.preserve:
                    problems.append(f'unknown field "{here}"')
                    del value[key]
        elif schema.form is Form.MAP and schema.item is not None:
            for key, each in value.items():
                prune(each, schema.item, f"{place}.{key}", problems)
        elif schema.extra and not schema.preserve:
            for key in sorted(value):
                problems.append(f'unknown field "{place}.{key}"')
                del value[key]
    elif isinstance(value, list) and schema.form is Form.LIST and schema.item is not None:
        for index, each in enumerate(value):
            prune(each, schema.item, f"{place}[{index}]", problems)


def embedded(value: Any, schema: Schema, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the embedded objects within a value, each with its place."""
    if isinstance(value, dict):
        if schema.embedded and value.get("metadata") is not None:
            yield place, value
        for key, each in value.items():
            field = schema.fields.get(key) if schema.form is Form.STRUCT else schema.item
            if field is not None and not field.go_name:
                yield from embedded(each, field, f"{place}.{key}" if place else key)
    elif isinstance(value, list) and schema.item is not None:
        for index, each in enumerate(value):
            yield from embedded(each, schema.item, f"{place}[{index}]")


def apply_schema_defaults(value: Any, schema: Schema) -> None:
    """Apply defaults, in place; a forbidden null is replaced by the default, or removed."""
    if isinstance(value, dict):
        if schema.form is Form.STRUCT:
            for key, field in schema.fields.items():
                if "default" in field.extra and (
                    key not in value or (value[key] is None and not field.extra.get("nullable"))
                ):
                    value[key] = copy_of(field.extra["default"])
                elif (
                    key in value
                    and value[key] is None
                    and field.extra
                    and not field.extra.get("nullable")
                ):
                    del value[key]
                    continue
                if key in value:
                    apply_schema_defaults(value[key], field)
        elif schema.form is Form.MAP and schema.item is not None:
            for key in list(value):
                extra = schema.item.extra
                if value[key] is None and not extra.get("nullable") and "default" in extra:
                    value[key] = copy_of(schema.item.extra["default"])
                apply_schema_defaults(value[key], schema.item)
    elif isinstance(value, list) and schema.form is Form.LIST and schema.item is not None:
        for each in value:
            apply_schema_defaults(each, schema.item)


# -- validation ------------------------------------------------------------------------------


def type_name(value: Any) -> str:
    """Return the name of a value's JSON type."""
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _date_time(text: str) -> bool:
    return bool(
        re.fullmatch(
            r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:?\d\d)", text, re.ASCII
        )
    )


def _date(text: str) -> bool:
    try:
        datetime.strptime(text, "%Y-%m-%d")  # noqa: DTZ007 - a date has no zone
    except ValueError:
        return False
    return True


def _ip(version: int) -> Callable[[str], bool]:
    import ipaddress  # noqa: PLC0415 - rarely needed

    def check(text: str) -> bool:
        try:
            return ipaddress.ip_address(text).version == version
        except ValueError:
            return False

    return check


# go-openapi's `govalidator`: one label, or several of which the last has only letters
_HOSTNAME = re.compile(
    r"[^\W_](-?[^\W_]{0,62})?|([^\W_]([-0-9a-zA-Z]{0,61}[^\W_])?\.)+[^\W\d_]{2,63}"
)


def _hostname(text: str) -> bool:
    return len(text) <= 255 and bool(_HOSTNAME.fullmatch(text))


_UUID = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date-time": _date_time,
    "datetime": _date_time,
    "date": _date,
    "ipv4": _ip(4),
    "ipv6": _ip(6),
    "uri": lambda text: bool(re.match(r"(/|[A-Za-z][-+.A-Za-z0-9]*:)[^\x00-\x20\x7f]*\Z", text)),
    "uuid": lambda text: bool(_UUID.fullmatch(text)),
    "email": lambda text: bool(re.fullmatch(r"[^@\s]+@[^@\s]+", text)),
    "byte": lambda text: bool(re.fullmatch(r"[A-Za-z0-9+/\s]*={0,2}", text)),
    "cidr": lambda text: bool(re.fullmatch(r"[0-9a-fA-F.:]+/\d+", text)),
    "mac": lambda text: bool(re.fullmatch(r"(?i)([0-9a-f]{2}[:-]){5}[0-9a-f]{2}", text)),
    "hostname": _hostname,
    "duration": lambda text: bool(re.fullmatch(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h|d|w))+|0", text)),
}


class _Missing(enum.Enum):
    """Stands for a missing old state."""

    MISSING = enum.auto()


MISSING = _Missing.MISSING


def validate(
    value: Any, raw: Raw, field: str = "", said: str | None = None, old: Any = MISSING
) -> list[Cause]:
    """Return the rules of a schema that a value violates.

    Unchanged values are not refused (KEP-4008, ratcheting): a part that equals its old state passes
    in any case. Items are compared only in lists of type map, by their keys.

    Args:
        value: any JSON value.
        raw: the schema.
        field: the path of the value in the causes.
        said: the path of the value in their messages; by default the same.
        old: the value that this one replaces, or MISSING.
    """
    if field and old is not MISSING and _same(value, old):
        return []
    path = field if said is None else said
    causes: list[Cause] = []
    kind = type_name(value)
    if value is None and raw.get("nullable"):
        return []
    causes += _type(value, kind, raw, field, path)
    causes += _enumeration(value, raw, field)
    if isinstance(value, str):
        causes += _string(value, raw, field, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        causes += _number(value, raw, field, path)
    elif isinstance(value, list):
        causes += _list(value, raw, field, path, old)
    elif isinstance(value, dict):
        causes += _object(value, raw, field, path, old)
    causes += _combined(value, raw, field, path)
    return causes


def _shown(path: str) -> str:
    return f"{path} in body"


def _type(value: Any, kind: str, raw: Raw, field: str, path: str) -> list[Cause]:
    wanted = raw.get("type")
    if raw.get("x-kubernetes-int-or-string"):
        allowed, shown = {"integer", "string"}, "integer,string"
        if kind in allowed:
            return []
    elif not wanted:
        return []
    elif wanted == "integer" and raw.get("format") in _BITS and _is_fraction(value):
        kind, shown = "float64", raw["format"]
    else:
        shown = wanted
        if kind == wanted or (wanted == "number" and kind == "integer"):
            return []
    return [
        Cause(
            field,
            "FieldValueTypeInvalid",
            f'Invalid value: "{kind}": {_shown(path)} must be of type {shown}: "{kind}"',
        )
    ]


#: Number of bits of a format's absolute value.
_BITS: Mapping[str, int] = {"int32": 31, "int64": 63}


def _is_fraction(value: Any) -> bool:
    """Return whether Go's decoder turns a number into a float."""
    return isinstance(value, float) or (
        isinstance(value, int) and not -(1 << 63) <= value < 1 << 63
    )


def _enumeration(value: Any, raw: Raw, field: str) -> list[Cause]:
    allowed = raw.get("enum")
    if not allowed or any(type(value) is type(each) and value == each for each in allowed):
        return []
    words = [each if isinstance(each, str) else str(each) for each in allowed]
    return [not_supported(field, value, words)]


def _string(value: str, raw: Raw, field: str, path: str) -> list[Cause]:
    """Return the first rule that a string violates, in the reference's order, and its format's."""
    causes = []
    longest, shortest = raw.get("maxLength"), raw.get("minLength")
    if longest is not None and len(value) > longest:
        causes.append(
            Cause(field, "FieldValueTooLong", f"Too long: may not be more than {longest} bytes")
        )
    elif shortest is not None and len(value) < shortest:
        causes.append(
            invalid_value(field, value, f"{_shown(path)} should be at least {shortest} chars long")
        )
    elif (pattern := raw.get("pattern")) and not _searches(pattern, value):
        causes.append(invalid_value(field, value, f"{_shown(path)} should match '{pattern}'"))
    form = raw.get("format")
    check = _FORMATS.get(form) if isinstance(form, str) else None
    if check is not None and not check(value):
        causes.append(
            Cause(
                field,
                "FieldValueTypeInvalid",
                f'Invalid value: "{value}": {_shown(path)} must be of type {form}: "{value}"',
            )
        )
    return causes


def _searches(pattern: str, value: str) -> bool:
    """Return whether a Go pattern occurs in a text, in linear time as in Go."""
    from listwatch.cel.patterns import compile_pattern  # noqa: PLC0415 - loaded on first use

    try:
        return compile_pattern(pattern).search(value) is not None
    except EvaluationError:
        # Definitions with patterns that RE2 refuses are refused; this one is older.
        return True


def _number(value: float, raw: Raw, field: str, path: str) -> list[Cause]:
    causes = []
    most, least, step = raw.get("maximum"), raw.get("minimum"), raw.get("multipleOf")
    if most is not None:
        if raw.get("exclusiveMaximum") and value >= most:
            causes.append(invalid_value(field, value, f"{_shown(path)} should be less than {most}"))
        elif not raw.get("exclusiveMaximum") and value > most:
            causes.append(
                invalid_value(
                    field, value, f"{_shown(path)} should be less than or equal to {most}"
                )
            )
    if least is not None:
        if raw.get("exclusiveMinimum") and value <= least:
            causes.append(
                invalid_value(field, value, f"{_shown(path)} should be greater than {least}")
            )
        elif not raw.get("exclusiveMinimum") and value < least:
            causes.append(
                invalid_value(
                    field, value, f"{_shown(path)} should be greater than or equal to {least}"
                )
            )
    if step and abs(value / step - round(value / step)) > 1e-9:
        causes.append(invalid_value(field, value, f"{_shown(path)} should be a multiple of {step}"))
    form = raw.get("format")
    if raw.get("type") == "integer":
        bits = _BITS.get(form, 63) if isinstance(form, str) else 63
        if _is_fraction(value) or not -(1 << bits) <= value < 1 << bits:
            shown = f"with format {form}" if form in _BITS else "(default format)"
            causes.append(_placeless(f"Checked value must be of type integer {shown} in {path}"))
    return causes


def _placeless(why: str) -> Cause:
    """Return the cause for a rule whose place is only in its message."""
    return invalid_value("<nil>", "", why)


def _same(value: Any, old: Any) -> bool:
    """Compare like JSON: True is not 1."""
    if type(value) is not type(old):
        return False
    if isinstance(value, dict):
        return value.keys() == old.keys() and all(_same(value[key], old[key]) for key in value)
    if isinstance(value, list):
        return len(value) == len(old) and all(map(_same, value, old))
    return bool(value == old)


def _counted(number: int, raw: Raw, what: str, field: str, path: str) -> list[Cause]:
    """Return why there are too many or too few items or properties."""
    causes = []
    most, least = raw.get(f"max{what}"), raw.get(f"min{what}")
    if most is not None and number > most:
        causes.append(
            Cause(field, "FieldValueTooMany", f"Too many: {number}: must have at most {most} items")
        )
    if least is not None and number < least:
        why = f"{_shown(path)} should have at least {least} {what.lower()}"
        causes.append(invalid_value(field, number, why))
    return causes


def _list(value: list[Any], raw: Raw, field: str, path: str, old: Any) -> list[Cause]:
    causes = _counted(len(value), raw, "Items", field, path)
    items = raw.get("items")
    if isinstance(items, Mapping):
        known = _by_key(old, raw)
        for index, each in enumerate(value):
            before = known.get(_list_key(each, raw), MISSING) if known else MISSING
            causes += validate(each, items, f"{field}[{index}]", f"{path}[{index}]", before)
    causes += _list_keys(value, raw, field)
    return causes


def _list_key(value: Any, raw: Raw) -> str | None:
    """Return what identifies an item of a list of type map."""
    if raw.get("x-kubernetes-list-type") != "map" or not isinstance(value, dict):
        return None
    keys = raw.get("x-kubernetes-list-map-keys") or ()
    return json.dumps({name: value.get(name) for name in keys}, sort_keys=True)


def _by_key(old: Any, raw: Raw) -> dict[str | None, Any]:
    if not isinstance(old, list):
        return {}
    keyed = {_list_key(each, raw): each for each in old}
    keyed.pop(None, None)
    return keyed


def _list_keys(value: list[Any], raw: Raw, field: str) -> list[Cause]:
    kind = raw.get("x-kubernetes-list-type")
    causes: list[Cause] = []
    seen: set[str] = set()
    for index, each in enumerate(value):
        if kind == "map" and isinstance(each, dict):
            key: Any = {
                name: each.get(name) for name in raw.get("x-kubernetes-list-map-keys") or ()
            }
        elif kind == "set":
            key = each
        else:
            continue
        mark = json.dumps(key, sort_keys=True)
        if mark in seen:
            causes.append(duplicate(f"{field}[{index}]", key))
        seen.add(mark)
    return causes


def _object(value: dict[str, Any], raw: Raw, field: str, path: str, old: Any) -> list[Cause]:
    causes = _counted(len(value), raw, "Properties", field, path)
    dot = "." if field else ""
    said_dot = "." if path else ""
    causes += [
        required(f"{field}{dot}{name}") for name in raw.get("required") or () if name not in value
    ]
    if raw.get("x-kubernetes-embedded-resource"):
        causes += _embedded(value, f"{field}{dot}")
    properties = raw.get("properties") or {}
    extra = raw.get("additionalProperties")
    for name, each in value.items():
        if name in properties:
            part = properties[name]
        elif isinstance(extra, Mapping):
            part = extra
        else:
            continue
        before = old.get(name, MISSING) if isinstance(old, dict) else MISSING
        causes += validate(each, part, f"{field}{dot}{name}", f"{path}{said_dot}{name}", before)
    return causes


def _embedded(value: dict[str, Any], prefix: str) -> list[Cause]:
    """Return what an embedded object lacks (`apiserver/schema/objectmeta`)."""
    causes = []
    for key in ("apiVersion", "kind"):
        found = value.get(key)
        if key not in value:
            causes.append(required(f"{prefix}{key}", "must not be empty"))
        elif not isinstance(found, str):
            causes.append(invalid_value(f"{prefix}{key}", found, "must be a string"))
        elif not found:
            causes.append(invalid_value(f"{prefix}{key}", "", "must not be empty"))
    return causes


def _combined(value: Any, raw: Raw, field: str, path: str) -> list[Cause]:
    causes: list[Cause] = []
    broken = [
        found for part in raw.get("allOf") or () if (found := validate(value, part, field, path))
    ]
    if broken:
        causes += [cause for found in broken for cause in found]
        causes.append(_placeless(f'"{path}" must validate all the schemas (allOf)'))
    some = [validate(value, part, field, path) for part in raw.get("anyOf") or ()]
    if some and all(some):
        causes.append(_placeless(f'"{path}" must validate at least one schema (anyOf)'))
        causes += some[0]
    one = [validate(value, part, field, path) for part in raw.get("oneOf") or ()]
    valid = sum(not found for found in one)
    if one and valid != 1:
        count = f"Found {valid} valid alternatives" if valid else "Found none valid"
        causes.append(
            _placeless(f'"{path}" must validate one and only one schema (oneOf). {count}')
        )
        if not valid:
            causes += one[0]
    other = raw.get("not")
    if other and not validate(value, other, field, path):
        causes.append(_placeless(f'"{path}" must not validate the schema (not)'))
    return causes
