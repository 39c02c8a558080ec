"""Idempotent writes for reconcilers.

All use the manager's client and pass on what it raises. A `ConflictError` means that the object
came from a cache that lags; the retry of the reconcile fixes that.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast, overload

import msgspec

from listwatch.backoff import CONFLICT, on, retry
from listwatch.client.typed_objects import (
    fields_of,
    manifest_of,
    object_of,
    schema_of_type,
    with_changes,
)
from listwatch.errors import ConflictError, ListWatchError, NotFoundError
from listwatch.objects import Object
from listwatch.runtime.api_time import api_time
from listwatch.runtime.recorded_writes import whole_state
from listwatch.selector import qualified_name_problems

if TYPE_CHECKING:
    from listwatch.client.client import Client
    from listwatch.client.resource import Resource

T = TypeVar("T")


class OwnershipError(ListWatchError):
    """An object can't be owned: another controller owns it, or the namespaces don't match."""


class Outcome(StrEnum):
    """The outcome of a write."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


class Written(NamedTuple):
    """The object on the server, and the outcome."""

    obj: Object
    outcome: Outcome


# --- Owners --------------------------------------------------------------------------------------


def owner_reference(owner: object, *, controller: bool = True) -> dict[str, Any]:
    """Return a reference to an owner, for `metadata.ownerReferences`.

    Args:
        owner: the owner as read, an `Object` or of a resource type; its uid counts.
        controller: the owner is the only controller of the object, and its foreground deletion
            waits until the object is gone.

    Raises:
        OwnershipError: the owner has no uid, because it was not read from a server.
        TypeError: the owner is of another type.
    """
    owner = object_of(owner)
    if not owner.uid:
        raise OwnershipError(
            f"{owner.kind} {owner.key} has no uid and cannot own objects: create it first"
        )
    reference: dict[str, Any] = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
    }
    if controller:
        reference |= {"controller": True, "blockOwnerDeletion": True}
    return reference


def set_owner(obj: dict[str, Any], owner: object, *, controller: bool = True) -> None:
    """Add or update a reference to an owner in an object to be written.

    Args:
        obj: changed in place.
        owner: as for `owner_reference`.
        controller: as for `owner_reference`.

    Raises:
        OwnershipError: another controller owns the object; or the owner is namespaced and the
            object is not in its namespace, so that the garbage collector would delete it.
        TypeError: as for `owner_reference`.
    """
    owner = object_of(owner)
    metadata = obj.setdefault("metadata", {})
    namespace = metadata.get("namespace") or ""
    name = f"{obj.get('kind')} {metadata.get('name')}"
    if owner.namespace and namespace != owner.namespace:
        raise OwnershipError(
            f"{owner.kind} {owner.key} can't own {name} in "
            f"{f'namespace {namespace}' if namespace else 'no namespace'}: "
            "a namespaced owner can only own objects in its namespace"
        )
    references = [
        other for other in metadata.get("ownerReferences") or [] if other.get("uid") != owner.uid
    ]
    rival = next((other for other in references if other.get("controller")), None)
    if controller and rival is not None:
        raise OwnershipError(
            f"{name} is controlled by {rival.get('kind')} {rival.get('name')} already"
        )
    metadata["ownerReferences"] = [*references, owner_reference(owner, controller=controller)]


def is_owned_by(obj: object, owner: object) -> bool:
    """Return whether the object refers to this owner, by its uid."""
    uid = object_of(owner).uid
    return any(reference.uid == uid for reference in object_of(obj).meta.owner_references)


# --- Whole objects -------------------------------------------------------------------------------


