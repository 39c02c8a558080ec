"""Facts about a type: its fields, how lists merge, its name in Go."""

import copy
import functools
import gzip
import importlib.resources
import threading
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec


class Form(Enum):
    """The forms of a value that the server distinguishes."""

    STRUCT = "struct"
    MAP = "map"
    LIST = "list"
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    INT_OR_STRING = "int-or-string"
    QUANTITY = "quantity"
    TIME = "time"
    MICRO_TIME = "micro-time"
    BYTES = "bytes"
    ANY = "any"


class Schema:
    """One type. Immutable once complete; types may be recursive, so they are plain objects.

    Attributes:
        form: determines which other attributes apply.
        fields: of a STRUCT, by JSON name.
        item: of a LIST's items or a MAP's values.
        required: names of required fields (which Go writes even when empty).
        list_type: "atomic", "set" or "map".
        map_keys: the fields that identify an item of a list of type "map".
        merge_key: the field by which a strategic merge identifies an item; "" if there is none.
        strategies: of strategic merge: "merge", "replace", "retainKeys".
        atomic: whether a MAP or STRUCT is owned as a whole.
        go_type: the type's name in Go's errors, such as "[]v1.Container".
        go_name: of a STRUCT, the bare name, such as "PodSpec".
        defaults: of a STRUCT, OpenAPI's defaults of fields: {} for a struct that Go holds by value,
            "" for a string that Go writes even when empty.
        extra: of a custom resource, the OpenAPI schema with its constraints.
        preserve: of a custom resource, whether unknown fields stay.
        embedded: of a custom resource, whether it is an object with its own metadata.
    """

    __slots__ = (
        "atomic",
        "defaults",
        "embedded",
        "enum",
        "extra",
        "fields",
        "form",
        "go_name",
        "go_type",
        "item",
        "list_type",
        "map_keys",
        "merge_key",
        "preserve",
        "required",
        "strategies",
    )

    def __init__(self, form: Form, go_type: str = "", go_name: str = "") -> None:
        self.form = form
        self.fields: dict[str, Schema] = {}
        self.defaults: Mapping[str, Any] = {}
        self.item: Schema | None = None
        self.required: frozenset[str] = frozenset()
        self.list_type = "atomic"
        self.map_keys: tuple[str, ...] = ()
        self.merge_key = ""
        self.strategies: frozenset[str] = frozenset()
        self.atomic = False
        self.go_type = go_type
        self.go_name = go_name
        self.enum: tuple[str, ...] = ()
        self.extra: Mapping[str, Any] = {}
        self.preserve = False
        self.embedded = False

    def __repr__(self) -> str:
        return f"Schema({self.form.value}, {self.go_type!r})"


ANY = Schema(Form.ANY, "interface {}")
STRING = Schema(Form.STRING, "string")

_SPECIAL = {
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": (Form.TIME, "v1.Time"),
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": (Form.MICRO_TIME, "v1.MicroTime"),
    "io.k8s.apimachinery.pkg.api.resource.Quantity": (Form.QUANTITY, "resource.Quantity"),
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": (Form.INT_OR_STRING, "intstr.IntOrString"),
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": (Form.ANY, "v1.FieldsV1"),
    "io.k8s.apimachinery.pkg.runtime.RawExtension": (Form.ANY, "runtime.RawExtension"),
}
_SCALARS = {
    "string": (Form.STRING, "string"),
    "integer": (Form.INTEGER, "int64"),
    "number": (Form.NUMBER, "float64"),
    "boolean": (Form.BOOLEAN, "bool"),
}
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


