"""The custom resources among a program's types."""

from collections.abc import Iterator, Mapping
from typing import Any

from listwatch.objects.resource_types import is_resource_type
from listwatch.resources.conversion import Conversions
from listwatch.resources.custom_resource import custom_resource_of, definition
from listwatch.resources.errors import ResourceTypeError


def definitions_among(names: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the CustomResourceDefinitions of the types and conversions among a file's names.

    Several versions of one kind make one definition.

    Raises:
        ResourceTypeError: types of one kind don't belong together, or two kinds have one plural.
    """
    versions: dict[tuple[str, str], list[type]] = {}
    for cls in _types_among(names):
        known = custom_resource_of(cls).resource
        types = versions.setdefault((known.group, known.kind), [])
        if cls not in types:
            types.append(cls)
    made: dict[str, dict[str, Any]] = {}
    for types in versions.values():
        one = definition(*types)
        name = one["metadata"]["name"]
        if name in made:
            kinds = [each["spec"]["names"]["kind"] for each in (made[name], one)]
            raise ResourceTypeError(
                f"{name}: the plural is taken by the kind {kinds[0]}: give {kinds[1]} another "
                "plural="
            )
        made[name] = one
    return list(made.values())


def _types_among(names: Mapping[str, Any]) -> Iterator[type]:
    for value in names.values():
        if isinstance(value, Conversions):
            yield from value.types
        elif isinstance(value, type) and is_resource_type(value):
            yield value