@overload
async def apply(
    client: "Client",
    obj: Mapping[str, Any],
    *,
    field_manager: str,
    force: bool = ...,
    subresource: str = ...,
) -> Object: ...
@overload
async def apply(
    client: "Client",
    obj: T,
    *,
    field_manager: str,
    force: bool = ...,
    subresource: str = ...,
) -> T: ...
async def apply(
    client: "Client",
    obj: Any,
    *,
    field_manager: str,
    force: bool = True,
    subresource: str = "",
) -> Any:
    """Apply an object server-side: set exactly the fields that it has, and create it if needed.

    Args:
        client: sends the request.
        obj: apiVersion, kind and name, and the fields to own, or an object of a resource type.
            Fields that this manager applied before and that are now missing are removed.
        field_manager: owner of the fields; one name per controller.
        force: take over fields that others own, as controllers should.
        subresource: such as "status".
    """
    from listwatch.client.client import PatchType  # noqa: PLC0415 - loads the client

    whole = obj if isinstance(obj, Mapping) else manifest_of(obj)
    metadata = whole.get("metadata") or {}
    resource = await client.discovery.for_kind(whole["apiVersion"], whole["kind"])
    applied = await client.patch(
        resource,
        metadata.get("name") or "",
        {**whole, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}},
        metadata.get("namespace") if resource.namespaced else None,
        type=PatchType.APPLY,
        subresource=subresource,
        field_manager=field_manager,
        force=force,
    )
    return applied if isinstance(obj, Mapping) else applied.decode(type(obj))


async def create_or_update(
    client: "Client", obj: Mapping[str, Any], mutate: Callable[[dict[str, Any]], object]
) -> Written:
    """Read an object, change it, and write it if that changed anything; create it if needed.

    Args:
        client: sends the requests.
        obj: apiVersion, kind, namespace and name; any other fields apply to the creation.
        mutate: changes the decoded object in place to the desired state. It is called again after a
            conflict, and must do the same each time.

    Raises:
        ConflictError: the object changed during each of six tries.
    """
    metadata = obj["metadata"]
    resource = await client.discovery.for_kind(obj["apiVersion"], obj["kind"])
    namespace = metadata.get("namespace") if resource.namespaced else None

    async def change() -> Written:
        try:
            found = await client.get(resource, metadata["name"], namespace)
        except NotFoundError:
            wanted = _copy(obj)
            mutate(wanted)
            return Written(await client.create(wanted, resource=resource), Outcome.CREATED)
        wanted = found.to_dict()
        mutate(wanted)
        if wanted == found.to_dict():
            return Written(found, Outcome.UNCHANGED)
        return Written(await client.update(wanted, resource=resource), Outcome.UPDATED)

    return await retry(change, CONFLICT, on(ConflictError), clock=client.clock)


