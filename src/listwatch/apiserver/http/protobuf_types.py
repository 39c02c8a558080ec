"""The fields of protobuf messages, with their numbers."""

import functools
import gzip
import importlib.resources
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from listwatch.schema.facts import facts

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
RESOURCE = "io.k8s.apimachinery.pkg.api.resource."
INTSTR = "io.k8s.apimachinery.pkg.util.intstr."
RUNTIME = "io.k8s.apimachinery.pkg.runtime."
EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."


class Field(msgspec.Struct, frozen=True):
    """A field of a message.

    Attributes:
        number: of the field.
        name: in JSON.
        kind: "s" string, "i" integer, "b" boolean, "y" bytes, "d" float, "m" message.
        repeated: whether it may occur more than once.
        message: the type of a message.
        inline: whether the JSON form has this message's fields instead.
        is_map: whether the messages are the entries of a map.
    """

    number: int
    name: str
    kind: str
    repeated: bool
    message: str
    inline: bool = False
    is_map: bool = False


class DataError(Exception):
    """The bytes are not a message of the expected type."""


@functools.cache
def messages() -> Mapping[str, list[list[Any]]]:
    """Return the rows of all messages, by name."""
    packed = importlib.resources.files(__package__).joinpath("data/protobuf.json.gz")
    tables: Mapping[str, list[list[Any]]] = msgspec.json.decode(
        gzip.decompress(packed.read_bytes())
    )
    return tables


@functools.cache
def fields_of(message: str) -> tuple[Field, ...]:
    """Return the fields of a message.

    Raises:
        DataError: there is no such message.
    """
    rows = messages().get(message)
    if rows is None:
        raise DataError(f"no such message: {message}")
    definition = facts().definitions.get(message)
    known = (definition or {}).get("properties")
    # some field names in the tables have Go's spelling, such as Webhooks, and lack - and $
    spelling = {_plain(name): name for name in known or ()}
    fields = []
    for number, name, kind, *rest in rows:
        target = rest[0] if rest else ""
        single = kind == "m"
        shown = spelling.get(_plain(name), name)
        inline = single and known is not None and shown not in known and name not in _NOT_INLINE
        # the entries of a map are a nested message of the map's message
        is_map = kind == "m*" and target.startswith(f"{message}.")
        fields.append(Field(number, shown, kind[0], kind.endswith("*"), target, inline, is_map))
    return tuple(fields)


def _plain(name: str) -> str:
    return re.sub(r"[-$]", "", name).lower()


#: Message fields that the schema facts may lack although they are not inlined.
_NOT_INLINE = frozenset(("metadata",))


@functools.cache
def is_bare_list(message: str) -> bool:
    """Return whether the JSON form of a message is a list: Go's named types of string lists."""
    fields = fields_of(message)
    unknown = message not in facts().definitions
    return unknown and [(field.name, field.kind, field.repeated) for field in fields] == [
        ("items", "s", True)
    ]


def message_of(version: str, kind: str) -> str | None:
    """Return the message of a kind; None if there is none."""
    group, _, short = version.rpartition("/")
    if group == "meta.k8s.io":
        name: str | None = META + kind
    elif group == "apidiscovery.k8s.io":
        name = f"io.k8s.api.apidiscovery.{short}.{kind}"
    else:
        name = facts().definition_name(group, short, kind)
        if name is None and not group:
            name = META + kind
    return name if name in messages() else None
