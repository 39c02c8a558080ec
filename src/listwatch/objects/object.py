"""A Kubernetes object as frozen bytes plus typed metadata, and its decoder.

A cached object costs no garbage collection and can't be changed by accident: reads decode the bytes
afresh, and nothing decoded is kept.
"""

from asyncio import CancelledError
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from typing import (
    Any,
    Protocol,
    TypeVar,
    cast,
    get_origin,
    is_typeddict,
    overload,
)

import msgspec
from msgspec.structs import force_setattr

from listwatch.errors import ListWatchError
from listwatch.objects.field_types import holds_bytes, subclass_namespace
from listwatch.objects.json_values import UTF8Check, identity, mend
from listwatch.objects.managed_fields import cut_managed_fields
from listwatch.objects.metadata import (
    NO_RAW,
    ObjectMeta,
    OwnerReference,
    Places,
    remember,
    without_nulls,
)
from listwatch.objects.read_only import read_only

T = TypeVar("T")


class ObjectDecodeError(ListWatchError):
    """The bytes are not a Kubernetes object.

    Attributes:
        key: the key of the object, if it can be found. A slash in its name is written as `%2F`.
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        self.key = key
        super().__init__(message)


class Codec(Protocol):
    """Packs and unpacks the stored bytes, to save memory."""

    def pack(self, raw: bytes) -> bytes:
        """Return the bytes to store."""

    def unpack(self, packed: bytes) -> bytes:
        """Return what was given to `pack`."""


class Object(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One state of one Kubernetes object of any kind: immutable bytes plus typed metadata.

    `obj["spec"]["nodeName"]` decodes afresh and is read-only; `to_dict()` returns a new mutable
    dict; `decode(T)` returns a value of your own type. kind and apiVersion are always set, even for
    items of a list that lack them on the wire. Thread-safe. Two objects are equal if their kinds,
    apiVersions and bytes are.

    Attributes:
        key: "namespace/name", or "name" for a cluster-scoped object.
        meta: the typed metadata.
        fields: the instance decoded by a decoder with `fields=`; otherwise None.
        partial: the bytes lack fields that the server has (because of a transform or a
            metadata-only request), so a PUT would delete them and is refused. Missing managedFields
            do not count: the server keeps them.
    """

    key: str
    meta: ObjectMeta
    kind: str
    api_version: str
    _packed: bytes
    fields: Any = None
    partial: bool = False
    _typed: bool = True
    _codec: Codec | None = None

    @property
    def raw(self) -> bytes:
        """The stored JSON; kind and apiVersion may be missing (`json` has them)."""
        return self._packed if self._codec is None else self._codec.unpack(self._packed)

    @property
    def stored_bytes(self) -> int:
        """Size of the cached JSON in bytes, packed if it is."""
        return len(self._packed)

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.meta.name

    @property
    def namespace(self) -> str:
        """`metadata.namespace`, empty for a cluster-scoped object."""
        return self.meta.namespace

    @property
    def uid(self) -> str:
        """`metadata.uid`."""
        return self.meta.uid

    @property
    def resource_version(self) -> str:
        """`metadata.resourceVersion`."""
        return self.meta.resource_version

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels, read-only."""
        return self.meta.labels

    @property
    def owner_references(self) -> tuple[OwnerReference, ...]:
        """The owner references."""
        return self.meta.owner_references

    def json(self) -> bytes:
        """Return the whole object as JSON, including kind and apiVersion.

        Escaped unpaired surrogates are replaced by U+FFFD, as Go reads them.
        """
        raw = mend(self.raw)
        if self._typed:
            return raw
        head = b'{"kind":%b,"apiVersion":%b' % (_encode(self.kind), _encode(self.api_version))
        # The decoder has seen a name, so the object is not empty and a comma is due.
        return head + b"," + raw[raw.index(b"{") + 1 :]

    def to_dict(self) -> dict[str, Any]:
        """Return a fresh dict of the whole object, which the caller may change.

        Raises:
            ObjectDecodeError: the object is nested too deeply for the remaining stack, or has a
                number that is too large.
        """
        try:
            return cast("dict[str, Any]", _decode(self.json()))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self._unreadable(error) from error

    @overload
    def decode(self, into: type[T]) -> T: ...
    @overload
    def decode(self, into: Callable[[dict[str, Any]], T]) -> T: ...
    def decode(self, into: Any) -> Any:
        """Return the object as another type, decoded afresh.

        Args:
            into: a msgspec Struct, dataclass, attrs class, TypedDict or `dict[...]` type; a
                pydantic model; any callable that takes a fresh dict; or `Object`, to return it
                unchanged.

        Raises:
            ObjectDecodeError: the object does not fit the type, or the callable raised; the
                exception is the cause.
            TypeError: `into` is a class that does not accept a dict, like the models that OpenAPI
                Generator created before it used pydantic.
        """
        make: Any
        value: Any
        if into is Object:
            return self
        if (validate := getattr(into, "model_validate_json", None)) is not None:
            make, value = validate, self.json()
        elif _is_msgspec_type(into):
            make, value = _decoder(into).decode, self.json()
        elif isinstance(into, type) and hasattr(into, "openapi_types"):
            raise TypeError(
                f"{into.__name__} cannot be built from a dict: pass a function that calls "
                "ApiClient.deserialize (see decode= in docs/informers.md)"
            )
        else:
            make, value = into, self.to_dict()
        try:
            return make(value)
        except (Exception, CancelledError) as error:
            why = str(error) or type(error).__name__
            if validate is not None and (errors := getattr(error, "errors", None)) is not None:
                # pydantic's own text contains the values, which may be secret.
                found = errors(include_url=False, include_context=False, include_input=False)
                why = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found)
            name = into.__name__ if isinstance(into, type) else getattr(into, "__qualname__", into)
            raise ObjectDecodeError(
                f"{self.kind} {self.key} does not fit {name}: {why}", key=self.key
            ) from error

    def __getitem__(self, field: str) -> Any:
        if field == "kind":
            return self.kind
        if field == "apiVersion":
            return self.api_version
        raw = self.raw
        try:
            value = _decode(_top(raw)[field])
        except (msgspec.MsgspecError, RecursionError):
            try:
                value = _decode(_top(mend(raw))[field])
            except (msgspec.MsgspecError, RecursionError) as error:
                raise self._unreadable(error) from error
        return read_only(value)

    def _unreadable(self, error: Exception) -> ObjectDecodeError:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        return ObjectDecodeError(f"{self.kind} {self.key} can't be decoded: {why}", key=self.key)

    def get(self, field: str, default: Any = None) -> Any:
        """Return a top-level field, decoded afresh and read-only, or the default.

        Raises:
            ObjectDecodeError: as `to_dict`.
        """
        try:
            return self[field]
        except KeyError:
            return default

    def __contains__(self, field: object) -> bool:
        if field in {"kind", "apiVersion"}:
            return True
        raw = self.raw
        try:
            return field in _top(raw)
        except (msgspec.MsgspecError, RecursionError):
            try:
                return field in _top(mend(raw))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise self._unreadable(error) from error

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Object):
            return NotImplemented
        return (self.kind, self.api_version, self.raw) == (other.kind, other.api_version, other.raw)

    def __hash__(self) -> int:
        return hash((self.key, self.meta.uid, self.meta.resource_version))

    def __reduce__(self) -> tuple[Any, ...]:
        # A codec belongs to a cache: a copied object takes its unpacked bytes along.
        codec = self._codec
        rest = (self.fields, self.partial, self._typed)
        raw = self._packed if codec is None else codec.unpack(self._packed)
        return (Object, (self.key, self.meta, self.kind, self.api_version, raw, *rest))

    def __repr__(self) -> str:
        return f"<{self.kind or 'Object'} {self.key} rv={self.meta.resource_version}>"

    @staticmethod
    def from_dict(value: Mapping[str, Any]) -> "Object":
        """Create an object from its decoded form, which must contain only JSON values.

        Raises:
            ObjectDecodeError: no name, or metadata of the wrong types.
        """
        return decode_object(_encode(value))


# --- Decoding ------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_TRUNCATED = "Input data was truncated"
_TRAILING = "JSON is malformed: trailing characters"
#: No path can contain these.
_NO_NAMES = frozenset({".", ".."})


class _Head(msgspec.Struct, gc=False):
    metadata: ObjectMeta
    kind: str = ""
    apiVersion: str = ""  # noqa: N815 - the name in JSON


@lru_cache(maxsize=256)
def _decoder(into: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(into)


def _is_msgspec_type(into: object) -> bool:
    if get_origin(into) is not None or into is dict:
        return True
    return isinstance(into, type) and (
        issubclass(into, msgspec.Struct)
        or is_dataclass(into)
        or is_typeddict(into)
        or hasattr(into, "__attrs_attrs__")
    )


class ObjectDecoder:
    """Creates an `Object` from its bytes, in one pass.

    Thread-safe.

    Args:
        fields: a msgspec Struct type with the fields to keep decoded with each object, named as on
            the wire (or renamed), available as `Object.fields`. They are decoded in the same pass
            as the metadata, except for types with `msgspec.Raw`, which are slices of the stored
            bytes and take their own pass. Use `gc=False`, and defaults for fields that may be
            absent.
        keep_managed_fields: keep `metadata.managedFields` in the bytes.
        partial: mark every object as lacking fields, for metadata-only requests.
        codec: packs the stored bytes.
    """

    def __init__(
        self,
        *,
        fields: type[msgspec.Struct] | None = None,
        keep_managed_fields: bool = False,
        partial: bool = False,
        codec: Codec | None = None,
    ) -> None:
        head: type[_Head] = _Head
        self._has_fields = fields is not None
        self._fields_decode: Callable[[bytes], Any] | None = None
        if fields is not None:
            given: Any = fields
            if not (isinstance(given, type) and issubclass(given, msgspec.Struct)):
                raise TypeError(f"fields={fields!r} must be a msgspec.Struct type")
            info = msgspec.structs.fields(fields)
            collide = {f.encode_name for f in info} & {"metadata", "kind", "apiVersion"}
            # These fields need their own pass, and so do slices, which must refer to the stored
            # bytes instead of keeping others alive.
            if collide or holds_bytes(fields):
                self._fields_decode = msgspec.json.Decoder(fields).decode
            else:
                # Its instances are instances of `fields`, so nothing has to be copied.
                head = cast(
                    "type[_Head]",
                    msgspec.defstruct(
                        fields.__name__,
                        [
                            ("kind", str, ""),
                            ("apiVersion", str, ""),
                            ("metadata", ObjectMeta, msgspec.field(default_factory=ObjectMeta)),
                        ],
                        bases=(fields,),
                        namespace=subclass_namespace(fields),
                        kw_only=True,
                    ),
                )
        self._decode = msgspec.json.Decoder(head).decode
        self._keep_managed_fields = keep_managed_fields
        self._partial = partial
        self._codec = codec
        # Strings common to many objects, which share one copy of each.
        self._words: dict[str, str] = {}
        self._point = Places().point
        self._is_utf8 = UTF8Check()

    def __call__(self, raw: bytes, kind: str = "", api_version: str = "") -> Object:
        """Decode one object.

        Args:
            raw: its JSON and nothing else. Not kept if managedFields are cut out.
            kind: the kind if the bytes name none, as in lists of built-in kinds.
            api_version: the same for apiVersion.

        Raises:
            ObjectDecodeError: not JSON, null, metadata of the wrong types, no name or an invalid
                one, or nested deeper than Python's recursion limit.
        """
        return self.decode_part(raw, 0, len(raw), kind, api_version)

    def decode_part(
        self, data: bytes | bytearray, begin: int, end: int, kind: str = "", api_version: str = ""
    ) -> Object:
        """Decode one object within larger bytes, which are not kept.

        Copies the object once, without its managedFields.

        Args:
            data: contains the object; may be changed after the call, but not during it.
            begin: its start.
            end: its end.
            kind: as for a call.
            api_version: as for a call.

        Raises:
            ObjectDecodeError: as for a call.
        """
        part = memoryview(data)[begin:end]
        try:
            head = self._decode(part)
        except (msgspec.MsgspecError, RecursionError) as error:
            raw = bytes(part)
            if (mended := mend(raw)) is not raw:
                return self.decode_part(mended, 0, len(mended), kind, api_version)
            head = self._decode_with_nulls(raw, error)
        meta = head.metadata
        name = meta._key  # noqa: SLF001 - unfinished metadata
        if not name:
            raise ObjectDecodeError("the object lacks metadata.name")
        managed = meta._source  # noqa: SLF001 - as above
        if managed is not NO_RAW and not self._keep_managed_fields:
            raw = cut_managed_fields(data, begin, end, managed)
        else:
            raw = data if end - begin == len(data) and data.__class__ is bytes else bytes(part)
        # The decoder does not check text that it skips.
        if not (raw.isascii() or self._is_utf8(raw)):
            mended = mend(raw)
            return self.decode_part(mended, 0, len(mended), kind, api_version)
        words = self._words
        own_kind, own_version = head.kind, head.apiVersion
        typed = own_kind != "" and own_version != ""
        # The given strings are shared already.
        if own_kind != kind and own_kind:
            kind = words.get(own_kind) or remember(words, own_kind)
        if own_version != api_version and own_version:
            api_version = words.get(own_version) or remember(words, own_version)
        if not typed and (own_kind or own_version):
            raw = _with_type(raw, kind, api_version)
            typed = True
        if namespace := meta.namespace:
            key = f"{namespace}/{name}"
            force_setattr(meta, "_key", key)
            force_setattr(meta, "namespace", words.get(namespace) or remember(words, namespace))
            is_no_name = key.count("/") != 1
        else:
            key = name
            is_no_name = "/" in key
        if is_no_name or name in _NO_NAMES:
            raise _no_object(f"an object can't have the name {name!r} in {namespace!r}", raw)
        codec = self._codec
        try:
            self._point(meta, raw, codec is not None)
        except msgspec.MsgspecError as error:
            raise _no_object(str(error), raw) from error
        fields = self._fields_of(head, raw, key, kind, api_version) if self._has_fields else None
        return Object(
            key,
            meta,
            kind,
            api_version,
            raw if codec is None else codec.pack(raw),
            fields,
            self._partial,
            typed,
            codec,
        )

    def _fields_of(self, head: _Head, raw: bytes, key: str, kind: str, api_version: str) -> Any:
        if self._fields_decode is None:  # the one pass has found them
            force_setattr(head, "kind", kind)
            force_setattr(head, "apiVersion", api_version)
            return head
        try:
            return self._fields_decode(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            try:
                return self._fields_decode(_encode(_cut_nulls(raw)))
            except (msgspec.MsgspecError, RecursionError):
                raise ObjectDecodeError(f"{key}: {error}", key=key) from error

    def _decode_with_nulls(self, raw: bytes, error: Exception) -> _Head:
        # A null is an absent field everywhere in the API, but msgspec refuses it for these types.
        # It is rare, so nulls are removed only after a refusal.
        try:
            return self._decode(_encode(_cut_nulls(raw)))
        except (msgspec.MsgspecError, AttributeError, RecursionError):
            why = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise _no_object(str(why), raw) from error


def _cut_nulls(raw: bytes) -> dict[str, Any]:
    return {
        name: without_nulls(value) if name == "metadata" else value
        for name, value in _decode(raw).items()
        if value is not None
    }


def _no_object(why: str, raw: bytes) -> ObjectDecodeError:
    """Return the error for bytes that are not an object, with the key if a scan finds it."""
    # Frames try bytes that are less or more than one object; scanning those would be wasted.
    is_guess = why == _TRUNCATED or why.startswith(_TRAILING)
    key = None if is_guess else identity(raw).key
    return ObjectDecodeError(f"not a Kubernetes object: {why}", key=key)


def _with_type(raw: bytes, kind: str, api_version: str) -> bytes:
    try:
        value = cast("dict[str, Any]", _decode(mend(raw)))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _no_object(str(error), raw) from error
    return _encode({**value, "kind": kind, "apiVersion": api_version})


#: Decodes one object with the defaults of `ObjectDecoder`.
decode_object = ObjectDecoder()
