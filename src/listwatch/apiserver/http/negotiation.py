"""Which form an answer gets, and how entries are written in it."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.store import Entry

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
_BUILT_IN = (JSON, YAML, PROTOBUF)
_CUSTOM = (JSON, YAML)
_META_GROUP = "meta.k8s.io"
_TRANSFORMS = frozenset(("Table", "PartialObjectMetadata", "PartialObjectMetadataList"))
_PARTIAL_PREFIX = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":'


class Representation(msgspec.Struct, frozen=True):
    """The form of an answer: a media type, and what objects are turned into ("" for nothing)."""

    media_type: str = JSON
    transform: str = ""
    version: str = "v1"
    content_type: str = JSON


PLAIN = Representation()


class _Clause(msgspec.Struct, frozen=True):
    media_type: str
    parameters: dict[str, str]
    quality: float
    position: int


@functools.lru_cache(maxsize=256)
def parse_accept(header: str) -> tuple[_Clause, ...]:
    """Read an Accept header, the clause that the client likes best first."""
    clauses = []
    for position, part in enumerate(header.split(",")):
        media_type, *rest = (piece.strip() for piece in part.split(";"))
        if not media_type:
            continue
        parameters = {}
        quality = 1.0
        for parameter in rest:
            key, _, value = parameter.partition("=")
            if key == "q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 1.0
            else:
                parameters[key] = value
        clauses.append(_Clause(media_type.lower(), parameters, quality, position))
    return tuple(sorted(clauses, key=lambda clause: (-clause.quality, clause.position)))


def negotiate(
    header: str,
    resource: APIResource | None,
    *,
    watchable: bool = False,
    protobuf: bool = True,
    transforms: bool = True,
    streamed: bool = False,
) -> Representation:
    """Choose the form of the answer.

    Args:
        header: the Accept header; "" takes anything.
        resource: what is asked for; decides about protobuf.
        watchable: whether streams are offered, which shows in the words of the refusal.
        protobuf: whether this server can write the kind in protobuf.
        transforms: whether Table and metadata alone can be had here.
        streamed: whether a stream is asked for, which there is none of in YAML.

    Raises:
        NotAcceptableError: 406.
    """
    if not header.strip():
        return PLAIN
    custom = resource is not None and resource.custom is not None
    offered = _CUSTOM if custom else _BUILT_IN
    seen_type = False
    for clause in parse_accept(header):
        media_type = JSON if clause.media_type in {"*/*", "application/json"} else clause.media_type
        if media_type not in offered:
            continue
        if media_type == YAML and streamed:
            raise refusal.not_acceptable(
                "only the following media types are accepted: "
                f"{JSON};stream=watch, {PROTOBUF};stream=watch"
            )
        transform = clause.parameters.get("as", "")
        seen_type = True
        if media_type == PROTOBUF and (not protobuf or transform):
            continue
        if not transform:
            return Representation(media_type, "", "v1", media_type)
        version = clause.parameters.get("v", "")
        if (
            transforms
            and transform in _TRANSFORMS
            and clause.parameters.get("g") == _META_GROUP
            and version in {"v1", "v1beta1"}
        ):
            return Representation(media_type, transform, version, media_type)
    kinds = ", ".join(offered)
    if seen_type:
        raise refusal.not_acceptable(f"only the following media types are accepted: {kinds}")
    streams = f", {JSON};stream=watch, {PROTOBUF};stream=watch" if watchable else ""
    if custom and watchable:
        streams = f", {JSON};stream=watch"
    raise refusal.not_acceptable(
        f"406: Not Acceptable\n\nAvailable representations: {kinds}{streams}", details=True
    )


class _MetadataOnly(msgspec.Struct):
    metadata: msgspec.Raw


_metadata_decoder = msgspec.json.Decoder(_MetadataOnly)


def partial_bytes(data: bytes) -> bytes:
    """Return an object's metadata alone, as PartialObjectMetadata."""
    return b"%b%b}" % (_PARTIAL_PREFIX, bytes(_metadata_decoder.decode(data).metadata))


class ListBody(NamedTuple):
    """A list in the parts that are written one after the other."""

    head: bytes
    items: Sequence[bytes]
    separator: bytes
    tail: bytes

    @property
    def size(self) -> int:
        """The length of the whole, in bytes."""
        between = len(self.separator) * max(0, len(self.items) - 1)
        return len(self.head) + sum(map(len, self.items)) + between + len(self.tail)

    def whole(self) -> bytes:
        """Return all of it."""
        return b"".join((self.head, self.separator.join(self.items), self.tail))

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield it in pieces of about so many bytes."""
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
    resource: APIResource, entries: Sequence[bytes], metadata: Mapping[str, Any], *, partial: bool
) -> ListBody:
    """Return a list as it is answered.

    Built-in lists have their metadata before the items, whose kind and apiVersion are left out;
    lists of custom resources are the other way round.
    """
    head = msgspec.json.encode(metadata)
    if partial:
        return ListBody(
            b'{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":%b,'
            b'"items":[' % head,
            [partial_bytes(data) for data in entries],
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
    """Return a frame as one chunk of HTTP/1.1's chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(frame), frame)


def entry_bytes(resource: APIResource, entry: Entry) -> bytes:
    """Return an entry as it is answered."""
    return resource.object_prefix + entry.data[1:]


_GZIP_LIMIT = 128 * 1024


def wants_gzip(header: str, size: int) -> bool:
    """Tell whether an answer is compressed: a large one, for a client that names plain gzip."""
    return size >= _GZIP_LIMIT and "gzip" in [part.strip() for part in header.split(",")]


_MANAGER = re.compile(r"[^/]+")


def manager_of(user_agent: str) -> str:
    """Return the field manager that a user agent stands for."""
    found = _MANAGER.match(user_agent)
    return found[0][:128] if found else "unknown"
