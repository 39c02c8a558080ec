"""Field ownership: the owners in `metadata.managedFields`, and how writes change them.

The rules are those of `apimachinery/pkg/util/managedfields`.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from listwatch.apiserver.storage.field_sets import (
    Fields,
    difference_of_states,
    from_fields_v1,
    left_of,
    minus,
    to_fields_v1,
    union,
    without_server_fields,
)
from listwatch.schema.facts import Schema


class _Entry(msgspec.Struct, rename="camel"):
    """An entry of managedFields as sent by clients."""

    manager: str = ""
    operation: str = ""
    api_version: str = ""
    subresource: str = ""
    time: str | None = None
    fields_type: str = ""
    fields_v1: dict[str, Any] = msgspec.field(name="fieldsV1", default_factory=dict)


class Owner(msgspec.Struct, frozen=True, order=True):
    """A writer: managedFields has one entry for each."""

    operation: str
    manager: str
    api_version: str
    subresource: str = ""


class Managed:
    """The owners of one object and their sets."""

    def __init__(self) -> None:
        self.sets: dict[Owner, Fields] = {}
        self.times: dict[Owner, str] = {}

    @classmethod
    def read(
        cls,
        entries: Iterable[Mapping[str, Any]] | None,
        taken: Mapping[str, Any] | None = None,
    ) -> "Managed":
        """Parse the entries of an object's managedFields.

        Args:
            entries: the entries.
            taken: fields that the owners lose, in FieldsV1 form.

        Raises:
            ValueError: one of them is invalid.
        """
        managed = cls()
        for entry in msgspec.convert(entries or (), list[_Entry]):
            if entry.fields_type != "FieldsV1":
                raise ValueError(f"fieldsType {entry.fields_type} is not known")
            if entry.operation not in {"Apply", "Update"}:
                raise ValueError(f"operation {entry.operation} is not known")
            if not entry.api_version:
                raise ValueError("apiVersion is missing")
            owner = Owner(entry.operation, entry.manager, entry.api_version, entry.subresource)
            if taken:
                fields = left_of(entry.fields_v1, taken)
                if not fields:
                    continue
            else:
                fields = from_fields_v1(entry.fields_v1)
            managed.sets[owner] = fields
            if entry.time is not None:
                managed.times[owner] = entry.time
        return managed

    def write(self, known: Mapping[Owner, dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Return the entries for an object's managedFields.

        Args:
            known: sets whose FieldsV1 form is known, which saves converting them.
        """
        known = known or {}
        return [
            self._entry(owner, known[owner] if owner in known else to_fields_v1(self.sets[owner]))
            for owner in self._ordered()
        ]

    def _ordered(self) -> list[Owner]:
        return sorted(
            self.sets,
            key=lambda owner: (
                owner.operation != "Apply",
                self.times.get(owner, ""),
                owner.manager,
                owner.api_version,
                owner.subresource,
            ),
        )

    def _entry(self, owner: Owner, fields: dict[str, Any]) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "manager": owner.manager,
            "operation": owner.operation,
            "apiVersion": owner.api_version,
        }
        if owner in self.times:
            entry["time"] = self.times[owner]
        entry["fieldsType"] = "FieldsV1"
        entry["fieldsV1"] = fields
        if owner.subresource:
            entry["subresource"] = owner.subresource
        return entry

    def update(
        self,
        owner: Owner,
        old: Mapping[str, Any] | None,
        new: Mapping[str, Any],
        schema: Schema,
        *,
        now: str,
        reset: Iterable[tuple[str, ...]] = (),
    ) -> None:
        """Record a create (old is None) or an update; changed fields become the owner's."""
        changed, removed = difference_of_states(old or {}, new, schema)
        self.take(owner, without_server_fields(changed, reset), removed, now=now)

    def take(
        self, owner: Owner, changed: Fields, removed: Fields | None = None, *, now: str
    ) -> None:
        """Give fields to an owner, taking them from others, and remove deleted ones."""
        for other, fields in list(self.sets.items()):
            left = minus(fields, removed) if removed else fields
            if other != owner and changed:
                left = minus(left, changed)
            if left:
                self.sets[other] = left
            else:
                del self.sets[other]
                self.times.pop(other, None)
        if changed:
            self.sets[owner] = union(self.sets.get(owner, {}), changed)
            self.times[owner] = now

    @classmethod
    def entries_of_new(
        cls,
        given: Iterable[Mapping[str, Any]] | None,
        owner: Owner,
        fields: dict[str, Any],
        *,
        now: str,
    ) -> list[dict[str, Any]]:
        """Return the entries of a new object: its creator owns all fields, others keep the rest.

        Args:
            given: the entries that came with the object; invalid ones change nothing.
            owner: the creator.
            fields: all fields of the object, in FieldsV1 form, as from `created_fields`.
            now: the timestamp of the creation.
        """
        managed = cls()
        if given:
            with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
                managed = cls.read(given, fields)
        if not fields:
            return managed.write()
        known = managed.sets.get(owner)
        if known:
            fields = to_fields_v1(union(known, from_fields_v1(fields)))
        managed.sets[owner] = {}
        managed.times[owner] = now
        return managed.write({owner: fields})
