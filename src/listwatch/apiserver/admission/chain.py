"""The order of policies and webhooks for one request.

Mutation comes before the object is completed and validated, validation after it; policies come
before webhooks. Mutators get a second round if one asks for it, as in
`apiserver/pkg/admission/reinvocation.go`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from listwatch.apiserver.admission.matching import Attributes
    from listwatch.apiserver.kinds.resources import APIResource

Object = dict[str, Any]
View = Mapping[str, Any]


class Round:
    """The current round of mutators, and whether a second one is needed."""

    __slots__ = ("second", "wanted")

    def __init__(self) -> None:
        self.second = False
        self.wanted = False


class Mutator(Protocol):
    """Changes the object of one request; one instance for each object."""

    def mutate(self, attributes: Attributes, turn: Round) -> None:
        """Replace `attributes.obj`, decoded and defaulted, or raise the refusal of the request."""


class Validator(Protocol):
    """Validates the object of one request; one instance for each object."""

    def validate(self, attributes: Attributes, /) -> None:
        """Raise the refusal if the request is forbidden."""


class Source(Protocol):
    """Provides mutators and validators: policies, or webhooks."""

    def mutator(self) -> Mutator | None:
        """Return the mutator for the object of one request, if there is one."""

    def validator(self) -> Validator | None:
        """Return the validator for the object of one request, if there is one."""


class Admission:
    """The admission of one request. For one event loop.

    Objects are passed and returned in the stored form, without kind and apiVersion.

    Args:
        attributes: the request before it is executed; its options lack their kind, which follows
            from the operation.
        sources: policies and webhooks, in order.
    """

    def __init__(self, attributes: Attributes, sources: Sequence[Source]) -> None:
        self._attributes = attributes
        self._sources = sources

    def mutate(self, operation: str, obj: Object, old: View | None) -> Object:
        """Return the object as changed by the mutators; raise the refusal if forbidden."""
        resource = self._attributes.resource
        whole = whole_of(resource, obj)
        before = None if old is None else whole_of(resource, old)
        changed = self.mutate_whole(operation, whole, before)
        if changed is whole:
            return obj
        inner = {key: each for key, each in changed.items() if key not in {"apiVersion", "kind"}}
        return inner if resource.convert is None else resource.convert.inward(inner)

    def validate(self, operation: str, obj: View, old: View | None) -> None:
        """Raise the refusal if the request is forbidden."""
        resource = self._attributes.resource
        before = None if old is None else whole_of(resource, old)
        self.validate_whole(operation, whole_of(resource, obj), before)

    def mutate_whole(self, operation: str, obj: Object, old: Object | None) -> Object:
        """Mutate, like `mutate`, an object that has kind and apiVersion, such as a Scale."""
        attributes = self._about(operation, obj, old)
        self._mutate(attributes)
        assert attributes.obj is not None  # noqa: S101 - no mutator removes it
        return attributes.obj

    def validate_whole(self, operation: str, obj: Object | None, old: Object | None) -> None:
        """Validate, like `validate`, an object that has kind and apiVersion."""
        self._validate(self._about(operation, obj, old))

    def delete(self, old: View) -> None:
        """Check the deletion of an object; raise the refusal if forbidden."""
        whole = whole_of(self._attributes.resource, old)
        attributes = self._about("DELETE", None, whole)
        if attributes.is_of_namespace and attributes.options is not None:
            # like a real server, make sure that no successor of this namespace is deleted
            conditions = attributes.options.get("preconditions") or {}
            conditions = {"uid": whole["metadata"]["uid"], **conditions}
            attributes.options["preconditions"] = conditions
        self._mutate(attributes)
        self._validate(attributes)

    def _mutate(self, attributes: Attributes) -> None:
        turn = Round()
        mutators = [each for source in self._sources if (each := source.mutator()) is not None]
        for mutator in mutators:
            mutator.mutate(attributes, turn)
        if turn.wanted:
            turn.second = True
            for mutator in mutators:
                mutator.mutate(attributes, turn)

    def _validate(self, attributes: Attributes) -> None:
        for source in self._sources:
            validator = source.validator()
            if validator is not None:
                validator.validate(attributes)

    def _about(self, operation: str, obj: Object | None, old: Object | None) -> Attributes:
        known = self._attributes
        name, namespace = known.name, known.namespace
        if operation == "CREATE" and not name and obj is not None:
            name = obj["metadata"].get("name") or ""
        if known.is_of_namespace and not namespace:
            namespace = name
        options = {
            **(known.options or {}),
            "kind": f"{operation.capitalize()}Options",
            "apiVersion": "meta.k8s.io/v1",
        }
        return msgspec.structs.replace(
            known,
            operation=operation,
            name=name,
            namespace=namespace,
            obj=obj,
            old=old,
            options=options,
        )


def whole_of(resource: APIResource, obj: View) -> Object:
    """Return a stored object in its resource's version, with kind and apiVersion."""
    shown = dict(obj) if resource.convert is None else resource.convert.outward(dict(obj))
    return {**shown, "apiVersion": resource.api_version, "kind": resource.kind}
