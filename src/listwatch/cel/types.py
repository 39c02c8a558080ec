"""The types of CEL, as the checker uses them before evaluation.

The rules are those of the CEL language definition (github.com/google/cel-spec, doc/langdef.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Type:
    """A type: a kind, for some kinds a name, and its type parameters.

    Kinds are "dyn", "error", "null", "bool", "int", "uint", "double", "string", "bytes",
    "timestamp", "duration", "list", "map", "type", "param", "object" and "opaque".
    """

    kind: str
    name: str = ""
    parameters: tuple[Type, ...] = ()

    def __str__(self) -> str:
        """Return the type as error messages show it."""
        match self.kind:
            case "error":
                return "!error!"
            case "list" | "map" | "type":
                inner = ", ".join(map(str, self.parameters))
                return f"{self.kind}({inner})" if inner else self.kind
            case "object" | "opaque":
                inner = ", ".join(map(str, self.parameters))
                return f"{self.name}({inner})" if inner else self.name
            case "param":
                return self.name
        return self.kind


DYN = Type("dyn")
ERROR = Type("error")
NULL = Type("null")
BOOL = Type("bool")
INT = Type("int")
UINT = Type("uint")
DOUBLE = Type("double")
STRING = Type("string")
BYTES = Type("bytes")
TIMESTAMP = Type("timestamp")
DURATION = Type("duration")
TYPE = Type("type")

QUANTITY = Type("object", "kubernetes.Quantity")
URL = Type("object", "kubernetes.URL")
SEMVER = Type("object", "kubernetes.Semver")
NAMED_FORMAT = Type("object", "kubernetes.NamedFormat")
IP = Type("opaque", "net.IP")
CIDR = Type("opaque", "net.CIDR")

SCALARS = frozenset({"bool", "int", "uint", "double", "timestamp", "duration"})


def list_of(item: Type) -> Type:
    """Return the type of a list of these items."""
    return Type("list", "", (item,))


def map_of(key: Type, value: Type) -> Type:
    """Return the type of a map."""
    return Type("map", "", (key, value))


def type_of(what: Type) -> Type:
    """Return the type of an expression that names a type."""
    return Type("type", "", (what,))


def optional_of(what: Type) -> Type:
    """Return the type of a value that may be absent."""
    return Type("opaque", "optional_type", (what,))


def object_named(name: str) -> Type:
    """Return the type of an object whose fields a `TypeProvider` knows."""
    return Type("object", name)


def parameter(name: str) -> Type:
    """Return a type parameter of an overload."""
    return Type("param", name)


def unwrap_optional(what: Type) -> tuple[Type, bool]:
    """Return the type inside an optional and True, or the type itself and False."""
    if what.kind == "opaque" and what.name == "optional_type":
        return what.parameters[0], True
    return what, False


class Substitution:
    """The types bound to type parameters so far. It grows while an expression is checked."""

    def __init__(self, bound: Mapping[str, Type] | None = None) -> None:
        self._bound: dict[str, Type] = dict(bound or {})

    def copy(self) -> Substitution:
        """Return an independent copy."""
        return Substitution(self._bound)

    def take(self, other: Substitution) -> None:
        """Adopt the bindings of another substitution."""
        self._bound = other._bound

    def apply(self, what: Type, *, free: Type | None = None) -> Type:
        """Replace the parameters in a type; unbound ones become `free` if given."""
        if what.kind == "param":
            found = self._bound.get(what.name)
            if found is not None:
                return self.apply(found, free=free)
            return what if free is None else free
        if what.parameters:
            inner = tuple(self.apply(part, free=free) for part in what.parameters)
            if inner != what.parameters:
                return Type(what.kind, what.name, inner)
        return what

    def assign(self, value: Type, target: Type) -> bool:
        """Return whether a value of one type fits where another is wanted; bind parameters."""
        if value == target:
            return True
        value, target = self._resolve(value), self._resolve(target)
        if value == target:
            return True
        if target.kind == "param":
            return self._bind(target, value)
        if value.kind == "param":
            return self._bind(value, target)
        if "dyn" in {value.kind, target.kind} or "error" in {value.kind, target.kind}:
            return True
        if value.kind == "null":
            return target.kind in {"timestamp", "duration", "object", "opaque"}
        if value.kind != target.kind:
            return False
        if value.kind == "type":
            return True
        if value.name != target.name or len(value.parameters) != len(target.parameters):
            return False
        return all(
            self.assign(one, other)
            for one, other in zip(value.parameters, target.parameters, strict=True)
        )

    def assign_all(self, values: list[Type], targets: list[Type]) -> bool:
        """Assign several values, or none: if one does not fit, nothing is bound."""
        if len(values) != len(targets):
            return False
        trial = self.copy()
        if not all(trial.assign(v, t) for v, t in zip(values, targets, strict=True)):
            return False
        self.take(trial)
        return True

    def _resolve(self, what: Type) -> Type:
        while what.kind == "param" and what.name in self._bound:
            what = self._bound[what.name]
        return what

    def _bind(self, param: Type, to: Type) -> bool:
        if any(part.kind == "param" and part.name == param.name for part in _parts(self.apply(to))):
            return False
        self._bound[param.name] = to
        return True


def _parts(what: Type) -> Iterator[Type]:
    yield what
    for part in what.parameters:
        yield from _parts(part)
