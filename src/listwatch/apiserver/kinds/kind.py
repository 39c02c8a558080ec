"""The server's behavior for one kind, where it differs from the others."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

import msgspec

from listwatch.apiserver.kinds.addresses import Addresses
from listwatch.apiserver.kinds.cells import Cell
from listwatch.schema.causes import Cause

#: A JSON object that may be changed, and one that is read-only.
Object = dict[str, Any]


View = Mapping[str, Any]


class Converter(Protocol):
    """Converts objects between the stored form and another version."""

    def inward(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an object of the version in the stored form."""

    def outward(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return a stored object in the form of the version."""


class VersionConverter(Converter, Protocol):
    """Converts objects of a custom resource between one of its versions and the stored form."""

    def to(self, obj: dict[str, Any], other: Any) -> dict[str, Any]:
        """Return an object of this version in the version of another converter."""

    def mark(self, obj: dict[str, Any]) -> None:
        """Set an object's storage version, in place, if it has none."""

    def is_current(self, obj: Mapping[str, Any]) -> bool:
        """Return whether a stored object would be stored in the same version now."""


class Ending(Enum):
    """How a deletion of an object starts."""

    #: like most kinds: finalizers delay it
    AS_USUAL = "as usual"
    #: the object was marked, which is stored, and stays
    MARKED = "marked"
    #: the object stays unchanged
    STAYS = "stays"
    #: the object is removed at once
    GOES = "goes"


class Kind(msgspec.Struct, frozen=True):
    """The server's behavior for one kind.

    Attributes:
        name_rule: "subdomain", "label", "dns1035" or "path" (any name without "/" and "%").
        stored_as: group and version in which a real server stores it, if not those of its path.
        generation: whether the generation counts changes of the spec.
        create_on_update: whether PUT creates a missing object.
        unconditional_update: whether PUT needs no resource version.
        returns_deleted: whether a delete returns the object instead of a Status.
        orphan_by_default: whether deleting without a policy orphans the dependents.
        graceful: whether a deletion waits for the grace period.
        keeps_status: whether a create keeps the client's status.
        status_leaves: the part of metadata that a write to the status leaves unchanged, if any.
        new_generation: the generation of a new object; 0 for none.
        generation_moves: returns whether a change increments the generation.
        generation_with: parts of metadata whose change also increments the generation.
        immortal: names of objects that can't be deleted.
        deprecation: the warning in each response.
        deletion_warning: the warning for a deletion without a propagation policy.
        fields: the field selectors beyond metadata.name and metadata.namespace, with the path of
            each value and its default.
        field_names: other names of these selectors in a version, with the stored names.
        spelled: the field whose JSON text counts, see `spelling`.
        immutable: top-level fields that an update must not change.
        converters: for versions that are stored in another form.
        defaults: sets fields that a client omitted.
        complete: adds to a new object fields without an owner that policies and webhooks see.
        admit: adds to a new object fields without an owner, after its owners were recorded.
        sign: writes the requesting user into a new object: username, uid, groups and extra.
        parts: what subresources such as resize keep of the old object.
        part_rules: the violations of a change through such a subresource, like update_rule.
        carry: keeps the parts of the old object that a write to the main path must not change.
        settle: completes a written status; gets the new and old object and a timestamp.
        allocate: allocates addresses for a new or changed object; returns the violations.
        end: starts a deletion; gets the object, which it may mark, and a timestamp.
        held: returns whether an object must be kept even without finalizers in its metadata.
        rule: returns the violations of an object, at every write.
        compiles: whether `rule` compiles expressions; long ones take time.
        new_rule: returns further violations of a new object.
        update_rule: returns the violations of a change; gets the new and the old object.
        checks_metadata: how often the metadata of a change is checked, as the causes show.
        checks_whole: whether a change is also checked by the rules for a new object.
        cells: the cells of its tables, by column.
        conditions: returns the conditions of its row in a table.
        hidden_annotations: annotations that PartialObjectMetadata lacks.
    """

    name_rule: str = "subdomain"
    stored_as: str = ""
    generation: bool = False
    create_on_update: bool = False
    unconditional_update: bool = True
    returns_deleted: bool = False
    orphan_by_default: bool = False
    graceful: bool = False
    keeps_status: bool = False
    status_leaves: str = ""
    new_generation: int = 1
    generation_moves: bool = True
    generation_with: tuple[str, ...] = ()
    immortal: frozenset[str] = frozenset()
    deprecation: str = ""
    deletion_warning: str = ""
    fields: Mapping[str, tuple[str, str]] = {}
    field_names: Mapping[str, str] = {}
    spelled: str = ""
    immutable: tuple[str, ...] = ()
    converters: Mapping[str, Converter] = {}
    defaults: Callable[[Object], None] | None = None
    complete: Callable[[Object], None] | None = None
    admit: Callable[[Object], None] | None = None
    sign: Callable[[Object, Mapping[str, Any]], None] | None = None
    parts: Mapping[str, Callable[[Object, View], None]] = {}
    part_rules: Mapping[str, Callable[[View, View], list[Cause]]] = {}
    carry: Callable[[Object, View], None] | None = None
    settle: Callable[[Object, View, str], None] | None = None
    allocate: Callable[[Object, Object | None, Addresses], list[Cause]] | None = None
    end: Callable[[Object, str], Ending] | None = None
    held: Callable[[View], bool] | None = None
    rule: Callable[[View], list[Cause]] | None = None
    compiles: bool = False
    new_rule: Callable[[View], list[Cause]] | None = None
    update_rule: Callable[[View, View], list[Cause]] | None = None
    checks_metadata: int = 2
    checks_whole: bool = False
    cells: Mapping[str, Cell] = {}
    conditions: Callable[[View], list[Object]] | None = None
    hidden_annotations: tuple[str, ...] = ()


def carry(new: Object, old: View, key: str) -> None:
    """Keep the old value under a key, or its absence."""
    if key in old:
        new[key] = old[key]
    else:
        new.pop(key, None)


def paths(*names: str, **absent: str) -> dict[str, tuple[str, str]]:
    """Return field selectors whose values are at their own paths.

    Args:
        names: the selectors.
        absent: the defaults of absent values, by the last part of the path.
    """
    return {name: (name, absent.get(name.rpartition(".")[2], "")) for name in names}


def status_of(obj: Object) -> Object:
    """Return an object's status, created if missing."""
    status: Object = obj.setdefault("status", {})
    return status
