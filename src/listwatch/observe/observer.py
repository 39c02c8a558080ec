"""Observes resources and reacts to every change, from the first list to the end."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from listwatch.cache.controller import Controller, ControllerConfig
from listwatch.cache.deltas import Deltas, DeltaType
from listwatch.cache.failures import Failure, LogFailures
from listwatch.cache.handlers import Added, Change, Deleted, Updated
from listwatch.cache.known import NewestKnown
from listwatch.cache.list_watch import Decoder, ListerWatcher
from listwatch.cache.ordered_fifo import OrderedFIFO
from listwatch.cache.store import Indexer
from listwatch.cache.writer import DeltaProcessor
from listwatch.clock import Clock
from listwatch.errors import (
    BadRequestError,
    ForbiddenError,
    ListWatchError,
    MethodNotSupportedError,
    NotFoundError,
    UnauthorizedError,
    unwrap,
)
from listwatch.objects import DeletedFinalStateUnknown, Object, decode_object
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.dispatch import Dispatcher
from listwatch.observe.names import KnownNames
from listwatch.observe.options import ObserveOptions, UsageError
from listwatch.observe.output import OutputStream
from listwatch.observe.reaction import Reaction
from listwatch.observe.state import ResumingListWatch, StateFile, number_or_none, version_number
from listwatch.observe.templates.template import TemplateError
from listwatch.printable import printable

if TYPE_CHECKING:
    from listwatch.observe.until import Until

#: Errors that no retry fixes before the first list.
_HOPELESS = (
    BadRequestError,
    UnauthorizedError,
    ForbiddenError,
    NotFoundError,
    MethodNotSupportedError,
)


class Source(msgspec.Struct, frozen=True):
    """One resource to observe.

    Attributes:
        resource: the user's name for it.
        list_watch: lists and watches it.
        namespaced: whether its objects are namespaced.
        exists: asks the server whether an object of this key exists, whatever the selectors.
        full_name: its name with version and group.
    """

    resource: str
    list_watch: ListerWatcher
    namespaced: bool
    exists: Callable[[str], Awaitable[bool]]
    full_name: str = ""


class ListErrorLimitError(ListWatchError):
    """Too many failures in a row to list or watch the server; observing ends."""


class ObserverStatistics(msgspec.Struct, frozen=True):
    """The state of an observer.

    Attributes:
        synced: every first list was reported and processed.
        waiting: changes waiting for their turn.
        running: commands running.
        finished: changes processed.
        objects: number of known objects.
        errors: failed runs.
    """

    synced: bool
    waiting: int
    running: int
    finished: int
    objects: int
    errors: int


class Observer:
    """Observes resources and runs a reaction to each change. For one event loop, and one run.

    Args:
        options: what to do.
        sources: the resources.
        reaction: reacts to one change.
        known_names: an outside system's names, to find missed deletions.
        err: standard error.
        clock: the time.
        decoder: creates objects from bytes.
        state: keeps the reported states across restarts.
        beside: runs while the observer runs, and is cancelled at the end.
    """

    def __init__(
        self,
        options: ObserveOptions,
        sources: Sequence[Source],
        *,
        reaction: Reaction,
        known_names: KnownNames | None,
        err: OutputStream,
        clock: Clock,
        decoder: Decoder = decode_object,
        state: StateFile | None = None,
        beside: Sequence["Companion"] = (),
    ) -> None:
        self._beside = beside
        self._options = options
        self._reaction = reaction
        self._state = state
        self._full_names = {source.resource: source.full_name for source in sources}
        self._err = err
        self._clock = clock
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._until = _until(options)
        self._met_at: int | None = None  # the last change when the condition came to hold
        self._held = False
        self.dispatcher = Dispatcher(
            reaction if state is None else self._react_and_remember,
            parallel=options.parallel,
            batch=options.exec_batch or 1,
            together=reaction.is_same_command,
            debounce=options.debounce,
            clock=clock,
            progressed=self._progressed,
        )
        self._feeds = [
            _Feed(
                source,
                options,
                self.dispatcher,
                reaction,
                known_names,
                clock,
                decoder,
                state,
                self._until,
                self._end_if_met,
            )
            for source in sources
        ]

    async def _react_and_remember(self, changes: Sequence[Observation]) -> None:
        if self._state is not None:
            for change in changes:
                self._state.begins(self._full_names[change.resource], change)
        await self._reaction(changes)
        if self._state is not None:
            for change in changes:
                self._state.finished(self._full_names[change.resource], change)

    def _progressed(self) -> None:
        for feed in self._feeds:
            feed.remember_progress()
        self._end_if_met()

    def _end_if_met(self) -> None:
        """Stop once the condition holds, and the changes up to then are processed."""
        if self._until is None or self._held or self._stopping.is_set():
            return
        if not self.synced or not self._until.is_met(self._options.names):
            self._met_at = None
            return
        if self._met_at is None:
            self._met_at = self.dispatcher.last
        if self.dispatcher.finished_up_to >= self._met_at:
            self._held = True
            self.stop()

    @property
    def synced(self) -> bool:
        """Whether all initial objects were reported and processed."""
        return all(feed.processed.is_set() for feed in self._feeds)

    def statistics(self) -> ObserverStatistics:
        """Return the current state."""
        dispatch = self.dispatcher.statistics()
        return ObserverStatistics(
            synced=self.synced,
            waiting=dispatch.waiting,
            running=dispatch.running,
            finished=dispatch.finished,
            objects=sum(len(feed.store) for feed in self._feeds),
            errors=self._reaction.budget.total,
        )

    def stop(self) -> None:
        """Stop: give running commands the grace period; at the second call end them at once."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def run(self) -> None:
        """Observe until `stop` is called, or a limit in the options is reached.

        Cancelling ends running commands.

        Raises:
            ListWatchError: the reason for an early end: a limit reached, access refused, no such
                resource.
            TemplateError: with `once`, the template failed for some objects.
            NotMetError: the condition of `until` and `for_conditions` does not hold.
            BrokenPipeError: nobody reads the output.
        """
        try:
            await self._run()
        except BaseExceptionGroup as group:
            raise unwrap(group, first=True) from None
        if self._options.once and (count := self._reaction.unrendered):
            raise TemplateError(f"the template failed for {count} of the objects, see above")
        if self._until is not None and not (self._held or self._until.is_met(self._options.names)):
            raise self._until.not_met()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(self.dispatcher.work())
            feeding = [tasks.create_task(feed.run()) for feed in self._feeds]
            feeding += [tasks.create_task(companion(self)) for companion in self._beside]
            if self._options.once:
                feeding.append(tasks.create_task(self._stop_when_processed()))
            if self._options.exit_after is not None:
                feeding.append(tasks.create_task(self._stop_after(self._options.exit_after)))
            await self._stopping.wait()
            for task in feeding:
                task.cancel()
            self.dispatcher.stop()
            hurry = tasks.create_task(self._hurry.wait())
            try:
                async with self._clock.timeout(self._options.grace):
                    await asyncio.wait({work, hurry}, return_when=asyncio.FIRST_COMPLETED)
            except TimeoutError:
                pass  # the commands had their time
            work.cancel()
            hurry.cancel()

    async def _stop_when_processed(self) -> None:
        for feed in self._feeds:
            await feed.processed.wait()
        if not any(feed.listed for feed in self._feeds):
            names = ", ".join(self._options.names)
            named = f" (nothing is named {printable(names)})" if names else ""
            await self._err.write(f"Nothing to sync{named}, exiting immediately\n")
        self.stop()

    async def _stop_after(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        text = self._options.exit_after_text or f"{seconds:g}s"
        await self._err.write(f"Shutting down after {text} ...\n")
        self.stop()


#: A coroutine function that runs with an observer.
Companion: TypeAlias = Callable[[Observer], Coroutine[object, object, None]]


class _Feed:
    """Turns one resource's events into changes."""

    def __init__(
        self,
        source: Source,
        options: ObserveOptions,
        dispatcher: Dispatcher,
        reaction: Reaction,
        known_names: KnownNames | None,
        clock: Clock,
        decoder: Decoder,
        state: StateFile | None,
        until: "Until | None",
        end_if_met: Callable[[], None],
    ) -> None:
        self._until = until
        self._end_if_met = end_if_met
        self._source = source
        self._options = options
        self._dispatcher = dispatcher
        self._reaction = reaction
        self._known_names = known_names
        self._log = LogFailures(clock)
        self._failures_in_a_row = 0
        self.store = Indexer(clock=clock)
        self.processed = asyncio.Event()
        self.listed = 0
        name = source.resource
        self._processor = DeltaProcessor(
            self.store, on_error=self._on_error, clock=clock, name=name
        )
        self._lists: asyncio.Queue[tuple[int, bool]] = asyncio.Queue()
        self._state = state
        self._positions: deque[tuple[int, int]] = deque()
        self._version = 0  # the last numeric version
        list_watch, watch_list = source.list_watch, True
        self._resumed: ResumingListWatch | None = None
        self._begun: frozenset[str] = frozenset()
        if state is not None:
            remembered = state.load(source.full_name)
            self._begun = remembered.begun
            self._version = remembered.version
            self.store.replace(remembered.objects, "")
            for obj in remembered.objects:
                self._note(obj.key, obj)
            if remembered.version and not options.once:
                list_watch = self._resumed = ResumingListWatch(list_watch, remembered)
                watch_list = False  # the first list is the file's
        queue = OrderedFIFO(clock=clock, on_error=self._report)
        self._controller = Controller(
            ControllerConfig(
                queue=queue,
                lister_watcher=list_watch,
                watch_list=watch_list,
                process_batch=self._process,
                full_resync_period=options.resync_period,
                name=name,
                decoder=decoder,
                known=NewestKnown(queue, self.store),
                clock=clock,
                on_error=self._on_error,
            )
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run())
            tasks.create_task(self._end_syncs())

    async def _process(self, batch: Sequence[Deltas]) -> None:
        kind = batch[0][0].type
        changes = await self._processor.apply(batch)
        if kind is DeltaType.REPLACED_ALL:
            self._failures_in_a_row = 0
        initial = batch[0].is_in_initial_list
        if initial and self._resumed is not None:
            # The file's objects were reported earlier, and the watch continues from there.
            self._lists.put_nowait((self._dispatcher.last, False))
            return
        whole = kind in {DeltaType.REPLACED_ALL, DeltaType.SYNC_ALL}
        if whole:
            await self._reaction.sync_line("started", self._source.resource)
        if self._begun:
            changes = self._with_begun(changes, None if whole else {d.key for d in batch})
        told = [self._told(change, kind, initial=initial) for change in changes]
        if self._state is not None:
            self._version = _version(batch) or self._version
            told = _with_positions(told, self._version)
        for change in told:
            if self._wanted(change):
                self._note(change.key, change.object if _is_there(change) else None)
                self._dispatcher.submit(change)
        self._end_if_met()
        if whole:
            if initial:
                self.listed += len(changes)
            if self._known_names is not None:
                await self._tell_unknown(self._known_names)
            self._lists.put_nowait((self._dispatcher.last, True))
        if self._state is not None and self._version:
            self._positions.append((self._dispatcher.last, self._version))
            self.remember_progress()

    def _with_begun(self, changes: Sequence[Change], keys: set[str] | None) -> list[Change]:
        """Report as additions the objects whose report the last run started but did not finish.

        Args:
            changes: the store's changes, which treat these objects as reported.
            keys: the keys that the changes may concern; None for all.
        """
        begun = set(self._begun if keys is None else self._begun & keys)
        self._begun -= begun
        anew: list[Change] = []
        for change in changes:
            if isinstance(change, Updated) and change.key in begun:
                anew.append(Added(change.new, is_in_initial_list=False))
            else:
                anew.append(change)
            begun.discard(change.key)
        left = [self.store.get_by_key(key) for key in sorted(begun)]
        anew += [Added(obj, is_in_initial_list=False) for obj in left if obj is not None]
        return anew

    def remember_progress(self) -> None:
        """Record the version up to which everything is done."""
        reached = 0
        while self._positions and self._positions[0][0] <= self._dispatcher.finished_up_to:
            _, reached = self._positions.popleft()
        if reached and self._state is not None:
            self._state.reached(self._source.full_name, reached)

    def _told(self, change: Change, source: DeltaType, *, initial: bool) -> Observation:
        relisted = source is DeltaType.REPLACED_ALL
        resource = self._source.resource
        if isinstance(change, Added):
            kind = ObservationType.RELISTED if relisted else ObservationType.ADDED
            kind = ObservationType.LISTED if initial else kind
            return Observation(kind, change.obj.key, change.obj, resource=resource)
        if isinstance(change, Updated):
            kind = ObservationType.RELISTED if relisted else ObservationType.UPDATED
            kind = ObservationType.RESYNC if change.is_resync else kind
            return Observation(kind, change.new.key, change.new, old=change.old, resource=resource)
        return self._deletion(change)

    def _deletion(self, change: Deleted) -> Observation:
        item = change.obj
        unknown = isinstance(item, DeletedFinalStateUnknown)
        state = item.obj if isinstance(item, DeletedFinalStateUnknown) else item
        return Observation(
            ObservationType.DELETED,
            item.key,
            state,
            old=state,
            resource=self._source.resource,
            final_state_unknown=unknown,
        )

    def _wanted(self, change: Observation) -> bool:
        names = self._options.names
        return not names or change.key.rpartition("/")[2] in names

    def _note(self, key: str, obj: Object | None) -> None:
        if self._until is not None:
            self._until.update(self._source.resource, key, obj)

    async def _tell_unknown(self, known_names: KnownNames) -> None:
        """Report a deletion for each name that the outside system knows and the list lacks."""
        known = set(self.store.list_keys())
        for key in await known_names.missing(self._source, known):
            change = Observation(
                ObservationType.DELETED,
                key,
                None,
                resource=self._source.resource,
                final_state_unknown=True,
            )
            if self._wanted(change):
                self.listed += 1
                self._dispatcher.submit(change)

    async def _end_syncs(self) -> None:
        """Report a list as processed once its last command has finished."""
        while True:
            number, is_told = await self._lists.get()
            await self._dispatcher.finished(number)
            if is_told:
                await self._reaction.sync_line("ended", self._source.resource)
            self.processed.set()
            self._end_if_met()

    def _report(self, failure: Failure) -> None:
        self._log(msgspec.structs.replace(failure, name=self._source.resource))

    def _on_error(self, failure: Failure) -> None:
        error = failure.error
        if failure.doing == "process":
            raise error  # observing can't survive this
        if failure.doing == "list":
            if not self.store.last_store_sync_resource_version and isinstance(error, _HOPELESS):
                selected = self._options.selector or self._options.field_selector
                if selected and isinstance(error, BadRequestError):
                    raise UsageError(str(error)) from error
                raise error
            self._failures_in_a_row += 1
            maximum = self._options.maximum_errors
            if 0 <= maximum < self._failures_in_a_row:
                raise ListErrorLimitError(
                    f"{failure.name} could not be listed {self._failures_in_a_row} times in a row,"
                    f" exiting: {error}"
                ) from error
        self._log(failure)


def _is_there(change: Observation) -> bool:
    return change.type is not ObservationType.DELETED


def _until(options: ObserveOptions) -> "Until | None":
    if not (options.until or options.for_conditions):
        return None
    from listwatch.observe.until import Until  # noqa: PLC0415 - loads the parser of CEL

    return Until(options.until, options.for_conditions)


def _version(batch: Sequence[Deltas]) -> int:
    """Return the server's version after these deltas; 0 if they don't show it.

    Raises:
        StateError: a list's version is not a number, so no other will be.
    """
    last = batch[-1][-1]
    if last.type is DeltaType.REPLACED_ALL:
        return version_number(last.resource_version)
    if last.type is DeltaType.BOOKMARK:
        return number_or_none(last.resource_version) or 0
    return _own_version(last.object) or 0


def _own_version(item: object) -> int | None:
    return number_or_none(item.resource_version) if isinstance(item, Object) else None


def _with_positions(changes: Sequence[Observation], version: int) -> list[Observation]:
    """Add to each change the version up to which it completes its object's history.

    Args:
        changes: in order.
        version: the server's version after them; replaces an object's version that is not a number.
    """
    placed: list[Observation] = []
    next_life: dict[str, int] = {}
    for change in reversed(changes):
        own = _own_version(change.object)
        position = version if own is None else own
        if change.type is not ObservationType.DELETED:
            next_life[change.key] = position
        elif change.final_state_unknown:
            # If its key has a new life, that addition is still to be reported.
            position = next_life[change.key] - 1 if change.key in next_life else version
        placed.append(msgspec.structs.replace(change, position=position))
    placed.reverse()
    return placed


def namespaced(sources: Sequence[Source]) -> Mapping[str, bool]:
    """Return for each resource whether its objects are namespaced."""
    return {source.resource: source.namespaced for source in sources}
