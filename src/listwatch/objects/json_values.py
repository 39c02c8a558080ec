"""Scans JSON that can't be decoded: ends of values, identity of objects, broken text.

Linear in time, without recursion, for any bytes. Slower than decoding: use it after a failure.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

Data: TypeAlias = bytes | bytearray
Viewed: TypeAlias = bytes | bytearray | memoryview

#: Returned by `ValueEnd.find` if no further bytes can complete the value.
BROKEN: Final = -2

_SPACE = re.compile(rb"[ \t\r\n]*+")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(")?|[\[{][\[{ \t\r\n]*+|[\]}]++', re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+(")?', re.DOTALL)
# No JSON string contains a line break: one shows that the end of the string was lost.
_TOKEN_IN_LINES = re.compile(rb'"(?:[^"\\\n]++|\\[^\n])*+(")?|[\[{][\[{ \t\r\n]*+|[\]}]++')
_REST_OF_STRING_IN_LINES = re.compile(rb'(?:[^"\\\n]++|\\[^\n])*+(")?')
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[^ \t\r\n,\[\]{}\":]++")
_SURROGATES = re.compile(
    rb"\\(?:u[dD](?:[89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|([89a-fA-F][0-9a-fA-F]{2}))|.)",
    re.DOTALL,
)
_MAYBE_HALF = re.compile(rb"\\u[dD][89a-fA-F]").search
_NO_UTF8 = re.compile("[\udc80-\udcff]")

_QUOTE: Final = 0x22
#: Below this size, looking for a smaller part that is not ASCII is not worth it,
_SHORT: Final = 512
#: unless similar data follow, in which such text may have moved by this much.
_SHORTEST: Final = 64
_OPENING = frozenset(b"[{")
_NO_CONTROLS = bytes(max(byte, 0x20) for byte in range(256))
_raw = msgspec.json.Decoder(msgspec.Raw).decode
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)").search
#: No object, nor its metadata, has this many members.
_MOST_MEMBERS: Final = 1_000
#: Larger values are not scanned: by default etcd stores no object over 1.5 MB.
LONGEST_SCAN: Final = 2 * 2**20


class ValueEnd:
    """Finds the end of one JSON object or array while its bytes arrive.

    Counts brackets outside of strings and checks no other grammar.

    Args:
        begin: position of the value's first bracket in the data.
        in_lines: a line break inside a string makes the value broken.
    """

    __slots__ = ("_depth", "_in_lines", "_in_string", "_position")

    def __init__(self, begin: int = 0, *, in_lines: bool = False) -> None:
        self._position = begin
        self._depth = 0
        self._in_string = False
        self._in_lines = in_lines

    def move(self, begin: int) -> None:
        """Continue in data that starts where this position was."""
        self._position -= begin

    @property
    def position(self) -> int:
        """The position reached; at a line break if the value is broken."""
        return self._position

    def find(self, data: Viewed, limit: int | None = None) -> int:
        """Return the end of the value, -1 if it is not there yet, or `BROKEN`.

        Args:
            data: the earlier data with more appended, of which only the new part is read.
            limit: where to stop reading; the end of the data by default.
        """
        if limit is None:
            limit = len(data)
        if self._in_string:
            rest = _REST_OF_STRING_IN_LINES if self._in_lines else _REST_OF_STRING
            token = rest.match(data, self._position, limit)
            assert token is not None  # noqa: S101 - for the type checker: the pattern matches the empty text
            self._position = token.end()
            if token[1] is None:
                return self._in_a_string(data)
            self._in_string = False
        tokens = _TOKEN_IN_LINES if self._in_lines else _TOKEN
        depth = self._depth
        for token in tokens.finditer(data, self._position, limit):
            begin, end = token.span()
            first = data[begin]
            if first == _QUOTE:
                if token[1] is None:
                    self._depth, self._position, self._in_string = depth, end, True
                    return self._in_a_string(data)
            elif first in _OPENING:
                depth += 1 if end == begin + 1 else len(token[0].translate(None, b" \t\r\n"))
            elif depth <= end - begin:
                return begin + depth
            else:
                depth -= end - begin
        self._depth, self._position = depth, limit
        return -1

    def _in_a_string(self, data: Viewed) -> int:
        # A string is read up to the end of the data, a backslash before it, or a line break.
        if self._in_lines:
            if bytes(data[self._position : self._position + 2]) == b"\\\n":
                self._position += 1
            if bytes(data[self._position : self._position + 1]) == b"\n":
                return BROKEN
        return -1


class TooManyMembersError(ValueError):
    """An object has too many members to look at them all."""


def decoded_end(view: memoryview, begin: int) -> int:
    """Return the end of the value that starts there, according to a decoder.

    Raises:
        msgspec.DecodeError: it is broken, or incomplete.
        RecursionError: it is nested too deeply for a decoder.
    """
    try:
        with view[begin:] as rest:
            _raw(rest)
    except msgspec.DecodeError as error:
        if (hint := _TRAILING(str(error))) is None:
            raise
        return begin + int(hint[1]) - 1
    return len(view)


def end_of_value(data: Viewed, begin: int) -> int:
    """Return the end of the object or array that starts there, or -1 if it is incomplete."""
    return ValueEnd(begin).find(data)


def is_json_but_for_text(value: bytes) -> bool:
    """Return whether a value is JSON, apart from invalid text that `mend` replaces, control
    characters in strings, and deep nesting.
    """  # noqa: D205 - the summary needs two lines
    try:
        _raw(mend(value).translate(_NO_CONTROLS))
    except msgspec.DecodeError:
        return False
    except RecursionError:
        return True
    return True


def members(data: Data, begin: int = 0) -> Iterator[tuple[str, int, int]]:
    """Iterate over the members of a JSON object: key, start and end of the value.

    Stops where the object ends or stops being JSON; repeated keys are repeated.

    Args:
        data: contains the object.
        begin: position of its brace, or of whitespace before it.

    Raises:
        TooManyMembersError: after 1,000 members.
    """
    position = _past_space(data, begin)
    if not data.startswith(b"{", position):
        return
    for _ in range(_MOST_MEMBERS):
        position = _past_space(data, position + 1)
        key = _STRING.match(data, position)
        if key is None:
            return
        position = _past_space(data, key.end())
        if not data.startswith(b":", position):
            return
        position = _past_space(data, position + 1)
        end = _value_end(data, position)
        if end < 0:
            return
        yield text(key[0]), position, end
        position = _past_space(data, end)
        if not data.startswith(b",", position):
            return
    raise TooManyMembersError(f"an object has over {_MOST_MEMBERS} members")


def _past_space(data: Data, position: int) -> int:
    space = _SPACE.match(data, position)
    return space.end() if space else position


def _value_end(data: Data, position: int) -> int:
    if data.startswith((b"{", b"["), position):
        with suppress(msgspec.DecodeError, RecursionError), memoryview(data) as view:
            return decoded_end(view, position)
        return end_of_value(data, position)
    scalar = (_STRING if data.startswith(b'"', position) else _SCALAR).match(data, position)
    return scalar.end() if scalar else -1


def text(string: bytes) -> str:
    """Return the text of a JSON string, given with its quotes, as Go reads it.

    Unpaired surrogates and invalid UTF-8 become U+FFFD; control characters stay. If an escape is
    invalid, escapes are not decoded.
    """
    mended = mend(string)
    try:
        return str(json.loads(mended, strict=False))
    except ValueError:
        return mended[1:-1].decode("utf-8", "replace")


def mend(data: bytes) -> bytes:
    r"""Replace invalid text in JSON with U+FFFD, like Go: each byte that is not UTF-8, and each of
    `\ud800` to `\udfff` without its other half (Go `encoding/json`, `unquoteBytes`).

    Returns the same object if there is nothing to replace.
    """  # noqa: D205 - the summary needs two lines
    mended = data
    if b"\\" in data and _MAYBE_HALF(data):
        mended = _SURROGATES.sub(_unhalve, data)
    if not (mended.isascii() or is_utf8(mended)):
        escaped = mended.decode("utf-8", "surrogateescape")
        mended = _NO_UTF8.sub("\ufffd", escaped).encode()
    return data if mended == data else mended


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are UTF-8, at hardly more than the cost of an ASCII check."""
    return UTF8Check()(data)


