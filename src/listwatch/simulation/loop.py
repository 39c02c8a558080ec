"""An event loop with virtual time, in which the same program always takes the same steps.

No sleep takes real time: when nothing is ready, time jumps to the next timer. Tasks and futures are
hashed by number, so that sets of them have the same order in each run. Threads, executors, sockets
and subprocesses are refused.
"""

import asyncio
import heapq
import inspect
import random
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

from listwatch.errors import ListWatchError

if TYPE_CHECKING:
    from collections import deque

T = TypeVar("T")

#: How often a coroutine that awaits something while it is closed is closed again.
_CLOSINGS: Final = 20
#: Cancelled timers after which the heap is rebuilt, if they are more than half of it.
_MANY_CANCELLED: Final = 100


class SimulationError(ListWatchError):
    """The program does something that a simulation can't repeat exactly; the message says what."""


class EndlessWorkError(ListWatchError):
    """The program took more steps than the limit."""


class Runner(Protocol):
    """A simulated process, whose steps may be held back or dropped."""

    @property
    def runs(self) -> bool:
        """Whether its steps may run now."""

    def keep(self, handle: asyncio.Handle) -> None:
        """Take a step that must not run now."""


#: The simulated process of the current step; None for the server and the scenario.
current_process: Final[ContextVar[Runner | None]] = ContextVar("current_process", default=None)


