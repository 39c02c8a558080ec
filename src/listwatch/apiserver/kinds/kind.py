"""What the server does with one kind: everything in which it differs from others."""

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
    """Turns objects of a custom resource between one of its versions and what is stored."""

    def to(self, obj: dict[str, Any], other: Any) -> dict[str, Any]:
        """Return an object of the version in that of another converter of the resource."""

    def mark(self, obj: dict[str, Any]) -> None:
        """Give an object, in place, the version in which it is stored where it lacks."""

    def is_current(self, obj: Mapping[str, Any]) -> bool:
        """Tell whether a stored object would be stored in the same version now."""


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
    """What the server does with one kind.

    Attributes:
        name_rule: "subdomain", "label", "dns1035" or "path" (any name without "/" and "%").
        storage: the key of the kind under which its objects are stored, if not its own.
        generation: whether generation counts the changes of the spec.
        create_on_update: whether PUT makes a missing object.
        unconditional_update: whether PUT needs no resource version.
        returns_deleted: whether a delete answers with the object in place of a Status.
        orphan_by_default: whether deleting without a policy leaves the dependents.
        graceful: whether a deletion waits for the grace period.
        keeps_status: whether a create keeps the status that a client sends.
        status_leaves: the part of metadata that a write to the status path does not touch, if
            any.
        new_generation: the generation of a new object; 0 for none.
        generation_moves: whether a change moves the generation.
        generation_with: parts of metadata whose change moves the generation as the spec's does.
        immortal: names of objects that may not be deleted.
        deprecation: what each answer warns of.
        deletion_warning: what a deletion warns of that says nothing of the dependents.
        fields: the field selectors beyond metadata.name and metadata.namespace, with the path of
            each value and what stands for an absent one.
        field_names: the names of these selectors in a version that has others, with the stored.
        immutable: top-level fields that an update may not change.
        converters: of versions that are stored in another form.
        defaults: fills in what a client left out.
        admit: adds to a new object what nobody owns, after its owners were noted.
        sign: writes into a new object who asks for it: username, uid, groups and extra.
        carry: keeps of the old object what a write to the main path may not change.
        settle: completes a status that is written; gets the new and old object and a time stamp.
        allocate: gives a new or changed object its addresses; returns what prevents it.
        end: begins a deletion; gets the object, which it may mark, and a time stamp.
        held: tells whether an object without finalizers of its metadata still can't go.
        rule: returns what an object breaks, whenever it is written.
        new_rule: returns what a new object breaks, beside that.
        update_rule: returns what a change breaks; gets the new and the old object.
        checks_metadata: how often the rules of metadata are asked about a change, as causes show.
        cells: the cells of its tables, by column.
    """

    name_rule: str = "subdomain"
    storage: str = ""
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
    immutable: tuple[str, ...] = ()
    converters: Mapping[str, Converter] = {}
    defaults: Callable[[Object], None] | None = None
    admit: Callable[[Object], None] | None = None
    sign: Callable[[Object, Mapping[str, Any]], None] | None = None
    carry: Callable[[Object, View], None] | None = None
    settle: Callable[[Object, View, str], None] | None = None
    allocate: Callable[[Object, Object | None, Addresses], list[Cause]] | None = None
    end: Callable[[Object, str], Ending] | None = None
    held: Callable[[View], bool] | None = None
    rule: Callable[[View], list[Cause]] | None = None
    new_rule: Callable[[View], list[Cause]] | None = None
    update_rule: Callable[[View, View], list[Cause]] | None = None
    checks_metadata: int = 2
    cells: Mapping[str, Cell] = {}


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
