"""What a list could not tell: objects that can't be read must never look gone."""

import random
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from listwatch.cache.list_watch import Decoder, KnowsObjects
from listwatch.errors import ListWatchError
from listwatch.objects import Object, ObjectDecodeError

#: So many missing objects are asked for after one list, and so many questions may fail.
MOST_QUESTIONS: Final = 500
_MOST_FAILURES: Final = 3


class UnprovenError(ListWatchError):
    """Objects stay in the cache because nobody could tell whether they are gone."""


class Told(msgspec.Struct):
    """What a list or a stream of initial events has told until now.

    Attributes:
        items: the objects, and the last known state of those that can't be read.
        stale: the keys of the latter.
        nameless: something did not tell which object it is, so that a missing key proves nothing.
    """

    items: list[Object] = msgspec.field(default_factory=list)
    stale: set[str] = msgspec.field(default_factory=set)
    nameless: bool = False


async def ask_for_missing(
    told: Told,
    missing: Mapping[str, Object],
    source: KnowsObjects | None,
    *,
    decoder: Decoder,
    rng: random.Random,
    report: Callable[[Exception, str | None], None],
) -> bool:
    """Ask for the objects that a list lacks, one by one, and keep all that may still exist.

    Only the source's word that an object is not there lets it go. What is not asked for, or not
    answered, stays as it is known.

    Args:
        told: what the list told; takes what is kept.
        missing: the last known states of the objects that are known and not in it, by their keys.
        source: whom to ask; None keeps everything.
        decoder: makes objects of bytes.
        rng: which ones are asked for if they are too many.
        report: is told of what can't be read and of questions that fail, with the key.

    Returns:
        Whether it makes sense to ask for the rest after another list.
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
            except Exception as error:  # noqa: BLE001 - whatever a source raises, the object stays
                report(error, key)
                failures += 1
                unproven += 1
            else:
                if obj is None:
                    continue
        if obj is None or obj.key != key:
            obj = missing[key]
            told.stale.add(key)
        told.items.append(obj)
    if unproven:
        report(
            UnprovenError(
                f"{unproven} objects are missing from a list that has unnamed items; they "
                "stay in the cache until the server confirms that they are gone"
            ),
            None,
        )
    return unproven > 0 and source is not None
