"""What an expression may use: variables, fields of objects, functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from listwatch.cel.authorization import AUTHORIZATION
from listwatch.cel.kubernetes import KUBERNETES
from listwatch.cel.lists import LISTS
from listwatch.cel.standard import STANDARD
from listwatch.cel.strings import STRINGS
from listwatch.cel.types import (
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    IP,
    NAMED_FORMAT,
    NULL,
    QUANTITY,
    SEMVER,
    STRING,
    TIMESTAMP,
    TYPE,
    UINT,
    URL,
    Type,
    list_of,
    map_of,
    optional_of,
    type_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from listwatch.cel.functions import Function

FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {one.name: one for one in (*STANDARD, *STRINGS, *LISTS, *KUBERNETES, *AUTHORIZATION)}
)
"""Every function that an API server of version 1.36 provides in all its expressions."""

TYPE_NAMES: Mapping[str, Type] = MappingProxyType(
    {
        "bool": type_of(BOOL),
        "int": type_of(INT),
        "uint": type_of(UINT),
        "double": type_of(DOUBLE),
        "string": type_of(STRING),
        "bytes": type_of(BYTES),
        "list": type_of(list_of(DYN)),
        "map": type_of(map_of(DYN, DYN)),
        "null_type": type_of(NULL),
        "type": type_of(TYPE),
        "optional_type": type_of(optional_of(DYN)),
        "google.protobuf.Timestamp": type_of(TIMESTAMP),
        "google.protobuf.Duration": type_of(DURATION),
        **{one.name: type_of(one) for one in (QUANTITY, URL, SEMVER, NAMED_FORMAT, IP, CIDR)},
    }
)


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables of an expression with their types, and the fields of its objects.

    `objects` maps the name of an object type to its fields. Immutable: many expressions and threads
    may share one.
    """

    variables: Mapping[str, Type]
    objects: Mapping[str, Mapping[str, Type]] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=lambda: FUNCTIONS)
