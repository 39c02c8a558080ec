"""The JSON schema of a Python type, including its markers."""

import dataclasses
import datetime as dt
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from listwatch.resources.built_in import built_in_schema
from listwatch.resources.errors import ResourceTypeError
from listwatch.resources.markers import (
    Atomic,
    BuiltIn,
    EmbeddedObject,
    FreeForm,
    Keywords,
    ListMap,
    ListSet,
    Rule,
)

Node = dict[str, Any]

#: The attribute in which `rules` keeps the rules of a type.
RULES = "__kubernetes_rules__"
#: Marks a node that is already a structural schema.
READY = "x-listwatch-ready"
_SETS = (set, frozenset)
_WRAPPERS = (Required, NotRequired)
_VALIDATIONS = "x-kubernetes-validations"


def json_schema(cls: type) -> tuple[Node, dict[str, Node]]:
    """Return the JSON schema of a class, and those of nested classes by name.

    Args:
        cls: a msgspec Struct, a dataclass, an attrs class, a TypedDict or a pydantic model.

    Raises:
        ResourceTypeError: a field has a type without a JSON schema.
    """
    try:
        if is_pydantic(cls):
            made: Node = cls.model_json_schema(by_alias=True)  # type: ignore[attr-defined] # defined by pydantic
            definitions: dict[str, Node] = made.pop("$defs", {})
        else:
            (made,), definitions = msgspec.json.schema_components(
                [cls], ref_template="#/$defs/{name}"
            )
    except Exception as error:
        *_, why = str(error).strip().splitlines() or [type(error).__name__]
        raise ResourceTypeError(
            f"{cls.__name__}: {why.strip()}: write a type with fields, int | str, or AnyObject"
        ) from error
    _Marking(definitions).mark(cls, made)
    return made, definitions


def is_pydantic(cls: type) -> bool:
    """Return whether a class is a pydantic model."""
    return hasattr(cls, "model_json_schema")


def referred(node: Mapping[str, Any], definitions: Mapping[str, Node]) -> Node | None:
    """Return the target of a node's reference; None without one."""
    target = node.get("$ref")
    return None if target is None else definitions[str(target).removeprefix("#/$defs/")]


class _Marking:
    """Walks types and their JSON schema in parallel."""

    def __init__(self, definitions: dict[str, Node]) -> None:
        self._definitions = definitions
        self._done: set[int] = set()

    def mark(self, hint: Any, node: Node) -> None:
        if isinstance(hint, str):
            return
        if get_origin(hint) in _WRAPPERS:
            self.mark(get_args(hint)[0], node)
            return
        if get_origin(hint) is Annotated:
            base, *markers = get_args(hint)
            self.mark(base, node)
            for marker in markers:
                _apply(marker, node)
            return
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            self._mark_union([one for one in arguments if one is not type(None)], node)
        elif origin in (list, tuple, *_SETS):
            if origin in _SETS:
                node.setdefault("x-kubernetes-list-type", "set")
                if node.get("default"):  # the order of a set differs between processes
                    node["default"] = sorted(node["default"], key=msgspec.json.encode)
            if arguments and isinstance(node.get("items"), dict):
                self.mark(arguments[0], node["items"])
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            if len(arguments) == 2 and isinstance(node.get("additionalProperties"), dict):
                self.mark(arguments[1], node["additionalProperties"])
        elif hint is dt.datetime:
            node.setdefault("format", "date-time")  # a server refuses times without a zone
        elif isinstance(origin or hint, type):
            self._mark_class(origin or hint, node, arguments)

    def _mark_union(self, members: list[Any], node: Node) -> None:
        choices = [one for one in node.get("anyOf", ()) if one.get("type") != "null"]
        if len(choices) == len(members):
            for member, choice in zip(members, choices, strict=True):
                self.mark(member, choice)
        elif len(members) == 1:
            self.mark(members[0], node)

    def _mark_class(self, cls: type, node: Node, arguments: tuple[Any, ...]) -> None:
        target = referred(node, self._definitions) or node
        fields = dict(_fields(cls))
        if not fields and not hasattr(cls, RULES):
            return
        if id(target) in self._done:
            return
        self._done.add(id(target))
        for rule in getattr(cls, RULES, ()):
            target.setdefault(_VALIDATIONS, []).append(rule.schema())
        properties = target.get("properties", {})
        meant = _meant(cls, arguments)
        for name, (hint, factory) in fields.items():
            if name not in properties:
                continue
            self.mark(_filled(hint, meant), properties[name])
            if isinstance(factory, type) and any(_fields(factory)):
                # The defaults of the object's own fields complete it.
                properties[name].setdefault("default", {})


