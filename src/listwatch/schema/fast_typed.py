"""The fast path of `typed`: bodies in which nothing needs fixing.

Most bodies already have the form that Go's types would write. Once several bodies of a kind have
come, a msgspec type is built that accepts only such bodies. Bodies that it refuses or would change
take the exact path, which also has the wording of every refusal.
"""

import functools
from collections import Counter
from typing import Annotated, Any

import msgspec

from listwatch.schema.facts import Form, Schema
from listwatch.schema.typed import (
    WrongTypeError,
    canonical_quantity,
    complete_conditions,
    keeps_empty,
)

Object = dict[str, Any]

#: Bodies of a kind before its type is built, because that takes a while.
_WORTH_IT = 20
#: Maximum kinds whose types are kept; there are fewer kinds.
_KINDS = 256

_DAY = (
    r"[1-9]\d{3}-((0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
    r"T([01]\d|2[0-3]):[0-5]\d:[0-5]\d"
)
_PATTERNS = {
    Form.TIME: rf"^{_DAY}Z$",
    Form.MICRO_TIME: rf"^{_DAY}\.\d{{6}}Z$",
    Form.BYTES: (
        r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
    ),
}
_INT32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]


class _Quantity(str):
    """A quantity in canonical form."""

    __slots__ = ()


def _read_quantity(_: type, value: Any) -> _Quantity:
    if not isinstance(value, str):
        raise WrongTypeError("a quantity that is a number takes the exact way")
    return _Quantity(canonical_quantity(value))


_PLAIN: dict[Form, Any] = {
    Form.STRING: str,
    Form.BOOLEAN: bool,
    Form.NUMBER: float | int,
    Form.INT_OR_STRING: int | str,
    Form.ANY: Any,
    Form.QUANTITY: _Quantity,
    **{form: Annotated[str, msgspec.Meta(pattern=text)] for form, text in _PATTERNS.items()},
}
#: Go's clients write null for these times if they are unset.
_TIMES = frozenset(
    (b'"creationTimestamp"', b'"lastProbeTime"', b'"lastTransitionTime"', b'"eventTime"')
)


def _without_unset_times(data: bytes) -> bytes:
    kept: list[bytes] = []
    begin, at = 0, data.find(b":null")
    while at >= 0:
        start, end = data.rfind(b'"', begin, at - 1), at + len(b":null")
        if start >= 0 and data[start:at] in _TIMES:
            before = data[begin:start]
            if data[end : end + 1] == b",":
                kept.append(before)
                begin = end = end + 1
            elif before.endswith(b","):
                kept.append(before[:-1])
                begin = end
            elif not before and kept and kept[-1].endswith(b","):
                kept[-1] = kept[-1][:-1]
                begin = end
        at = data.find(b":null", end)
    return b"".join((*kept, data[begin:])) if kept else data


class _RecursiveError(Exception):
    """A recursive type, which is not built here."""


class _Maker:
    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._busy: set[int] = set()

    def type_of(self, schema: Schema) -> Any:
        """Return the msgspec type of a schema."""
        form = schema.form
        if form is Form.STRUCT:
            return self._struct(schema)
        if form is Form.LIST:
            item = Any if schema.item is None else self.type_of(schema.item)
            return list[item]  # type: ignore[valid-type]  # created at run time
        if form is Form.MAP:
            item = Any if schema.item is None else self.type_of(schema.item)
            return dict[str, item]  # type: ignore[valid-type]  # created at run time
        if form is Form.INTEGER:
            return _INT32 if schema.go_type == "int32" else int
        return _PLAIN[form]

    def _struct(self, schema: Schema) -> Any:
        key = id(schema)
        made = self._made.get(key)
        if made is not None:
            return made
        if key in self._busy:
            raise _RecursiveError(schema.go_name)
        self._busy.add(key)
        fields: list[tuple[str, Any, Any]] = []
        names: dict[str, str] = {}
        for number, (name, field) in enumerate(schema.fields.items()):
            attribute = f"f{number}"
            names[attribute] = name
            kind = list[Object] if name == "managedFields" else self.type_of(field)
            default: Any = msgspec.UNSET
            if not keeps_empty(schema, name, field):
                default = _EMPTY[field.form]
            if default is msgspec.UNSET:
                kind = kind | msgspec.UnsetType if kind is not Any else Any
            fields.append((attribute, kind, default))
        made = msgspec.defstruct(
            schema.go_name,
            fields,
            rename=names,
            omit_defaults=True,
            forbid_unknown_fields=True,
            gc=False,
        )
        self._busy.discard(key)
        self._made[key] = made
        return made


_EMPTY: dict[Form, Any] = {
    Form.STRING: "",
    Form.BYTES: "",
    Form.INTEGER: 0,
    Form.BOOLEAN: False,
    Form.LIST: msgspec.field(default_factory=list),
    Form.MAP: msgspec.field(default_factory=dict),
}


@functools.lru_cache(maxsize=_KINDS)
def _decoder_of(schema: Schema) -> "msgspec.json.Decoder[Any] | None":
    if schema.form is not Form.STRUCT:
        return None
    try:
        return msgspec.json.Decoder(_Maker().type_of(schema), dec_hook=_read_quantity)
    except _RecursiveError:
        return None


class QuickDecoder:
    """Decodes the bodies of one server, and counts kinds. For one thread.

    Args:
        worth_it: bodies of a kind before its type is built.
    """

    def __init__(self, *, worth_it: int = _WORTH_IT) -> None:
        self._worth_it = worth_it
        self._seen: Counter[Schema] = Counter()

    def decode(self, data: bytes, schema: Schema) -> Object | None:
        """Return the object of a body, with kind and apiVersion; None: use the exact path."""
        seen = self._seen[schema]
        if seen < self._worth_it:
            self._seen[schema] = seen = seen + 1
            if seen < self._worth_it:
                return None
        decoder = _decoder_of(schema)
        obj = None if decoder is None else _decoded(data, decoder)
        if obj is not None and b'"conditions"' in data:
            complete_conditions(obj, schema)
        return obj


def _decoded(data: bytes, decoder: "msgspec.json.Decoder[Any]") -> Object | None:
    if b"null" in data:
        data = _without_unset_times(data)
        if b"null" in data:
            return None
    try:
        value = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, WrongTypeError):
        return None
    # a repeated key, or a dropped empty value, has lost its quotes
    if b"\\u0022" in data or data.count(b'"') != msgspec.json.encode(value, enc_hook=str).count(
        b'"'
    ):
        return None
    obj: Object = msgspec.to_builtins(value, enc_hook=str)
    return obj
