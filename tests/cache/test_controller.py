"""The pop loop survives anything its process function does."""

import asyncio
import runpy
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from listwatch.cache.controller import Controller, ControllerConfig
from listwatch.cache.delta_fifo import DeltaFIFO
from listwatch.cache.deltas import Deltas, DeltaType, RequeueError
from listwatch.cache.failures import Failure
from listwatch.cache.ordered_fifo import OrderedFIFO
from listwatch.cache.processor import StoppedError
from listwatch.cache.reflector_machine import Phase
from listwatch.cache.store import Store
from listwatch.clock import FakeClock
from listwatch.testing.fake_controller_source import FakeControllerSource, pod


def test_the_seeds_example_prints_what_it_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "seed" / "fake_source.py"
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out == "a-hello\nb-controller\nc-framework\n"


def a_source(clock: FakeClock, *names: str) -> FakeControllerSource:
    source = FakeControllerSource(clock=clock)
    for name in names:
        source.add(pod(name))
    return source


async def test_every_key_is_processed_and_then_it_has_synced() -> None:
    clock = FakeClock()
    seen: list[tuple[str, DeltaType, bool]] = []

    def process(deltas: Deltas) -> None:
        seen.append((deltas.key, deltas.newest().type, controller.has_synced))

    controller = Controller(
        ControllerConfig(
            queue=DeltaFIFO(emit_replaced=True),
            lister_watcher=a_source(clock, "a", "b"),
            process=process,
            clock=clock,
        )
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(controller.run())
        await controller.wait_for_sync()
        assert seen == [("a", DeltaType.REPLACED, False), ("b", DeltaType.REPLACED, False)]
        assert controller.last_sync_resource_version == "2"
        figures = controller.statistics()
        assert figures.has_synced
        assert figures.reflector.state is Phase.WATCHING
        assert figures.queue.pops == 2
        running.cancel()


async def test_batches_come_whole() -> None:
    clock = FakeClock()
    source = a_source(clock)
    batches: list[list[str]] = []

    async def process(batch: Sequence[Deltas]) -> None:
        await clock.sleep(1)
        batches.append([deltas.key for deltas in batch])

    config = ControllerConfig(
        queue=OrderedFIFO(), lister_watcher=source, process_batch=process, clock=clock
    )
    controller = Controller(config)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(controller.run())
        await clock.settle()
        for name in "abc":
            source.add(pod(name))
        await clock.advance(2)
        assert batches == [[""], ["a", "b", "c"]]
        running.cancel()


async def test_what_a_process_function_raises_is_reported_and_costs_no_other() -> None:
    clock = FakeClock()
    failures: list[object] = []
    seen: list[str] = []

    def process(deltas: Deltas) -> None:
        seen.append(deltas.key)
        if deltas.key == "a":
            raise ValueError("no a")

    controller = Controller(
        ControllerConfig(
            queue=DeltaFIFO(),
            lister_watcher=a_source(clock, "a", "b"),
            process=process,
            on_error=failures.append,
            clock=clock,
        )
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(controller.run())
        await clock.advance(60)
        running.cancel()
    assert seen == ["a", "b"]
    assert len(failures) == 1
    assert isinstance(failures[0], Failure)
    assert (failures[0].doing, failures[0].key) == ("process", "a")
    assert controller.statistics().failures == 1


async def test_deltas_come_again_when_that_is_asked_for() -> None:
    clock = FakeClock()
    tries: list[float] = []

    async def process(_: Deltas) -> None:
        tries.append(clock.now())
        if len(tries) < 4:
            raise RequeueError

    controller = Controller(
        ControllerConfig(
            queue=DeltaFIFO(clock=clock),
            lister_watcher=a_source(clock, "a"),
            process=process,
            on_error=lambda _: None,
            clock=clock,
        )
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(controller.run())
        await clock.advance(10)
        running.cancel()
    assert len(tries) == 4
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert all(gap > 0 for gap in gaps)
    assert controller.statistics().failures == 0


async def test_it_ends_when_its_queue_is_closed() -> None:
    clock = FakeClock()
    queue = DeltaFIFO()
    source = a_source(clock)
    config = ControllerConfig(
        queue=queue, lister_watcher=source, process=lambda _: None, clock=clock
    )
    controller = Controller(config)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(controller.run())
        await clock.settle()
        queue.close()
        await clock.settle()
        assert running.done()
    assert source.open_watches == 0
    with pytest.raises(RuntimeError, match="runs once"):
        await controller.run()


async def test_a_sync_that_can_not_come_is_an_error() -> None:
    clock = FakeClock()
    source = a_source(clock)
    source.fail_watches(OSError("down"), 100)
    source.fail_lists(OSError("down"), 100)
    controller = Controller(
        ControllerConfig(
            queue=DeltaFIFO(),
            lister_watcher=source,
            process=lambda _: None,
            clock=clock,
            on_error=lambda _: None,
        )
    )
    running = asyncio.ensure_future(controller.run())
    waiting = asyncio.ensure_future(controller.wait_for_sync())
    await clock.advance(100)
    running.cancel()
    with pytest.raises(StoppedError, match="stopped before it synced"):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("process", [None, print])
def test_a_config_has_one_process_function(process: Callable[[object], None] | None) -> None:
    config = ControllerConfig(
        queue=DeltaFIFO(),
        lister_watcher=FakeControllerSource(clock=FakeClock()),
        process=process,
        process_batch=process,
    )
    with pytest.raises(ValueError, match="either process or process_batch"):
        Controller(config)


async def test_a_store_may_stand_in_for_the_queue_of_a_reflector() -> None:
    """The seed's nodeSyncLoop feeds a plain store."""
    from listwatch.cache.reflector import Reflector

    clock = FakeClock()
    store = Store()
    running = asyncio.ensure_future(Reflector(a_source(clock, "n"), store, clock=clock).run())
    await clock.settle()
    assert store.list_keys() == ["n"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
