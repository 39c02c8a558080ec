"""The order in which policies and webhooks are asked about one request.

What mutates comes before the object is completed and validated, what validates after it; policies
come before webhooks. Mutators get a second round where one asked for it, as in
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
    """Which round of mutators it is, and whether there is to be a second one."""

    __slots__ = ("second", "wanted")

    def __init__(self) -> None:
        self.second = False
        self.wanted = False


class Mutator(Protocol):
    """Changes the object of one request; one instance for each object."""

    def mutate(self, attributes: Attributes, turn: Round) -> None:
        """Replace `attributes.obj`, decoded and defaulted, or raise what forbids the request."""


class Validator(Protocol):
    """Judges the object of one request; one instance for each object."""

    def validate(self, attributes: Attributes) -> None:
        """Raise what forbids the request."""


class Source(Protocol):
    """Where mutators and validators come from: policies, or webhooks."""

    def mutator(self) -> Mutator | None:
        """Return what mutates the object of one request, if anything does."""

    def validator(self) -> Validator | None:
        """Return what judges the object of one request, if anything does."""


class Admission:
    """All that is asked about one request. For one event loop.

    Objects come and go in the form that is stored, without kind and apiVersion.

    Args:
        attributes: what is known of the request before it is carried out; its options lack their
            kind, which follows from what is done.
        sources: policies and webhooks, in the order in which they are asked.
    """

    def __init__(self, attributes: Attributes, sources: Sequence[Source]) -> None:
        self._attributes = attributes
        self._sources = sources

    def mutate(self, operation: str, obj: Object, old: View | None) -> Object:
        """Return an object as the mutators have made it; raises what forbids the request."""
        resource = self._attributes.resource
        whole = whole_of(resource, obj)
        before = None if old is None else whole_of(resource, old)
        changed = self.mutate_whole(operation, whole, before)
        if changed is whole:
            return obj
        inner = {key: each for key, each in changed.items() if key not in {"apiVersion", "kind"}}
        return inner if resource.convert is None else resource.convert.inward(inner)

    def validate(self, operation: str, obj: View, old: View | None) -> None:
        """Raise what forbids the request."""
        resource = self._attributes.resource
        before = None if old is None else whole_of(resource, old)
        self.validate_whole(operation, whole_of(resource, obj), before)

    def mutate_whole(self, operation: str, obj: Object, old: Object | None) -> Object:
        """Do what `mutate` does with objects that have kind and apiVersion, such as a Scale."""
        attributes = self._about(operation, obj, old)
        self._mutate(attributes)
        assert attributes.obj is not None  # noqa: S101 - no mutator takes it away
        return attributes.obj

    def validate_whole(self, operation: str, obj: Object | None, old: Object | None) -> None:
        """Do what `validate` does with objects that have kind and apiVersion."""
        self._validate(self._about(operation, obj, old))

    def delete(self, old: View) -> None:
        """Ask about the deletion of an object; raises what forbids it."""
        whole = whole_of(self._attributes.resource, old)
        attributes = self._about("DELETE", None, whole)
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
            "kind": f"{operation.capitalize()}Options",
            "apiVersion": "meta.k8s.io/v1",
            **(known.options or {}),
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
    """Return a stored object as its resource serves it, with kind and apiVersion."""
    shown = dict(obj) if resource.convert is None else resource.convert.outward(dict(obj))
    return {**shown, "apiVersion": resource.api_version, "kind": resource.kind}
