"""Preconditions of writes: the expected version and uid of the object."""

from typing import Any

from listwatch.apiserver import refusal
from listwatch.apiserver.kinds.catalog import kind_of
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.store import Entry
from listwatch.schema.causes import invalid_value
from listwatch.schema.go_words import whole_number

Object = dict[str, Any]


def check_conditions(
    resource: APIResource, entry: Entry, metadata: Object, *, is_put: bool
) -> None:
    """Refuse, with 409, a write whose `metadata` names another version or object."""
    name = entry.name
    version = asked_version(metadata)
    if version == 0:
        if is_put and not kind_of(resource).unconditional_update:
            raise refusal.invalid(
                resource.name,
                resource.group,
                name,
                [invalid_value("metadata.resourceVersion", 0, "must be specified for an update")],
            )
    elif version != entry.revision:
        raise refusal.conflict(resource, name)
    if is_put and metadata.get("uid") and metadata["uid"] != entry.uid:
        raise refusal.conflict(
            resource,
            name,
            f"StorageError: invalid object, Code: 4, Key: /registry/{resource.storage}/"
            f"{entry.key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID "
            f"in precondition: {metadata['uid']}, UID in object meta: {entry.uid}",
        )


def check_deletion(
    resource: APIResource, entry: Entry, uid: str | None, resource_version: str | None
) -> None:
    """Refuse, with 409, to delete another object or version than the preconditions name."""
    if uid is not None and uid != entry.uid:
        raise refusal.precondition_failed(
            resource,
            entry.name,
            f"the UID in the precondition ({uid}) does not match the UID in record "
            f"({entry.uid}). The object might have been deleted and then recreated",
        )
    if resource_version is not None and resource_version != str(entry.revision):
        raise refusal.precondition_failed(
            resource,
            entry.name,
            f"the ResourceVersion in the precondition ({resource_version}) does not "
            f"match the ResourceVersion in record ({entry.revision}). The object might have "
            "been modified",
        )


def asked_version(metadata: Object) -> int:
    """Return the version that an update expects; 0 for any.

    Raises:
        StatusError: 500, it is not a number.
    """
    try:
        return whole_number(metadata.get("resourceVersion") or "0", "ParseUint")
    except ValueError as error:
        raise refusal.server_error(str(error)) from None


def takes_version(metadata: Object) -> bool:
    """Remove the version from the metadata of a new object; return whether there was one."""
    # like `store.Create` of apiserver/pkg/storage/etcd3, ignore invalid ones
    try:
        return whole_number(metadata.pop("resourceVersion", None) or "0", "ParseUint") != 0
    except ValueError:
        return False
