"""The metadata of an object; labels and owners stay as slices of its bytes."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import force_setattr

from listwatch.selector import LabelSelector, json_matcher

# ruff: noqa: SLF001 - what metadata hide is made and read in this module alone

K = TypeVar("K")
M = TypeVar("M", bound="HasMeta")

_NO_LABELS: Mapping[str, str] = MappingProxyType({})
NO_RAW = msgspec.Raw(b"")

#: Position in an object's bytes: begin << _SIZE_BITS | size. Or the bytes themselves, if they can't
#: be found, the object's bytes are packed, or the labels are not in compact form.
_Place: TypeAlias = int | bytes
_SIZE_BITS = 32
_SIZE_MASK = (1 << _SIZE_BITS) - 1


class OwnerReference(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An owner, as in `metadata.ownerReferences`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(
    msgspec.Struct,
    frozen=True,
    gc=False,
    eq=False,
    rename={
        "_key": "name",
        "resource_version": "resourceVersion",
        "deletion_timestamp": "deletionTimestamp",
        "_owner_references": "ownerReferences",
        "_labels": "labels",
        "_source": "managedFields",
    },
):
    """The metadata that the machinery uses; the `Object` has the rest.

    `deletion_timestamp` is the RFC 3339 text, or None before the deletion. Labels and owners are
    decoded at each access; for frequent access use an index or `fields=`. Only an `ObjectDecoder`
    creates these.
    """

    # A hundred thousand objects are kept, so nothing is stored twice: the name is the end of the
    # key, and labels and owners are slices of the object's bytes. During decoding, these fields
    # hold the values of their wire names.
    _key: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    finalizers: tuple[str, ...] = ()
    deletion_timestamp: str | None = None
    _owner_references: msgspec.Raw = NO_RAW  # later a _Place
    _labels: msgspec.Raw = NO_RAW  # later a _Place
    _source: msgspec.Raw = NO_RAW  # the managedFields, later the object's bytes

    @property
    def name(self) -> str:
        """The name."""
        namespace = self.namespace
        return self._key[len(namespace) + 1 :] if namespace else self._key

    @property
    def owner_references(self) -> tuple[OwnerReference, ...]:
        """The owners of the object."""
        place = self._owner_references
        return _decode_owners(self._read(place)) if place else ()

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels, read-only; empty if there are none."""
        place = self._labels
        return MappingProxyType(_decode_labels(self._read(place))) if place else _NO_LABELS

    def _read(self, place: Any) -> bytes:
        value: bytes = place  # not `cast`, which is a call
        if place.__class__ is int:
            source: Any = self._source
            begin = place >> _SIZE_BITS
            value = source[begin : begin + (place & _SIZE_MASK)]
        return value

    def _visible(self) -> tuple[object, ...]:
        return (
            self._key,
            self.uid,
            self.resource_version,
            self.generation,
            self.finalizers,
            self.deletion_timestamp,
            self.owner_references,
            self.labels,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectMeta):
            return NotImplemented
        return self is other or self._visible() == other._visible()

    def __hash__(self) -> int:
        return hash((self._key, self.uid, self.resource_version))

    def __repr__(self) -> str:
        return f"<metadata of {self._key} uid={self.uid} rv={self.resource_version}>"


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_labels = msgspec.json.Decoder(dict[str, str]).decode
_labels_with_nulls = msgspec.json.Decoder(dict[str, str | None] | None).decode
_owners = msgspec.json.Decoder(tuple[OwnerReference, ...]).decode
_OWNERS_KEY = b'"ownerReferences":'
_LABELS_KEY = b'"labels":'


# A null is an absent field or value everywhere in the API, but is rare.


def _decode_labels(raw: bytes | msgspec.Raw) -> dict[str, str]:
    try:
        return _labels(raw)
    except msgspec.ValidationError:
        found = _labels_with_nulls(raw) or {}
        return {name: value for name, value in found.items() if value is not None}


def _decode_owners(raw: bytes | msgspec.Raw) -> tuple[OwnerReference, ...]:
    try:
        return _owners(raw)
    except msgspec.ValidationError:
        return _owners(_encode(without_nulls(_decode(raw)) or ()))


def without_nulls(value: Any) -> Any:
    """Return decoded JSON without the keys whose value is null."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


class Places:
    """Replaces the bytes of labels and owners in metadata by their positions.

    Many objects have equal positions, so they share one number. Thread-safe.
    """

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def point(self, meta: ObjectMeta, raw: bytes, packed: bool) -> None:  # noqa: FBT001 - keywords cost time for each object
        """Make metadata read labels and owners from an object's bytes.

        Args:
            meta: the decoded metadata, not shared yet.
            raw: the object's stored bytes.
            packed: the bytes will be packed, so nothing can be read from them.

        Raises:
            msgspec.MsgspecError: labels or owners have the wrong types.
        """
        labels, owners = meta._labels, meta._owner_references
        if labels is not NO_RAW:
            found = _decode_labels(labels)
            # Any other form, with spaces, escapes or nulls, takes more bytes.
            least = 6 * len(found) + 1 + len("".join(found)) + len("".join(found.values()))
            copy = packed or len(labels) != least
            place = bytes(labels) if copy else self._place(raw, _LABELS_KEY, labels)
            force_setattr(meta, "_labels", place)
        if owners is not NO_RAW:
            _decode_owners(owners)
            place = bytes(owners) if packed else self._place(raw, _OWNERS_KEY, owners)
            force_setattr(meta, "_owner_references", place)
        force_setattr(meta, "_source", NO_RAW if packed else raw)

    def _place(self, raw: bytes, key: bytes, value: Any) -> _Place:
        begin = raw.find(key) + len(key)
        # Wherever they are from, equal bytes mean the same.
        if raw.startswith(value, begin):
            place = begin << _SIZE_BITS | len(value)
            return self._known.get(place) or remember(self._known, place)
        return bytes(value)


#: Maximum different strings or positions remembered.
_MOST_SHARED = 8192


def remember(known: dict[K, K], value: K) -> K:
    """Return a remembered equal value, so that equal ones share it; forget all if too many."""
    if len(known) >= _MOST_SHARED:
        known.clear()
    known[value] = value
    return value


class HasMeta(Protocol):
    """An object with metadata."""

    @property
    def meta(self) -> ObjectMeta:
        """The metadata."""
        ...


def select(objects: Iterable[M], selector: LabelSelector) -> list[M]:
    """Return the objects whose labels match a selector, in their order.

    Avoids decoding labels where possible, which is several times faster.
    """
    matches = json_matcher(selector)
    if matches is None:
        return [obj for obj in objects if selector.matches(obj.meta.labels)]
    selected: list[M] = []
    source: Any  # not `cast`, which is a call
    for obj in objects:
        meta = obj.meta
        place: Any = meta._labels
        if place.__class__ is int:
            begin = place >> _SIZE_BITS
            source = meta._source
            matched = matches(source, begin, begin + (place & _SIZE_MASK))
        else:
            matched = selector.matches(meta.labels)
        if matched:
            selected.append(obj)
    return selected