class Facts:
    """The schema facts of the built-in types, from the package data; each type is built on demand.

    Shared by all servers of the process. Thread-safe: a type is visible once it is complete.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.definitions: Mapping[str, Any] = facts["definitions"]
        self.resources: list[dict[str, Any]] = facts["resources"]
        self.columns: Mapping[str, list[dict[str, Any]]] = facts["columns"]
        self.defaults: Mapping[str, Mapping[str, Any]] = facts["defaults"]
        self._made: dict[str, Schema] = {}
        #: types that may still be incomplete; for the thread that holds the lock
        self._unfinished: dict[str, Schema] = {}
        self._lock = threading.Lock()
        self._names: dict[tuple[str, str, str], str] = {}
        for name, definition in self.definitions.items():
            for kind in definition.get("x-kubernetes-group-version-kind", ()):
                self._names.setdefault((kind["group"], kind["version"], kind["kind"]), name)

    def kinds(self) -> Iterator[tuple[str, str, str]]:
        """Yield group, version and kind of every type that has them."""
        return iter(self._names)

    def definition_name(self, group: str, version: str, kind: str) -> str | None:
        """Return the name of a kind's definition in the OpenAPI document, if there is one."""
        return self._names.get((group, version, kind))

    def schema(self, group: str, version: str, kind: str) -> Schema:
        """Return the type of a kind; a type that accepts anything if the facts have none."""
        name = self._names.get((group, version, kind))
        return ANY if name is None else self.definition(name)

    def definition(self, name: str) -> Schema:
        """Return the type of a definition, which must exist."""
        made = self._made.get(name)
        if made is not None:
            return made
        with self._lock:
            try:
                made = self._make(name)
                self._made.update(self._unfinished)
            finally:
                self._unfinished = {}
            return made

    def _make(self, name: str) -> Schema:
        made = self._made.get(name) or self._unfinished.get(name)
        if made is not None:
            return made
        special = _SPECIAL.get(name)
        if special is not None:
            schema = Schema(*special)
            # data encoded by others has a single owner
            schema.atomic = name.endswith(".RawExtension")
            self._unfinished[name] = schema
            return schema
        definition = self.definitions[name]
        *_, version, kind = name.split(".")
        schema = Schema(Form.STRUCT, f"{version}.{kind}", kind)
        self._unfinished[name] = schema
        if "properties" not in definition:
            schema.form = Form.ANY
            return schema
        schema.required = frozenset(definition.get("required", ()))
        schema.atomic = definition.get("x-kubernetes-map-type") == "atomic"
        schema.defaults = self.defaults.get(name, {})
        for field, property_ in definition["properties"].items():
            schema.fields[field] = self._property(property_)
        return schema

    def _property(self, facts: Mapping[str, Any]) -> Schema:
        if "$ref" in facts:
            made = self._make(facts["$ref"])
            return made if len(facts) == 1 else self._told_apart(made, facts)
        kind = facts.get("type")
        if kind == "array":
            item = self._property(facts["items"])
            schema = Schema(Form.LIST, f"[]{item.go_type}")
            schema.item = item
            schema.list_type = facts.get("x-kubernetes-list-type", "atomic")
            schema.map_keys = tuple(facts.get("x-kubernetes-list-map-keys", ()))
            schema.merge_key = facts.get("x-kubernetes-patch-merge-key", "")
            strategy = facts.get("x-kubernetes-patch-strategy", "")
            schema.strategies = frozenset(strategy.split(",")) - {""}
            return schema
        if kind == "object" or "additionalProperties" in facts:
            if "additionalProperties" not in facts:
                return ANY
            item = self._property(facts["additionalProperties"])
            schema = Schema(Form.MAP, f"map[string]{item.go_type}")
            schema.item = item
            schema.atomic = facts.get("x-kubernetes-map-type") == "atomic"
            return schema
        if kind == "string" and facts.get("format") == "byte":
            return Schema(Form.BYTES, "[]uint8")
        if kind in _SCALARS:
            form, go_type = _SCALARS[kind]
            if kind == "integer":
                go_type = facts.get("format", go_type)
            schema = Schema(form, go_type)
            schema.enum = tuple(facts.get("enum", ()))
            return schema
        return ANY

    @staticmethod
    def _told_apart(made: Schema, facts: Mapping[str, Any]) -> Schema:
        """Return a type as one field uses it: merged or owned differently than elsewhere."""
        schema = copy.copy(made)
        schema.strategies = frozenset(facts.get("x-kubernetes-patch-strategy", "").split(","))
        if "x-kubernetes-map-type" in facts:
            schema.atomic = facts["x-kubernetes-map-type"] == "atomic"
        return schema


@functools.cache
def facts() -> Facts:
    """Return the facts of the built-in types, loaded from the package data at the first call."""
    packed = importlib.resources.files(__package__).joinpath("data/kubernetes.json.gz")
    return Facts(msgspec.json.decode(gzip.decompress(packed.read_bytes())))
