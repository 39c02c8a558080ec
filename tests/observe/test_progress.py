import asyncio
from io import StringIO
from typing import cast

from rich.console import Console

from listwatch.clock import FakeClock
from listwatch.objects import decode_object
from listwatch.observe.observer import Observer, ObserverStatistics
from listwatch.observe.progress import CountingDecoder, show_progress


class Observing:
    """An observer's statistics."""

    def __init__(self) -> None:
        self.synced = False
        self.objects = self.waiting = self.finished = 0

    def statistics(self) -> ObserverStatistics:
        return ObserverStatistics(
            synced=self.synced,
            waiting=self.waiting,
            running=1,
            finished=self.finished,
            objects=self.objects,
            errors=0,
        )


async def test_a_long_list_shows_what_was_listed_and_then_what_was_processed() -> None:
    clock, observing, output = FakeClock(), Observing(), StringIO()
    decoded = CountingDecoder(decode_object)
    console = Console(file=output, force_terminal=True, width=100)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(
            show_progress(
                cast("Observer", observing), decoded=decoded, clock=clock, console=console
            )
        )
        await clock.advance(0.9)
        assert output.getvalue() == ""
        for number in range(42):
            decoded(b'{"metadata":{"name":"p%d"}}' % number, "Pod", "v1")
        await clock.advance(0.2)
        assert "listing" in output.getvalue()
        assert "42/?" in output.getvalue()
        observing.objects, observing.finished, observing.waiting = 100, 30, 69
        await clock.advance(0.2)
        assert "processing" in output.getvalue()
        assert " 30/100" in output.getvalue()
        observing.synced = True
        await clock.advance(0.2)
        await task
    assert output.getvalue().endswith(("\x1b[2K", "\x1b[?25h\r\x1b[1A\x1b[2K"))


async def test_a_short_list_shows_nothing() -> None:
    clock, observing, output = FakeClock(), Observing(), StringIO()
    observing.synced = True
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            show_progress(
                cast("Observer", observing),
                decoded=CountingDecoder(decode_object),
                clock=clock,
                console=Console(file=output, force_terminal=True),
            )
        )
        await clock.advance(2)
    assert output.getvalue() == ""
