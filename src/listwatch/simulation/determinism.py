"""Time, chance and the outside world, replaced in the process that simulates."""

import datetime as dt
import gc
import inspect
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

from listwatch.inline import runs_inline
from listwatch.simulation.loop import VirtualLoop, current_process, refuse

#: The wall clock's seconds since 1970 at the start of every world.
EPOCH: Final = 1_900_000_000.0
#: The monotonic clock's seconds at the start of every world.
_STEADY: Final = 1000.0

_Datetime = dt.datetime


class Machine:
    """The clocks and sources of chance of the world that runs now.

    Between worlds they are the real ones. One per process, from `installed`.
    """

    def __init__(self) -> None:
        #: The real clock, to measure the simulation itself, in seconds.
        self.stopwatch = time.perf_counter
        self._time = time.time
        self._sleep = time.sleep
        self._monotonic = time.monotonic
        self._urandom = os.urandom
        self._seed = random.Random.seed
        self._loop: VirtualLoop | None = None
        self._entropy = random.Random(0)  # noqa: S311 - to be repeated, not secret

    @contextmanager
    def running(self, loop: VirtualLoop, seed: int) -> Iterator[None]:
        """Let the clocks be those of a loop, and all chance come from a seed."""
        state = random.getstate()
        self._entropy = random.Random(seed)  # noqa: S311 - as above
        self._loop = loop
        inline = runs_inline.set(True)
        random.seed(seed)
        try:
            yield
        finally:
            runs_inline.reset(inline)
            self._loop = None
            random.setstate(state)

    def time(self) -> float:
        """Return the wall clock's seconds since 1970, as the current process sees them."""
        if self._loop is None:
            return self._time()
        process = current_process.get()
        return EPOCH + self._loop.time() + float(getattr(process, "skew", 0.0))

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return self._monotonic() if self._loop is None else _STEADY + self._loop.time()

    def sleep(self, seconds: float) -> None:
        """Let time pass within a step, as code that blocks the event loop does."""
        if self._loop is None:
            self._sleep(seconds)
        else:
            self._loop.pass_time(seconds)

    def urandom(self, size: int) -> bytes:
        """Return random bytes."""
        return self._urandom(size) if self._loop is None else self._entropy.randbytes(size)

    def seed(self, source: random.Random, a: Any = None, version: int = 2) -> None:
        """Seed a source of chance; without a seed, from the world's."""
        if a is None and self._loop is not None:
            a = self._entropy.getrandbits(64)
        self._seed(source, a, version)

    def check_outside(self, what: str, remedy: str) -> None:
        """Refuse something if a world runs."""
        if self._loop is not None:
            refuse(what, remedy)


class _AnyDatetime(type):
    """Lets every `datetime` be an instance of its replacement."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Datetime)


@contextmanager
def installed() -> Iterator[Machine]:
    """Replace the clocks, the sources of chance, and the ways out of this process.

    Install before the program's modules are imported: code that has imported `time.time` or
    `datetime` by name keeps the real one.
    """
    machine = Machine()

    class Datetime(_Datetime, metaclass=_AnyDatetime):
        """`datetime` with the machine's clock."""

        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Self:
            return cls.fromtimestamp(machine.time(), tz)

        @classmethod
        def utcnow(cls) -> Self:
            return cls.fromtimestamp(machine.time(), dt.UTC).replace(tzinfo=None)

    start, connect, popen = threading.Thread.start, socket.socket.connect, subprocess.Popen.__init__

    def start_thread(thread: threading.Thread) -> None:
        machine.check_outside(
            f"the thread {thread.name!r} is started",
            "use a coroutine, or threaded=True, whose functions run as one step",
        )
        start(thread)

    def connect_socket(sock: socket.socket, address: Any) -> None:
        machine.check_outside(
            "a socket connects", "use Client.from_config(), or a fake in place of the service"
        )
        connect(sock, address)

    def start_process(process: Any, *args: Any, **options: Any) -> None:
        machine.check_outside("a process is started", "use a fake in place of the command")
        popen(process, *args, **options)

    def seed(source: random.Random, a: Any = None, version: int = 2) -> None:
        machine.seed(source, a, version)

    def hostname() -> str:
        return "simulated"

    replaced: list[tuple[Any, str, Any]] = [
        (time, "time", machine.time),
        (time, "time_ns", lambda: int(machine.time() * 1e9)),
        (time, "monotonic", machine.monotonic),
        (time, "monotonic_ns", lambda: int(machine.monotonic() * 1e9)),
        (time, "perf_counter", machine.monotonic),
        (time, "perf_counter_ns", lambda: int(machine.monotonic() * 1e9)),
        (time, "clock_gettime", lambda _: machine.monotonic()),
        (time, "sleep", machine.sleep),
        (os, "urandom", machine.urandom),
        (random, "_urandom", machine.urandom),
        (random.Random, "seed", seed),
        (dt, "datetime", Datetime),
        (socket, "gethostname", hostname),
        (socket.socket, "connect", connect_socket),
        (threading.Thread, "start", start_thread),
        (subprocess.Popen, "__init__", start_process),
    ]
    disabled = logging.root.manager.disable
    former_hook = sys.unraisablehook

    def ignore_ends(unraisable: Any) -> None:
        """Ignore what the coroutines of an abandoned world raise when they are collected."""
        if not inspect.iscoroutine(unraisable.object):
            former_hook(unraisable)

    replaced.append((sys, "unraisablehook", ignore_ends))
    missing = object()
    former = [(owner, name, vars(owner).get(name, missing)) for owner, name, _ in replaced]
    try:
        for owner, name, value in replaced:
            setattr(owner, name, value)
        yield machine
    finally:
        logging.disable(logging.CRITICAL)
        _ = gc.collect()  # while what abandoned worlds raise is still ignored
        logging.disable(disabled)
        for owner, name, value in former:
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
