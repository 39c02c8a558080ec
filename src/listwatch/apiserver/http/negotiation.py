"""Negotiates the form of a response, and encodes entries in it."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.kinds.catalog import kind_of
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.store import Entry

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
_OFFERED = (JSON, YAML, PROTOBUF)
_STREAMS = f"{JSON};stream=watch, {PROTOBUF};stream=watch"
_META_GROUP = "meta.k8s.io"
_TRANSFORMS = frozenset(("Table", "PartialObjectMetadata", "PartialObjectMetadataList"))
_PARTIAL = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/%b","metadata":%b}'


class Representation(msgspec.Struct, frozen=True):
    """The form of a response: a media type, and the kind to convert objects to ("" for none)."""

    media_type: str = JSON
    transform: str = ""
    version: str = "v1"
    content_type: str = JSON


PLAIN = Representation()


class _Clause(msgspec.Struct, frozen=True):
    media_type: str
    parameters: dict[str, str]
    quality: float


class Target(NamedTuple):
    """The conversion of a response: `g`, `v` and `as` of a clause."""

    group: str
    version: str
    kind: str


@functools.lru_cache(maxsize=256)
def parse_accept(header: str) -> tuple[_Clause, ...]:
    """Parse an Accept header; the preferred clause comes first.

    Like `goautoneg`: if both match, a `*` comes after explicit types, whatever its quality.
    """
    clauses: list[_Clause] = []
    for part in header.split(","):
        media_type, *rest = (piece.strip() for piece in part.split(";"))
        if media_type == "*":
            media_type = "*/*"
        if media_type.count("/") != 1:
            continue
        parameters = {}
        quality = 1.0
        for parameter in rest:
            key, equals, value = parameter.partition("=")
            if key == "q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 0.0
            elif equals:
                parameters[key] = value
        clauses.append(_Clause(media_type, parameters, quality))
        at = len(clauses) - 1
        while at and _before(clauses[at], clauses[at - 1]):
            clauses[at - 1 : at + 1] = clauses[at], clauses[at - 1]
            at -= 1
    return tuple(clauses)


def _before(one: _Clause, other: _Clause) -> bool:
    return (
        one.quality > other.quality
        or (one.media_type != "*/*" and other.media_type == "*/*")
        or (one.media_type[-1] != "*" and other.media_type[-1] == "*")
    )


def choose(
    header: str, allows: Callable[[str, Target | None], bool]
) -> tuple[str, Target | None] | None:
    """Return the media type and target that an Accept header prefers; None for none.

    Like `NegotiateMediaTypeOptions` of apiserver/pkg/endpoints/handlers/negotiation.

    Args:
        header: not empty.
        allows: returns whether a media type is available for a target.
    """
    for clause in parse_accept(header):
        parameters = clause.parameters
        target = None
        if not parameters.keys().isdisjoint(("as", "g", "v")):
            target = Target(*(parameters.get(key, "") for key in ("g", "v", "as")))
        if parameters.get("sv", "v1") not in {"", "v1"}:
            continue
        stream = parameters.get("stream", "")
        for offered in _OFFERED:
            if clause.media_type not in {offered, "application/*", "*/*"}:
                continue
            if stream and (stream != "watch" or offered == YAML):
                continue
            if allows(offered, target):
                return offered, target
    return None


def _allows(media_type: str, target: Target | None) -> bool:
    if target is None:
        return True
    return (
        target.group == _META_GROUP
        and target.version in {"v1", "v1beta1"}
        and target.kind in _TRANSFORMS
        and not (target.kind == "Table" and media_type == PROTOBUF)
    )


def _allows_custom(media_type: str, target: Target | None) -> bool:
    # the server has no message for objects of custom resources
    return media_type != PROTOBUF if target is None else _allows(media_type, target)


def allows_plain(_: str, target: Target | None) -> bool:
    """Accept only a response that is not converted."""
    return target is None


def negotiate(
    header: str,
    resource: APIResource | None,
    *,
    watchable: bool = False,
    streamed: bool = False,
) -> Representation:
    """Choose the form of the response.

    Args:
        header: the Accept header; "" accepts anything.
        resource: the requested resource; None for descriptions of the API, which are not converted.
        watchable: whether streams are offered, which the refusal mentions.
        streamed: whether a stream is requested, which YAML does not support.

    Raises:
        NotAcceptableError: 406.
    """
    if not header:
        return PLAIN
    if resource is None:
        return _negotiated(header, allows_plain, watchable, streamed)
    allows = _allows if resource.custom is None else _allows_custom
    return _negotiated(header, allows, watchable, streamed)


@functools.lru_cache(maxsize=256)
def _negotiated(
    header: str,
    allows: Callable[[str, Target | None], bool],
    watchable: bool,  # noqa: FBT001 - one caller, by position as a key of the cache
    streamed: bool,  # noqa: FBT001 - as above
) -> Representation:
    if allows is not _allows_custom and not any(
        part.partition(";")[0].strip() in {*_OFFERED, "*/*", ""} for part in header.split(",")
    ):
        # the router of built-in resources refuses first, and does not know application/*
        streams = f", {_STREAMS}" if watchable else ""
        raise refusal.not_acceptable(
            f"406: Not Acceptable\n\nAvailable representations: {', '.join(_OFFERED)}{streams}",
            details=True,
        )
    found = choose(header, allows)
    if found is None:
        raise refusal.not_acceptable(
            f"only the following media types are accepted: {', '.join(_OFFERED)}"
        )
    media_type, target = found
    if streamed and media_type == YAML:
        raise refusal.not_acceptable(f"only the following media types are accepted: {_STREAMS}")
    content_type = f"{PROTOBUF};stream=watch" if streamed and media_type == PROTOBUF else media_type
    if target is None:
        return Representation(media_type, "", "v1", content_type)
    return Representation(media_type, target.kind, target.version, content_type)


class _MetadataOnly(msgspec.Struct):
    metadata: msgspec.Raw


_metadata_decoder = msgspec.json.Decoder(_MetadataOnly)


def partial_bytes(resource: APIResource, data: bytes, version: str = "v1") -> bytes:
    """Return only an object's metadata, as PartialObjectMetadata."""
    hidden = kind_of(resource).hidden_annotations
    if hidden:
        metadata = msgspec.json.decode(data)["metadata"]
        shown = {
            key: value
            for key, value in (metadata.pop("annotations", None) or {}).items()
            if key not in hidden
        }
        if shown:
            metadata["annotations"] = shown
        return _PARTIAL % (version.encode(), msgspec.json.encode(metadata))
    return _PARTIAL % (version.encode(), bytes(_metadata_decoder.decode(data).metadata))


