"""Finds what a server would refuse in an object, without a server."""

import copy
from collections.abc import Mapping
from typing import Any, Final

from listwatch.apiserver.admission.validation import validate_create, validate_update
from listwatch.apiserver.kinds.custom import resources_of
from listwatch.apiserver.kinds.definitions import default_definition, validate_definition
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.client.typed_objects import manifest_of
from listwatch.errors import ListWatchError
from listwatch.resources.custom_resource import definition
from listwatch.resources.problems import Problem
from listwatch.schema.causes import Cause
from listwatch.schema.facts import OBJECT_META, facts
from listwatch.schema.structural import apply_schema_defaults, prune
from listwatch.schema.typed import Conversion, WrongTypeError

_DEFINITION: Final = (
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"
)


class UnknownVersionError(ListWatchError):
    """A definition does not serve the version or kind of an object."""


def check(obj: object, old: object = None) -> list[Problem]:
    """Return the problems of an object: of its schema, then of its metadata and its CEL rules.

    Args:
        obj: an object of a type decorated with `@resource`.
        old: the object that it replaces; None for a new one. Unchanged parts are then accepted
            where a server accepts them, and rules that read `oldSelf` apply.

    Raises:
        ResourceTypeError: the type is not a resource.
    """
    return check_manifest(
        definition(type(obj)), manifest_of(obj), None if old is None else manifest_of(old)
    )


def check_definition(manifest: Mapping[str, Any]) -> list[Problem]:
    """Return the problems for which a server would refuse a CustomResourceDefinition."""
    completed: dict[str, Any] = copy.deepcopy(dict(manifest))
    completed.setdefault("metadata", {})
    if wrong := _wrong_type(completed, _DEFINITION, ""):
        return [wrong]
    default_definition(completed)
    return [_problem(cause) for cause in validate_definition(completed)]


def check_manifest(
    definition: Mapping[str, Any], obj: Mapping[str, Any], old: Mapping[str, Any] | None = None
) -> list[Problem]:
    """Return the problems for which a server would refuse an object of a CustomResourceDefinition.

    Unknown fields are problems, as for `kubectl --validate=strict`.

    Args:
        definition: the manifest of a definition that a server accepts.
        obj: the decoded manifest of the object.
        old: the decoded manifest of the object that it replaces.

    Raises:
        UnknownVersionError: the definition does not serve the object's version and kind.
    """
    return Checker(definition).check(obj, old)


class Checker:
    """Checks many objects of a definition, which is read once.

    Args:
        definition: the manifest of a definition that a server accepts.
    """

    def __init__(self, definition: Mapping[str, Any]) -> None:
        completed: dict[str, Any] = copy.deepcopy(dict(definition))
        default_definition(completed)
        self._served = resources_of(completed)

    def check(self, obj: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[Problem]:
        """Return the problems of an object; see `check_manifest`."""
        resource = self._resource_of(obj)
        if wrong := _wrong_type(obj.get("metadata") or {}, OBJECT_META, "metadata"):
            return [wrong]
        new, unknown = _stored(resource, obj)
        if old is None:
            causes = validate_create(resource, new)
        else:
            before, _ = _stored(resource, old)
            causes = validate_update(resource, new, before)
        return [*unknown, *map(_problem, causes)]

    def _resource_of(self, obj: Mapping[str, Any]) -> APIResource:
        for resource in self._served:
            if (resource.api_version, resource.kind) == (obj.get("apiVersion"), obj.get("kind")):
                return resource
        names = ", ".join(f"{one.api_version} {one.kind}" for one in self._served) or "nothing"
        raise UnknownVersionError(
            f"{obj.get('apiVersion')} {obj.get('kind')} is not served by the definition, "
            f"which has {names}"
        )


def _stored(resource: APIResource, obj: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return an object with defaults and without unknown fields, and those fields as problems."""
    value: dict[str, Any] = copy.deepcopy(dict(obj))
    value["metadata"] = dict(value.get("metadata") or {})
    if resource.namespaced:
        value["metadata"].setdefault("namespace", "default")
    unknown: list[str] = []
    prune(value, resource.schema, "", unknown)
    apply_schema_defaults(value, resource.schema)
    return value, [
        Problem(text.partition('"')[2].rstrip('"'), text, "FieldUnknown") for text in unknown
    ]


def _wrong_type(value: Any, definition: str, path: str) -> Problem | None:
    """Return a problem about a field of the wrong type: nothing else can be checked then."""
    try:
        Conversion().convert(copy.deepcopy(value), facts().definition(definition), path)
    except WrongTypeError as error:
        return Problem(path or "the definition", str(error), "BadRequest")
    return None


def _problem(cause: Cause) -> Problem:
    return Problem(cause.field, cause.message, cause.reason)