def _copy(obj: Mapping[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(obj))
    return copied


# --- Status --------------------------------------------------------------------------------------


def merge_patch(old: object, new: object) -> object:
    """Return the JSON merge patch (RFC 7386) that turns the old value into the new one.

    An empty mapping changes nothing. A list is replaced as a whole.
    """
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    patch: dict[str, object] = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif isinstance(old[key], Mapping) and isinstance(value, Mapping):
            if (inner := merge_patch(old[key], value)) != {}:
                patch[key] = inner
        elif old[key] != value:
            patch[key] = value
    return patch


async def update_status(client: "Client", obj: T, status: object) -> T | None:
    """Set an object's status; send nothing if it is unchanged.

    The patch contains only the differences, with the object's uid and version, so the server
    refuses a status computed from an old state. Fields that a typed status lacks stay.

    Args:
        client: sends the request.
        obj: the object as read. If it has a resource type and a reconcile did not read it from its
            cache, it is read once more, to see all of its fields.
        status: the complete desired status: a mapping, or an object of the status' type.

    Returns:
        The object as written, in the type of `obj`, or None if there was nothing to do.

    Raises:
        ConflictError: the object has changed since it was read.
        TypeError: the object has no resource type.
    """
    wanted: Any = status if isinstance(status, Mapping) else fields_of(status)
    known = object_of(obj)
    resource = await client.discovery.for_kind(known.api_version, known.kind)
    if not isinstance(obj, Object):
        cls = type(obj)
        known = await _whole(client, resource, known)
        before = manifest_of(known.decode(cls)).get("status") or {}
        schema = (schema_of_type(cls).get("properties") or {}).get("status") or {}
        wanted = with_changes(_status_of(known), before, wanted, schema)
    patch = merge_patch(_status_of(known), wanted)
    if patch == {}:
        return None
    written = await client.patch(
        resource,
        known.name,
        {"metadata": _unchanged(known), "status": patch},
        known.namespace or None,
        subresource="status",
    )
    return _as(obj, written)


def _status_of(obj: Object) -> Any:
    return obj.to_dict().get("status") or {}


async def _whole(client: "Client", resource: "Resource", obj: Object) -> Object:
    """Return the whole state of an object of which a type has shown a part."""
    whole = whole_state(obj.uid, obj.resource_version)
    if whole is None:
        whole = await client.get(resource, obj.name, obj.namespace or None)
        if _unchanged(whole) != _unchanged(obj):
            raise ConflictError(f"{obj.kind} {obj.key} has changed since it was read")
    return whole


def _as(sent: T, written: Object) -> T:
    """Return the written state of an object in the type of the object that was sent."""
    return cast("T", written if isinstance(sent, Object) else written.decode(type(sent)))


def set_condition(
    conditions: list[dict[str, Any]],
    type: str,  # noqa: A002 - the field's name
    status: Literal["True", "False", "Unknown"],
    reason: str,
    message: str = "",
    *,
    now: str = "",
    observed_generation: int | None = None,
) -> bool:
    """Set a condition in a status's list, like `meta.SetStatusCondition`.

    The transition time changes only with the status, so setting the same condition again changes
    nothing.

    Args:
        conditions: changed in place.
        type: such as "Ready".
        status: "True", "False" or "Unknown".
        reason: one word in CamelCase.
        message: for people.
        now: the time of a transition as the API writes it; default: the current time. Pass
            `app.now()` where the clock is injected.
        observed_generation: the object's generation that the condition is about.

    Returns:
        Whether anything changed.
    """
    now = now or api_time(time.time())
    new: dict[str, Any] = {"type": type, "status": status, "reason": reason, "message": message}
    if observed_generation is not None:
        new["observedGeneration"] = observed_generation
    for index, old in enumerate(conditions):
        if old.get("type") == type:
            kept = old.get("lastTransitionTime") if old.get("status") == status else None
            wanted = {**old, **new, "lastTransitionTime": kept or now}
            conditions[index] = wanted
            return wanted != old
    conditions.append({**new, "lastTransitionTime": now})
    return True


# --- Finalizers ----------------------------------------------------------------------------------


async def finalize(
    client: "Client", obj: T, finalizer: str, clean_up: Callable[[T], Awaitable[object]]
) -> T | None:
    """Keep a finalizer on an object while it lives, and clean up when the object is deleted.

    Call it first in a reconcile:

        kept = await finalize(app.client, widget, "example.com/widgets", drop)
        if kept is None:
            return

    Args:
        client: sends the requests.
        obj: the object as read, an `Object` or of a resource type.
        finalizer: a domain-qualified name that only this controller uses.
        clean_up: called with the object when it is deleted, until the call succeeds; then the
            finalizer is removed. It may run more than once.

    Returns:
        The object with its finalizer while it lives; None if it is being deleted and nothing
        is left to do.

    Raises:
        ConflictError: the object has changed since it was read.
        ValueError: the finalizer's name is invalid.
        TypeError: the object has no resource type.
    """
    if "/" not in finalizer or (problems := qualified_name_problems(finalizer)):
        why = "" if "/" not in finalizer else f": {problems[0]}"
        raise ValueError(f"{finalizer!r} is not a finalizer such as 'example.com/widgets'{why}")
    known = object_of(obj)
    if known.meta.deletion_timestamp is None:
        if finalizer in known.meta.finalizers:
            return obj
        return _as(obj, await _set_finalizers(client, known, [*known.meta.finalizers, finalizer]))
    if finalizer in known.meta.finalizers:
        await clean_up(obj)
        others = [name for name in known.meta.finalizers if name != finalizer]
        with contextlib.suppress(NotFoundError):  # another client removed it, so the object is gone
            _ = await _set_finalizers(client, known, others)
    return None


async def _set_finalizers(client: "Client", obj: Object, finalizers: list[str]) -> Object:
    # The version makes it safe to write the whole list: any concurrent change wins.
    resource = await client.discovery.for_kind(obj.api_version, obj.kind)
    return await client.patch(
        resource,
        obj.name,
        {"metadata": {**_unchanged(obj), "finalizers": finalizers}},
        obj.namespace or None,
    )


def _unchanged(obj: Object) -> dict[str, str]:
    return {"uid": obj.uid, "resourceVersion": obj.resource_version}
