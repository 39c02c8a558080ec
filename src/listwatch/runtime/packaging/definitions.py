"""The custom resources among a program's types."""

from collections.abc import Mapping
from typing import Any

from listwatch.objects.resource_types import is_resource_type
from listwatch.resources.custom_resource import custom_resource_of, definition


def definitions_among(names: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the CustomResourceDefinitions of the types among a file's global names.

    Several versions of one kind make one definition.

    Raises:
        ResourceTypeError: types of one kind don't belong together.
    """
    versions: dict[tuple[str, str], list[type]] = {}
    for value in names.values():
        if isinstance(value, type) and is_resource_type(value):
            known = custom_resource_of(value).resource
            types = versions.setdefault((known.group, known.kind), [])
            if value not in types:
                types.append(value)
    return [definition(*types) for types in versions.values()]
