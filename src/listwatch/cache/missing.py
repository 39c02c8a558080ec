"""Handles lists with undecodable items: an object that can't be read must never look deleted."""

import random
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from listwatch.cache.list_watch import Decoder, KnowsObjects
from listwatch.errors import ListWatchError
from listwatch.objects import Object, ObjectDecodeError

#: Maximum objects to request after one list, and maximum failures of these requests.
MOST_QUESTIONS: Final = 500
_MOST_FAILURES: Final = 3


class UnprovenError(ListWatchError):
    """Objects stay in the cache because no answer says whether they still exist."""


class ListResult(msgspec.Struct):
    """What a list or a stream of initial events has delivered so far.

    Attributes:
        items: the objects, and the last known state of those that can't be decoded.
        stale: the keys of the latter.
        nameless: an item had no readable name, so a missing key proves nothing.
    """

    items: list[Object] = msgspec.field(default_factory=list)
    stale: set[str] = msgspec.field(default_factory=set)
    nameless: bool = False


async def ask_for_missing(
    result: ListResult,
    missing: Mapping[str, Object],
    source: KnowsObjects | None,
    *,
    decoder: Decoder,
    rng: random.Random,
    report: Callable[[Exception, str | None], None],
) -> bool:
    """Request the objects that a list lacks, one by one, and keep all that may still exist.

    An object is dropped only if the source says that it does not exist. Without a request or an
    answer, its last known state stays.

    Args:
        result: the objects that the list delivered; receives the kept objects.
        missing: the last known states of the known objects that the list lacks, by key.
        source: where to request them; None keeps everything.
        decoder: creates objects from bytes.
        rng: chooses which ones to request if there are too many.
        report: called with what can't be decoded and with failed requests, each with its key.

    Returns:
        Whether it makes sense to request the rest after another list.
    """
    keys = list(missing)
    rng.shuffle(keys)
    failures = asked = unproven = 0
    for key in keys:
        obj: Object | None = None
        if source is None or asked == MOST_QUESTIONS or failures == _MOST_FAILURES:
            unproven += 1
        else:
            asked += 1
            try:
                obj = await source.find(key, decoder)
            except ObjectDecodeError as error:
                report(error, key)
            except Exception as error:  # noqa: BLE001 - keep the object on any exception of a source
                report(error, key)
                failures += 1
                unproven += 1
            else:
                if obj is None:
                    continue
        if obj is None or obj.key != key:
            obj = missing[key]
            result.stale.add(key)
        result.items.append(obj)
    if unproven:
        report(
            UnprovenError(
                f"{unproven} objects are missing from a list that has unnamed items; they "
                "stay in the cache until the server confirms that they are deleted"
            ),
            None,
        )
    return unproven > 0 and source is not None
