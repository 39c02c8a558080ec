"""Progress of a long first list, on a terminal."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from listwatch.cache.list_watch import Decoder
from listwatch.clock import Clock
from listwatch.objects import Object
from listwatch.observe.observer import Observer

_PATIENCE = 1.0
_STEP = 0.1


class CountingDecoder:
    """Decodes objects and counts them, to show a list's progress.

    Args:
        decoder: creates an object from its bytes.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.count = 0

    def __call__(self, raw: bytes, kind: str, api_version: str) -> Object:
        """Decode one object; raises what the inner decoder raises."""
        self.count += 1
        return self._decoder(raw, kind, api_version)


async def show_progress(
    observer: Observer, *, decoded: CountingDecoder, clock: Clock, console: Console | None = None
) -> None:
    """Show how many objects were listed and processed, until all of the first list were.

    Shows nothing for a list under a second. Erases its output at the end, and when cancelled.

    Args:
        observer: the observer of the first list.
        decoded: counts the arriving objects.
        clock: for the time between updates.
        console: the terminal; by default standard error.
    """
    console = console if console is not None else Console(stderr=True)
    await clock.sleep(_PATIENCE)
    if observer.synced:
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("listing", total=None)
        while not observer.synced:
            statistics = observer.statistics()
            if statistics.objects:
                progress.update(
                    task,
                    description="processing",
                    total=statistics.finished + statistics.waiting + statistics.running,
                    completed=statistics.finished,
                )
            else:
                progress.update(task, completed=decoded.count)
            progress.refresh()
            await clock.sleep(_STEP)