class ListBody(NamedTuple):
    """A list in parts that are written one after the other."""

    head: bytes
    items: Sequence[bytes]
    separator: bytes
    tail: bytes

    @property
    def size(self) -> int:
        """The total length in bytes."""
        between = len(self.separator) * max(0, len(self.items) - 1)
        return len(self.head) + sum(map(len, self.items)) + between + len(self.tail)

    def whole(self) -> bytes:
        """Return all of it."""
        return b"".join((self.head, self.separator.join(self.items), self.tail))

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield it in pieces of about this many bytes."""
        ready, waiting = [self.head], 0
        for number, item in enumerate(self.items):
            if number:
                ready.append(self.separator)
            ready.append(item)
            waiting += len(item)
            if waiting >= size:
                yield b"".join(ready)
                ready, waiting = [], 0
        ready.append(self.tail)
        yield b"".join(ready)


def list_body(
    resource: APIResource, entries: Sequence[bytes], metadata: Mapping[str, Any], *, partial: str
) -> ListBody:
    """Return the body of a list, or in the version `partial` of its metadata only.

    Built-in lists have their metadata before the items, which lack kind and apiVersion; lists of
    custom resources are the other way round.
    """
    head = msgspec.json.encode(metadata)
    if partial and not entries:
        # `asPartialObjectMetadataList` of apiserver omits an empty list
        return ListBody(
            b'{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/%b","metadata":%b,'
            b'"items":null}\n' % (partial.encode(), head),
            (),
            b"",
            b"",
        )
    if partial:
        return ListBody(
            b'{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/%b","metadata":%b,'
            b'"items":[' % (partial.encode(), head),
            [partial_bytes(resource, data, partial) for data in entries],
            b",",
            b"]}\n",
        )
    kind, version = (
        msgspec.json.encode(text) for text in (resource.list_kind, resource.api_version)
    )
    if resource.custom is None:
        return ListBody(
            b'{"kind":%b,"apiVersion":%b,"metadata":%b,"items":[' % (kind, version, head),
            entries,
            b",",
            b"]}\n",
        )
    return ListBody(
        b'{"apiVersion":%b,"items":[' % version,
        [resource.object_prefix + data[1:] for data in entries],
        b",",
        b'],"kind":%b,"metadata":%b}\n' % (kind, head),
    )


def event_bytes(kind: str, body: bytes) -> bytes:
    """Return one line of a watch stream."""
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), body)


def chunk(frame: bytes) -> bytes:
    """Return a frame as one HTTP/1.1 chunk; nothing for an empty frame."""
    return b"%x\r\n%b\r\n" % (len(frame), frame) if frame else b""


def entry_bytes(resource: APIResource, entry: Entry) -> bytes:
    """Return the body of an entry."""
    return resource.object_prefix + entry.data[1:]


_GZIP_LIMIT = 128 * 1024


def wants_gzip(header: str, size: int) -> bool:
    """Return whether to compress a response: a large one, for a client that accepts plain gzip."""
    return size >= _GZIP_LIMIT and "gzip" in [part.strip() for part in header.split(",")]


_MANAGER = re.compile(r"[^/]+")


def manager_of(user_agent: str) -> str:
    """Return the field manager of a user agent."""
    found = _MANAGER.match(user_agent)
    return found[0][:128] if found else "unknown"
