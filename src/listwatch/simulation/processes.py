"""A simulated process: it runs a program, and may crash, pause and start anew."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from listwatch.client.config import Config
from listwatch.client.reach import Reach, current_reach
from listwatch.errors import unwrap
from listwatch.runtime.leading import LeadershipLostError
from listwatch.runtime.manager import Manager
from listwatch.runtime.reconciler import Reconciler
from listwatch.runtime.results import Result, is_terminal
from listwatch.simulation.faults import SLOW_SECONDS
from listwatch.simulation.loop import SimulationError, VirtualLoop, current_process
from listwatch.simulation.network import MemoryConnections, Stream, Wire

if TYPE_CHECKING:
    from listwatch.runtime.calling import ReconcileFunction

#: Makes the program of a process: one or several managers, or a coroutine to run.
MakeApp = Callable[[], object]

CONFIG = Config(server="http://127.0.0.1:1", source="the simulated server")


class ProcessFailure:
    """What a key's last reconcile raised.

    Attributes:
        words: for people.
        is_terminal: it will not be tried again.
    """

    def __init__(self, error: BaseException) -> None:
        self.words = f"{type(error).__name__}: {error}"
        self.is_terminal = is_terminal(error)


class Process:
    """One process, from its start to its crash.

    Args:
        name: for the story.
        loop: the world's.
        make_app: makes its program; called in it.
        wire: makes the way of its requests.
        on_step: called with what happens, for the story.
        on_reconcile: called before a key is reconciled; returns the fault that strikes.
        on_end: called with what ended the program.
        on_objection: called with the name of an oracle and its words.
    """

    def __init__(
        self,
        name: str,
        loop: VirtualLoop,
        make_app: MakeApp,
        wire: "Callable[[Process], Wire]",
        *,
        on_step: "Callable[[Process, str], None]",
        on_reconcile: "Callable[[Process, str], str]",
        on_end: "Callable[[Process, BaseException], None]",
        on_objection: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self._loop = loop
        self._make_app = make_app
        self._on_step = on_step
        self._on_reconcile = on_reconcile
        self._on_end = on_end
        self._on_objection = on_objection
        self._kept: list[asyncio.Handle] = []
        self._is_paused = False
        self.is_dead = False
        #: Seconds by which its wall clock is ahead.
        self.skew = 0.0
        #: Until when it reads from the replica that is behind.
        self.stale_until = 0.0
        #: Its open watches.
        self.streams: list[Stream] = []
        #: Its managers.
        self.apps: list[Manager] = []
        #: The keys whose last reconcile failed.
        self.failures: dict[tuple[str, str], ProcessFailure] = {}
        self._running: set[tuple[str, str]] = set()
        self._context: Context = copy_context()
        _ = self._context.run(current_process.set, self)
        connections = MemoryConnections(wire(self))
        _ = self._context.run(current_reach.set, Reach(CONFIG, connections))

    @property
    def runs(self) -> bool:
        """Whether its steps may run now."""
        return not (self._is_paused or self.is_dead)

    def keep(self, handle: asyncio.Handle) -> None:
        """Take a step that must not run now; those of a dead process never run."""
        self._kept.append(handle)

    def start(self) -> None:
        """Run the program."""
        _ = self._loop.create_task(self._main(), name=self.name, context=self._context)

    def crash(self) -> None:
        """Stop at once: no further step runs, no `finally`, and all connections break."""
        self.is_dead = True
        for stream in self.streams:
            stream.break_off()

    def pause(self, seconds: float) -> None:
        """Stand still for this many seconds."""
        self._is_paused = True
        self._loop.call_later(seconds, self._resume, context=Context())

    def _resume(self) -> None:
        self._is_paused = False
        kept, self._kept = self._kept, []
        for handle in kept:
            self._loop.run_again(handle)

    async def _main(self) -> None:
        try:
            made = self._make_app()
            if isinstance(made, Manager):
                await self._serve([made])
            elif inspect.isawaitable(made):
                await made
            elif isinstance(made, Iterable):
                await self._serve(list(made))
            else:
                raise SimulationError(  # noqa: TRY301 - reported like the program's own failures
                    f"make_app returned a {type(made).__name__}: return a Manager, several in a "
                    "list, or a coroutine"
                )
        except Exception as error:  # noqa: BLE001 - the world's matter
            causes = [unwrap(error)]
            while (cause := causes[-1].__cause__) is not None:
                causes.append(cause)
            for kind in (SimulationError, LeadershipLostError):
                found = next((each for each in causes if isinstance(each, kind)), None)
                if found is not None:
                    break
            self._on_end(self, found or causes[0])

    async def _serve(self, apps: list[Any]) -> None:
        self.apps = apps
        for app in apps:
            for reconciler in app.reconcilers:
                name = f"{app.name}/{reconciler.name}"
                reconciler.decorate(self._watched(name, reconciler))
        async with asyncio.TaskGroup() as group:
            for app in apps:
                group.create_task(app.serve())

    def _watched(
        self, name: str, reconciler: Reconciler[Any]
    ) -> "Callable[[ReconcileFunction], ReconcileFunction]":
        """Return a decorator that observes a reconciler's function."""

        def decorate(function: "ReconcileFunction") -> "ReconcileFunction":
            async def watched(key: str) -> Result | None:
                place = (name, key)
                if place in self._running:
                    self._on_objection("concurrency", f"{name} reconciles {key} twice at once")
                self._running.add(place)
                try:
                    fault = self._on_reconcile(self, f"reconciles {key}")
                    if self.is_dead:
                        _ = await self._loop.create_future()
                    if fault == "late":
                        await asyncio.sleep(SLOW_SECONDS)
                    if fault == "again":
                        reconciler.enqueue(key)
                    outcome = function(key)
                    result = await _result(outcome) if inspect.isawaitable(outcome) else outcome
                except SimulationError as error:
                    self._on_objection("unsupported", str(error))
                    raise
                except Exception as error:
                    self.failures[place] = ProcessFailure(unwrap(error))
                    self._on_step(self, f"fails with {key}: {type(error).__name__}: {error}")
                    raise
                finally:
                    self._running.discard(place)
                self.failures.pop(place, None)
                return result

            return watched

        return decorate


async def _result(outcome: Awaitable[Result | None]) -> Result | None:
    return await outcome
