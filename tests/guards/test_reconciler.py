"""The cost of a reconcile, from the update of its object to the end of the function."""

import logging
from collections.abc import Mapping

import pytest

from guards.counting import calls, guard
from runtime.reconciler_world import World, widget


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_reconcile_costs_what_it_did(concurrency: int) -> None:
    async def work(items: int) -> Mapping[str, int]:
        world = World(concurrency=concurrency)
        world.reconciler.for_("widget")
        source = world.source("widget")
        for number in range(items):
            source.add(widget(f"w{number}"))
        async with world.running():
            assert len(world.calls) == items
            for number in range(items):
                source.modify(widget(f"w{number}", spec={"x": 1}))
            with calls() as counted:
                await world.clock.advance(1)
            assert len(world.calls) == 2 * items
        return counted

    await guard(f"reconcile-{concurrency}", work, items=30)


async def test_a_reconcile_that_fails_and_comes_again_costs_what_it_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # What Python calls to format a traceback differs between its versions.
    caplog.set_level(logging.CRITICAL, "listwatch")

    async def work(items: int) -> Mapping[str, int]:
        world = World()
        world.reconciler.for_("widget")
        source = world.source("widget")
        for number in range(items):
            source.add(widget(f"w{number}"))
            world.outcomes[f"ns/w{number}"] = [None, ValueError("once")]
        async with world.running():
            for number in range(items):
                source.modify(widget(f"w{number}", spec={"x": 1}))
            with calls() as counted:
                await world.clock.advance(1)
            assert len(world.calls) == 3 * items
        return counted

    await guard("reconcile-failed", work, items=30)