def _meant(cls: type, arguments: tuple[Any, ...]) -> dict[Any, Any]:
    """Return the types of the type variables of a class and of its bases."""
    meant = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        if isinstance(origin := get_origin(base), type):
            inner = tuple(_filled(one, meant) for one in get_args(base))
            meant = {**_meant(origin, inner), **meant}
    return meant


def _filled(hint: Any, meant: Mapping[Any, Any]) -> Any:
    """Return a type with its type variables replaced by their types."""
    if isinstance(hint, TypeVar):
        return meant.get(hint, hint)
    names = getattr(hint, "__parameters__", ())
    return hint[tuple(meant.get(name, Any) for name in names)] if names and meant else hint


def _fields(cls: type) -> Iterator[tuple[str, tuple[Any, object]]]:
    """Yield the JSON name of each field, with its type and its default or factory."""
    found: Iterable[tuple[str, str, object]]
    if is_pydantic(cls):
        fields: Any = cls.model_fields  # type: ignore[attr-defined] # defined by pydantic
        found = ((name, one.alias or name, one.default_factory) for name, one in fields.items())
    elif issubclass(cls, msgspec.Struct):
        found = (
            (one.name, one.encode_name, one.default_factory) for one in msgspec.structs.fields(cls)
        )
    elif dataclasses.is_dataclass(cls):
        found = ((one.name, one.name, one.default_factory) for one in dataclasses.fields(cls))
    elif hasattr(cls, "__attrs_attrs__"):
        found = (
            (one.name, one.name, getattr(one.default, "factory", None))
            for one in cls.__attrs_attrs__
        )
    elif hasattr(cls, "__required_keys__"):
        found = ((name, name, None) for name in cls.__annotations__)
    else:
        return
    hints = get_type_hints(cls, include_extras=True)
    for name, encoded, factory in found:
        if name in hints:
            yield encoded, (hints[name], factory)


def _apply(marker: object, node: Node) -> None:
    match marker:
        case Keywords(keywords=keywords):
            node.update(keywords)
        case ListSet():
            node["x-kubernetes-list-type"] = "set"
        case ListMap(keys=keys):
            node["x-kubernetes-list-type"] = "map"
            node["x-kubernetes-list-map-keys"] = list(keys)
        case Atomic():
            key = "list" if _is_list(node) else "map"
            node[f"x-kubernetes-{key}-type"] = "atomic"
        case FreeForm():
            node["x-kubernetes-preserve-unknown-fields"] = True
        case EmbeddedObject():
            node["x-kubernetes-embedded-resource"] = True
            node.setdefault("x-kubernetes-preserve-unknown-fields", True)
        case Rule():
            node.setdefault(_VALIDATIONS, []).append(marker.schema())
        case BuiltIn(name=name):
            kept: Node = {key: node[key] for key in ("default", "description") if key in node}
            if any(one.get("type") == "null" for one in node.get("anyOf", ())):
                kept["nullable"] = True
            node.clear()
            node.update(built_in_schema(name), **kept, **{READY: True})
        case _:
            pass  # another library's annotation


def _is_list(node: Node) -> bool:
    choices = [node, *node.get("anyOf", ())]
    return any(one.get("type") == "array" for one in choices)
