"""How the function of a reconciler is called."""

import asyncio

import pytest

from listwatch.clock import FakeClock
from listwatch.runtime.calling import ReconcileCaller


@pytest.mark.parametrize("threads", [0, 1])
async def test_a_function_that_finds_no_next_item_fails_at_once(threads: int) -> None:
    def reconcile(_: str) -> None:
        next(iter(()))

    caller = ReconcileCaller("test", reconcile, threads, FakeClock())
    try:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(caller.call("a", None), 10)
    finally:
        caller.close()
