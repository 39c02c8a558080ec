"""Which form an answer gets, and how entries are written in it."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.store import Entry

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
_OFFERED = (JSON, YAML, PROTOBUF)
_STREAMS = f"{JSON};stream=watch, {PROTOBUF};stream=watch"
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


class Target(NamedTuple):
    """What an answer is to be turned into: `g`, `v` and `as` of a clause."""

    group: str
    version: str
    kind: str


@functools.lru_cache(maxsize=256)
def parse_accept(header: str) -> tuple[_Clause, ...]:
    """Read an Accept header, the clause that the client likes best first.

    As `goautoneg` does: a `*` comes after what is named, whatever its quality, where they meet.
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
    """Return the media type and the target that an Accept header likes best; None for none.

    As `NegotiateMediaTypeOptions` of apiserver/pkg/endpoints/handlers/negotiation.

    Args:
        header: not empty.
        allows: tells whether a media type can be had for a target.
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
    # the server knows no message for an object of a custom resource
    return media_type != PROTOBUF if target is None else _allows(media_type, target)


def allows_plain(_: str, target: Target | None) -> bool:
    """Tell that an answer is not turned into another."""
    return target is None


def negotiate(
    header: str,
    resource: APIResource | None,
    *,
    watchable: bool = False,
    streamed: bool = False,
) -> Representation:
    """Choose the form of the answer.

    Args:
        header: the Accept header; "" takes anything.
        resource: what is asked for; None for what describes the API, which stays as it is.
        watchable: whether streams are offered, which shows in the words of the refusal.
        streamed: whether a stream is asked for, which there is none of in YAML.

    Raises:
        NotAcceptableError: 406.
    """
    if not header:
        return PLAIN
    custom = resource is not None and resource.custom is not None
    if not custom and not any(
        part.partition(";")[0].strip() in {*_OFFERED, "*/*", ""} for part in header.split(",")
    ):
        # the router of the built-in resources, which knows no application/*, says it first
        streams = f", {_STREAMS}" if watchable else ""
        raise refusal.not_acceptable(
            f"406: Not Acceptable\n\nAvailable representations: {', '.join(_OFFERED)}{streams}",
            details=True,
        )
    allows = allows_plain if resource is None else _allows_custom if custom else _allows
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