class UTF8Check:
    """Returns whether bytes are UTF-8; fastest if similar ones are checked one after the other.

    Non-ASCII text mostly stands close together, and at about the same place in similar objects, so
    only one part is decoded: next to ASCII, no character can cross the part's boundary.
    """

    __slots__ = ("_part",)

    def __init__(self) -> None:
        #: Begin and end of the part, one value so that threads can't mix two.
        self._part = (0, 0)

    def __call__(self, data: bytes) -> bool:
        """Return whether these bytes are UTF-8."""
        begin, end = self._part
        if not (data[end:].isascii() and data[:begin].isascii()):
            begin, end = self._find(data)
        try:
            data[begin:end].decode()
        except UnicodeDecodeError:
            return False
        return True

    def _find(self, data: bytes) -> tuple[int, int]:
        begin, end = 0, len(data)
        while end > _SHORT and data[(half := end >> 1) : end].isascii():
            end = half
        while end - begin > _SHORT and data[begin : (half := (begin + end) >> 1)].isascii():
            begin = half
        while end - begin > _SHORTEST and data[(half := (begin + end) >> 1) : end].isascii():
            end = half
        self._part = max(0, begin - _SHORTEST), end + _SHORTEST
        return self._part


def _unhalve(match: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if match[1] is not None else match[0]


class Identity(msgspec.Struct, frozen=True, gc=False):
    """The identity of an object in bytes; empty where unknown.

    Attributes:
        kind: `kind`.
        api_version: `apiVersion`.
        namespace: `metadata.namespace`.
        name: `metadata.name`.
        uid: `metadata.uid`.
        resource_version: `metadata.resourceVersion`.
    """

    kind: str = ""
    api_version: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""

    @property
    def key(self) -> str | None:
        """The store's key; None without a name.

        A slash in a name, which no real object has, is written as `%2F`, so that the key is not
        another object's.
        """
        if not self.name:
            return None
        name, namespace = (part.replace("/", "%2F") for part in (self.name, self.namespace))
        return f"{namespace}/{name}" if namespace else name


_METADATA: Final = {"namespace", "name", "uid", "resourceVersion"}


def identity(data: Data, begin: int = 0) -> Identity:
    """Return the identity of the object in the data, whatever else it contains.

    As for a decoder, the last of equal keys counts. Values that are not strings count as absent,
    and so does a name with an invalid namespace: its key would be another object's. Empty for data
    over 2 MiB or with over 1,000 members at one level, so that no server can hold the event loop.
    """
    top: dict[str, str] = {}
    meta: dict[str, str] = {}
    if len(data) - begin > LONGEST_SCAN:
        return Identity()
    try:
        for key, at, end in members(data, begin):
            if key == "metadata":
                meta = _strings(data, at, _METADATA)
            elif key in {"kind", "apiVersion"}:
                top[key] = _string(data, at, end)
    except TooManyMembersError:
        return Identity()
    return Identity(
        kind=top.get("kind", ""),
        api_version=top.get("apiVersion", ""),
        namespace=meta.get("namespace", ""),
        name=meta.get("name", ""),
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
    )


def _strings(data: Data, begin: int, wanted: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    is_odd = False
    for key, at, end in members(data, begin):
        if key in wanted:
            found[key] = _string(data, at, end)
            if key == "namespace":
                is_odd = not data.startswith((b'"', b"null"), at)
    if is_odd:
        found.pop("name", None)
    return found


def _string(data: Data, begin: int, end: int) -> str:
    return text(bytes(data[begin:end])) if data.startswith(b'"', begin) else ""
