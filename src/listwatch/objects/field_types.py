"""What a decoder needs to know about users' Structs for `fields=`."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def holds_bytes(kind: object) -> bool:
    """Return whether a type's values may be slices of the bytes that they were decoded from.

    Raises:
        TypeError: msgspec would refuse every value.
    """
    found = [msgspec.inspect.type_info(kind)]
    seen: set[object] = set()
    while found:
        info = found.pop()
        if isinstance(info, msgspec.inspect.RawType):
            return True
        if id(info) in seen or not isinstance(info, msgspec.inspect.Type):
            continue
        seen.add(id(info))
        if isinstance(info, msgspec.inspect.UnionType) and any(
            isinstance(one, msgspec.inspect.RawType) for one in info.types
        ):
            raise TypeError(f"{kind!r} has a msgspec.Raw or something else: give a Raw a default")
        for name in info.__struct_fields__:
            part = getattr(info, name)
            parts = part if isinstance(part, tuple) else (part,)
            found += (p.type if isinstance(p, msgspec.inspect.Field) else p for p in parts)
    return False


def subclass_namespace(fields: type[msgspec.Struct]) -> dict[str, Any]:
    """Return a namespace that makes instances of an extended subclass equal to this one's."""
    names = fields.__struct_fields__

    def values(of: object) -> dict[str, object]:
        return {name: getattr(of, name) for name in names}

    def equal(self: object, other: object) -> bool:
        return values(self) == values(other) if isinstance(other, fields) else NotImplemented

    def reduce(self: object) -> tuple[object, ...]:
        return (_make, (fields, values(self)))

    namespace: dict[str, Any] = {"__reduce__": reduce}
    if fields.__struct_config__.eq:
        namespace |= {"__eq__": equal, "__hash__": None}
        if fields.__struct_config__.frozen:
            namespace["__hash__"] = lambda self: hash(_make(fields, values(self)))
    return namespace


def _make(fields: Callable[..., T], values: Mapping[str, Any]) -> T:
    return fields(**values)
