"""Adds and removes finalizers despite concurrent changes."""

from collections.abc import Callable
from typing import TypeAlias

from listwatch.client.calls import Calls, Kind, encode
from listwatch.objects import Object

FinalizerEdit: TypeAlias = Callable[[tuple[str, ...]], tuple[str, ...]]


async def change_finalizers(
    calls: Calls, resource: Kind, name: str, namespace: str | None, mutate: FinalizerEdit
) -> Object:
    """Patch an object's finalizers if `mutate` changes them, and return the object.

    Raises:
        NotFoundError: the object does not exist.
        ConflictError: the object changed during each of six tries.
    """
    found = await calls.resource(resource)

    async def change() -> Object:
        obj = await calls.send("GET", found, name, namespace, "", ())
        after = mutate(obj.meta.finalizers)
        if after == obj.meta.finalizers:
            return obj
        # The version turns any concurrent change into a conflict; the uid does so for a successor.
        meta = {
            "uid": obj.uid,
            "resourceVersion": obj.resource_version,
            "finalizers": after or None,
        }
        return await calls.send(
            "PATCH",
            found,
            name,
            obj.namespace or None,
            "",
            (),
            body=encode({"metadata": meta}),
            content_type="application/merge-patch+json",
        )

    return await calls.despite_conflicts(change)


def with_finalizer(finalizer: str) -> FinalizerEdit:
    """Return a change that adds a finalizer if it is missing."""
    return lambda value: value if finalizer in value else (*value, finalizer)


def without_finalizer(finalizer: str) -> FinalizerEdit:
    """Return a change that removes a finalizer."""
    return lambda value: tuple(other for other in value if other != finalizer)
