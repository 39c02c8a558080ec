"""The story of a key for people and programs: its last reconciles, as they are told.

A story has no references to what it tells of, and no values of Secrets.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec

from listwatch.cache.reflector_machine import is_older
from listwatch.objects import decode_object
from listwatch.objects.differences import shown_differences
from listwatch.objects.object import ObjectDecodeError
from listwatch.printable import printable
from listwatch.runtime.reconcile_record import CacheVersion, ReconcileRecord, SentRequest, Trigger

#: Maximum fields told of one write.
MAX_FIELDS: Final = 20


class RequestStory(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a reconcile.

    Attributes:
        verb: as in the API server's metrics.
        resource: with group and subresource.
        key: of the object; empty for a collection without a namespace.
        code: of the response; 0 if there was none (yet).
        error: type and message of the exception; empty for a success.
        version: of the object in the response; empty if unknown.
        ms: until the response; None while it runs.
        fields: path, old and new value of the fields that a write changed; None if unknown.
        is_write: it may change something.
    """

    verb: str
    resource: str
    key: str
    code: int
    error: str
    version: str
    ms: float | None
    fields: Sequence[tuple[str, str, str]] | None
    is_write: bool


class CacheStory(msgspec.Struct, frozen=True):
    """A cache when a reconcile began.

    Attributes:
        name: what it holds.
        version: up to which version.
        lacks: a newer version of its resource that the reconcile could know of; empty for none.
    """

    name: str
    version: str
    lacks: str = ""


class ReconcileStory(msgspec.Struct, frozen=True, kw_only=True):
    """One reconcile.

    Attributes:
        id: unique in the process.
        attempt: 1, or one more after each failure.
        began_at: seconds since 1970.
        ago: seconds since its end, or since its start while it runs.
        seconds: duration; None while it runs.
        waited: seconds in the queue.
        trigger: what woke it; None if unknown.
        newest: the last of several triggers merged into it.
        merged: the number of further triggers.
        wakes_itself: the previous reconcile's own write woke it.
        caches: what the caches had.
        requests: in order.
        unkept: the number of further requests.
        result: as in `ReconcileRecord`.
        error: type and message of the exception.
        place: where it was raised.
        next_in: seconds from its end until the next try; None if there is none.
    """

    id: str
    attempt: int
    began_at: float
    ago: float
    seconds: float | None
    waited: float
    trigger: Trigger | None
    newest: Trigger | None
    merged: int
    wakes_itself: bool
    caches: Sequence[CacheStory]
    requests: Sequence[RequestStory]
    unkept: int
    result: str
    error: str
    place: str
    next_in: float | None

    @property
    def writes(self) -> list[RequestStory]:
        """The requests that changed something, or may have."""
        return [each for each in self.requests if each.is_write and each.fields != ()]


def stories_of(records: Iterable[ReconcileRecord], now: float, wall: float) -> list[ReconcileStory]:
    """Return the stories of a key's reconciles, oldest first.

    Args:
        records: the reconciles, oldest first.
        now: the monotonic time.
        wall: seconds since 1970.
    """
    told: list[ReconcileStory] = []
    earlier: list[SentRequest] = []
    for record in records:
        ended = record.began + (record.seconds or 0.0)
        told.append(
            ReconcileStory(
                id=record.id,
                attempt=record.attempt,
                began_at=wall - (now - record.began),
                ago=now - ended,
                seconds=record.seconds,
                waited=record.waited,
                trigger=record.trigger,
                newest=record.newest,
                merged=record.merged,
                wakes_itself=record.wakes_itself,
                caches=[
                    CacheStory(
                        printable(each.name), printable(each.version), _lacks(each, record, earlier)
                    )
                    for each in record.caches
                ],
                requests=_requests(record, earlier),
                unkept=record.unkept,
                result=record.result,
                error=record.error,
                place=record.place,
                next_in=record.next_in,
            )
        )
    return told


def _lacks(cache: CacheVersion, record: ReconcileRecord, earlier: Sequence[SentRequest]) -> str:
    """Return the newest known version of a cache's resource if the cache was older."""
    resource = cache.name.partition(" ")[0]
    plural = resource.partition(".")[0]
    known = [
        trigger.version
        for trigger in (record.trigger, record.newest)
        if trigger is not None and trigger.resource == resource
    ]
    known += [sent.version for sent in earlier if sent.is_write and sent.target.plural == plural]
    newest = cache.version
    for version in known:
        if is_older(newest, version):
            newest = version
    return "" if newest == cache.version else printable(newest)


def _requests(record: ReconcileRecord, earlier: list[SentRequest]) -> list[RequestStory]:
    told: list[RequestStory] = []
    for sent in record.requests:
        told.append(
            RequestStory(
                verb=sent.verb,
                resource=printable(sent.target.resource),
                key=printable(sent.key),
                code=sent.code,
                error=sent.error,
                version=printable(sent.version),
                ms=None if sent.seconds is None else round(sent.seconds * 1000, 1),
                fields=_fields(sent, earlier) if sent.is_write else None,
                is_write=sent.is_write,
            )
        )
        earlier.append(sent)
    return told


def _fields(
    sent: SentRequest, earlier: Sequence[SentRequest]
) -> Sequence[tuple[str, str, str]] | None:
    """Return what a write changed, compared with the newest state known before it."""
    if not sent.after or not sent.version:
        return None
    before = None if sent.before is None or sent.before.partial else sent.before
    target = sent.target._replace(subresource="")
    for other in reversed(earlier):
        if not other.after or other.target._replace(subresource="") != target:
            continue
        if before is None or is_older(before.resource_version, other.version):
            try:
                before = decode_object(other.after)
            except ObjectDecodeError:
                return None
        break
    if before is None:
        return None
    if before.resource_version == sent.version:
        return ()
    try:
        after = decode_object(sent.after)
    except ObjectDecodeError:
        return None
    changed = shown_differences(
        before.to_dict(), after.to_dict(), is_secret=sent.target.plural == "secrets"
    )
    return tuple(islice(changed, MAX_FIELDS))
