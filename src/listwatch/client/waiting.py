"""Waits for a state of an object, or for its deletion, by watching the object."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from listwatch.cache.failures import Failure
from listwatch.cache.list_watch import ListerWatcher
from listwatch.clock import Clock
from listwatch.errors import unwrap
from listwatch.objects import Object, ObjectDecoder

#: A condition, such as "Ready" or "Available=False", or a function called with each state.
WaitCondition: TypeAlias = str | Callable[[Object], object]


async def wait_until(
    list_watch: ListerWatcher,
    accept: Callable[[Object | None], bool],
    *,
    what: str,
    describe: Callable[[Object | None], str],
    clock: Clock,
    seconds: float | None,
) -> Object | None:
    """Return the first accepted state of an object, or None if its absence is accepted.

    Args:
        list_watch: selects only this object.
        accept: called in order with each state of the object, and with None while it is absent.
        what: description of the wait, for errors and logs.
        describe: returns why the last state was not accepted.
        clock: measures the time.
        seconds: time limit; None for no limit.

    Raises:
        StatusError: the server refuses the list for a lasting reason: 401, 403, no such resource.
        TimeoutError: the time limit expired.
    """
    # Clients that never wait start without informers.
    from listwatch.cache.handlers import Added, Updated  # noqa: PLC0415 - see above
    from listwatch.cache.shared_cache import NotSyncedError  # noqa: PLC0415 - see above
    from listwatch.cache.shared_informer import SharedInformer  # noqa: PLC0415 - see above

    last: Object | None = None
    failure: Failure | None = None
    seen = False

    def remember(new: Failure) -> None:
        nonlocal failure
        failure = new

    async def wait() -> Object | None:
        nonlocal last, seen
        listener = informer.listen(name="waiting")
        try:
            await informer.wait_for_sync()
        except NotSyncedError as error:
            raise (error.__cause__ or error) from None
        seen = True
        if not len(informer.lister) and accept(None):
            return None
        while True:
            for change in await listener.take():
                match change:
                    case Added(obj=state) | Updated(new=state):
                        last = state
                    case _:
                        last = None
                if accept(last):
                    return last

    informer = SharedInformer(
        list_watch,
        decoder=ObjectDecoder(keep_managed_fields=True),
        name=what,
        clock=clock,
        startup_deadline=0.0,
        on_error=remember,
    )
    limit = clock.timeout(seconds)
    try:
        async with limit, informer:
            return await wait()
    except BaseExceptionGroup as group:
        raise unwrap(group) from None
    except TimeoutError:
        if not limit.expired:
            raise
    if not seen:
        why = f"it could not be read: {failure}" if failure else "it could not be read in time"
    else:
        why = describe(last)
    raise TimeoutError(f"{what}: not within {seconds:g} s; {why}")


def accepts(condition: WaitCondition) -> Callable[[Object | None], bool]:
    """Return a function that checks whether a state of an object meets a condition.

    Raises:
        ValueError: the condition names no type.
        TypeError: it is neither text nor callable.
    """
    if isinstance(condition, str):
        type_, equals, wanted = condition.partition("=")
        if not type_:
            raise ValueError(
                f"{condition!r} has no condition type: write for example 'Ready' or 'Ready=False'"
            )
        wanted = wanted if equals else "True"
        return lambda obj: obj is not None and has_condition(obj, type_, wanted)
    if not callable(condition):
        raise TypeError(
            f"{condition!r} is not a condition: pass a type such as 'Ready', or a function"
        )
    return lambda obj: obj is not None and bool(condition(obj))


def has_condition(obj: Object, type_: str, status: str = "True") -> bool:
    """Return whether an object has an up-to-date condition with this status.

    Case does not matter. As for `kubectl wait`, a condition observed for an older generation does
    not count.
    """
    state = obj.get("status")
    if not isinstance(state, Mapping):
        return False
    generation = obj.meta.generation or 0
    for one in _conditions(state):
        if str(one.get("type", "")).casefold() != type_.casefold():
            continue
        observed = one.get("observedGeneration", state.get("observedGeneration"))
        if isinstance(observed, int) and observed < generation:
            return False
        return str(one.get("status", "")).casefold() == status.casefold()
    return False


def conditions_of(obj: Object | None) -> str:
    """Return an object's conditions as text."""
    if obj is None:
        return "there is no such object"
    state = obj.get("status")
    found = [
        f"{one.get('type')}={one.get('status')}"
        + (f" ({one['reason']})" if one.get("reason") else "")
        for one in _conditions(state if isinstance(state, Mapping) else {})
    ]
    return f"its conditions are {', '.join(found)}" if found else "it has no conditions"


def remaining(obj: Object | None) -> str:
    """Return why an object still exists, as text."""
    if obj is None:
        return "it was recreated at once"
    if obj.meta.deletion_timestamp is None:
        return "it is not being deleted"
    held = ", ".join(obj.meta.finalizers)
    return f"its finalizers are {held}" if held else "its grace period is not over"


def _conditions(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = state.get("conditions")
    if not isinstance(found, Sequence) or isinstance(found, str):
        return []
    return [one for one in found if isinstance(one, Mapping)]