class _Task(asyncio.Task[T]):
    """A task hashed by its number."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        number: int,
        loop: asyncio.AbstractEventLoop,
        name: str | None = None,
        context: Context | None = None,
    ) -> None:
        self._number = number
        super().__init__(coroutine, loop=loop, name=name or f"task {number}", context=context)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Future(asyncio.Future[Any]):
    """A future hashed by its number."""

    def __init__(self, *, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Timer(asyncio.TimerHandle):
    """A timer; those of the same time run in the order in which they were set."""

    def __init__(
        self,
        when: float,
        number: int,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._place = (when, number)

    def __lt__(self, other: object) -> bool:
        return self._place < other._place if isinstance(other, _Timer) else NotImplemented

    __hash__ = asyncio.TimerHandle.__hash__


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop of one world.

    Args:
        order: chooses among the tasks that are ready at the same time; None keeps asyncio's order.
            Callbacks that are no steps of tasks always keep theirs.
        max_steps: raise an `EndlessWorkError` after this many steps.
    """

    _ready: "deque[asyncio.Handle]"
    _scheduled: "list[asyncio.TimerHandle]"
    _timer_cancelled_count: int

    def __init__(self, *, order: random.Random | None = None, max_steps: int = 300_000) -> None:
        super().__init__()
        self._now = 0.0
        self._order = order
        self._number = 0
        self._max_steps = max_steps
        #: The steps taken.
        self.steps = 0
        #: The tasks that have not been collected, to be abandoned with the world.
        self.tasks: list[asyncio.Task[Any]] = []
        self._is_abandoned = False
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._on_exception)
        #: What was refused.
        self.refusals: list[str] = []
        #: Exceptions that no code handled.
        self.unhandled: list[dict[str, Any]] = []

    # --- Time ---

    def time(self) -> float:
        """Return the virtual seconds since the start."""
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Let time pass within a step, as `time.sleep` does."""
        self._now += max(0.0, seconds)

    # --- Tasks ---

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **options: Any,
    ) -> asyncio.Task[T]:
        self._number += 1
        # Python 3.14 can start tasks eagerly, which would change the order between versions
        options.pop("eager_start", None)
        task = _Task(coroutine, number=self._number, loop=loop, **options)
        self.tasks.append(task)
        return task

    def create_future(self) -> "asyncio.Future[Any]":
        """Return a future of this loop."""
        self._number += 1
        return _Future(number=self._number, loop=self)

    def _on_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.unhandled.append(context)

    def abandon(self) -> None:
        """Drop everything that waits, and end every task without another step of the loop."""
        self._is_abandoned = True
        self._ready.clear()
        self._scheduled.clear()
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio offers no other way
            _close(task.get_coro())
        self._ready.clear()
        self._scheduled.clear()
        self.tasks.clear()

    def call_soon(  # type: ignore[override]  # typeshed's TypeVarTuple adds nothing here
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call a function in the next turn; never, if the world is abandoned."""
        if self._is_abandoned:  # by a `finally` of a coroutine that is collected
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as call_soon
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call a function at a virtual time."""
        self._number += 1
        timer = _Timer(when, self._number, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - as BaseEventLoop does
        return timer

    # --- Steps ---

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        if self._timer_cancelled_count > _MANY_CANCELLED and (
            self._timer_cancelled_count * 2 > len(scheduled)
        ):
            scheduled[:] = [timer for timer in scheduled if not timer.cancelled()]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        while scheduled and scheduled[0].cancelled():
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - as BaseEventLoop does
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise SimulationError(
                    "every task waits, and nothing will ever wake one: the scenario waits for "
                    "something that can't happen"
                )
            self._now = max(self._now, scheduled[0].when())
        end = self._now + 1e-9
        while scheduled and scheduled[0].when() <= end:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - as BaseEventLoop does
            if timer.cancelled():
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        batch = list(ready)
        ready.clear()
        if self._order is not None and len(batch) > 1:
            _shuffle_tasks(batch, self._order)
        self.steps += len(batch)
        if self.steps > self._max_steps:
            raise EndlessWorkError(f"the program still works after {self._max_steps} steps")
        for handle in batch:
            if handle.cancelled():
                continue
            process = handle._context.get(current_process)  # type: ignore[attr-defined]  # noqa: SLF001 - a handle offers no other way
            if process is not None and not process.runs:
                process.keep(handle)
            else:
                handle._run()  # noqa: SLF001 - as BaseEventLoop does

    def run_again(self, handle: asyncio.Handle) -> None:
        """Queue a step that was kept."""
        self._ready.append(handle)

    def _write_to_self(self) -> None:
        """Wake nothing: the loop never waits."""

    def _process_events(self, event_list: Any) -> None:
        """Process nothing: there are no sockets."""

    # --- Refused ---

    def run_in_executor(  # type: ignore[override]  # as call_soon
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Run a function of the server or of asyncio inline; refuse those of the program.

        Raises:
            SimulationError: the program may not use threads.
        """
        if current_process.get() is not None:
            refuse(
                f"{getattr(func, '__qualname__', func)} runs in a thread (an executor)",
                "await it, or give the reconciler threaded=True, which runs as one step",
            )
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - raised where the future is awaited
            future.set_exception(error)
        return future

    async def create_connection(self, *_: Any, **__: Any) -> Any:
        """Refuse a connection."""
        refuse("a socket is opened", "use Client.from_config(), or a fake in place of the service")

    async def create_unix_connection(self, *_: Any, **__: Any) -> Any:
        """Refuse a connection."""
        refuse("a socket is opened", "use Client.from_config(), or a fake in place of the service")

    async def create_server(self, *_: Any, **__: Any) -> Any:
        """Refuse to listen."""
        refuse("a server listens on a socket", "leave it out with a parameter of make_app")

    async def create_unix_server(self, *_: Any, **__: Any) -> Any:
        """Refuse to listen."""
        refuse("a server listens on a socket", "leave it out with a parameter of make_app")

    async def create_datagram_endpoint(self, *_: Any, **__: Any) -> Any:
        """Refuse a socket."""
        refuse("a socket is opened", "use a fake in place of the service")

    def add_reader(self, *_: Any) -> None:  # type: ignore[override]  # as call_soon
        """Refuse a socket."""
        refuse("a socket is read", "leave it out, such as webhooks, with a parameter of make_app")

    async def getaddrinfo(self, *_: Any, **__: Any) -> Any:
        """Refuse to ask for an address."""
        refuse("a host name is looked up", "use a fake in place of the service")

    async def subprocess_exec(self, *_: Any, **__: Any) -> Any:
        """Refuse a process."""
        refuse("a process is started", "use a fake in place of the command")

    async def subprocess_shell(self, *_: Any, **__: Any) -> Any:
        """Refuse a process."""
        refuse("a process is started", "use a fake in place of the command")

    def add_signal_handler(self, *_: Any) -> None:  # type: ignore[override]  # as call_soon
        """Ignore signal handlers: a simulated process gets no signals."""

    def remove_signal_handler(self, _: int) -> bool:
        """Ignore signal handlers."""
        return False


def refuse(what: str, remedy: str) -> NoReturn:
    """Raise a `SimulationError` about what a simulation can't repeat.

    The loop remembers it, because the program may take it for a broken connection.
    """
    words = f"in a simulation {what}, which can't be repeated exactly: {remedy}"
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        loop.refusals.append(words)
    raise SimulationError(words)


def _close(coroutine: object) -> None:
    """End a coroutine now, whatever its `finally` blocks would still await."""
    for _ in range(_CLOSINGS):
        try:
            if inspect.iscoroutine(coroutine):
                coroutine.close()
        except BaseException:  # noqa: BLE001, S112 - the world is over: nobody waits for this
            continue
        return


def _shuffle_tasks(batch: list[asyncio.Handle], order: random.Random) -> None:
    """Reorder the steps of tasks among their places."""
    places = [
        place
        for place, handle in enumerate(batch)
        if isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio's debug mode does
    ]
    if len(places) > 1:
        steps = [batch[place] for place in places]
        order.shuffle(steps)
        for place, step in zip(places, steps, strict=True):
            batch[place] = step
