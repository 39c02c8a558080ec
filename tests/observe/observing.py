"""An observer with an in-memory source and real commands, for tests."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from listwatch.clock import Clock
from listwatch.observe.execute import Executor
from listwatch.observe.metrics import ObserveMetrics
from listwatch.observe.names import KnownNames
from listwatch.observe.observer import Observer, Source, namespaced
from listwatch.observe.options import ObserveOptions
from listwatch.observe.output import OutputStream
from listwatch.observe.printing import Format, Printer
from listwatch.observe.reaction import Reaction
from listwatch.observe.state import StateFile
from listwatch.testing.fake_controller_source import FakeControllerSource


class Observing:
    """An observer, its source, and its output."""

    def __init__(self, directory: Path, source: FakeControllerSource) -> None:
        self.directory = directory
        self.source = source
        self.metrics = ObserveMetrics()
        self.observer: Observer
        self.task: asyncio.Task[None]

    @property
    def out(self) -> str:
        return (self.directory / "out").read_text()

    @property
    def err(self) -> str:
        return (self.directory / "err").read_text()

    @property
    def headers(self) -> list[str]:
        """The header lines without their times."""
        return [line.split(" ", 2)[2] for line in self.out.splitlines() if line.startswith("# ")]

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 45
        while not condition():
            if self.task.done():
                await self.task
                assert condition(), f"ended too early\n{self.out}\n{self.err}"
                return
            assert time.monotonic() < deadline, f"never came true\n{self.out}\n{self.err}"
            await asyncio.sleep(0.005)


@asynccontextmanager
async def observing(
    directory: Path,
    source: FakeControllerSource | None = None,
    *,
    in_namespaces: bool = True,
    printer_format: Format = Format.HEADERS,
    namespace: str = "",
    state_file: Path | None = None,
    **options: Any,
) -> AsyncIterator[Observing]:
    """Observe a source with these options; stop the observer if the body ends first."""
    clock = Clock()
    source = source or FakeControllerSource()
    state = Observing(directory, source)
    fds = [
        os.open(directory / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND) for name in ("out", "err")
    ]
    out, err = map(OutputStream, fds)
    chosen = ObserveOptions(**{"resources": ("pods",), **options})

    async def exists(key: str) -> bool:
        return key in source.objects

    list_watch = source.list_watch(
        namespace=namespace, label_selector=chosen.selector, field_selector=chosen.field_selector
    )
    sources = [Source("pods", list_watch, in_namespaces, exists, "pods.v1.")]
    executor = Executor(clock, timeout=chosen.timeout)
    reaction = Reaction(
        chosen,
        namespaced=namespaced(sources),
        out=out,
        err=err,
        metrics=state.metrics,
        printer=Printer(printer_format, quiet=chosen.quiet),
        executor=executor,
        clock=clock,
    )
    names = None
    if chosen.names_command:
        names = KnownNames(
            chosen,
            namespace=namespace,
            executor=executor,
            metrics=state.metrics,
            err=err,
            clock=clock,
        )
    memory = StateFile(state_file, {"cluster": "test"}) if state_file is not None else None
    state.observer = Observer(
        chosen,
        sources,
        reaction=reaction,
        known_names=names,
        err=err,
        clock=clock,
        state=memory,
    )
    state.task = asyncio.ensure_future(state.observer.run())
    try:
        yield state
        if not state.task.done():
            state.observer.stop()
        await state.task
    finally:
        state.task.cancel()
        await asyncio.wait({state.task})
        if memory is not None:
            memory.close()
        for fd in fds:
            os.close(fd)
