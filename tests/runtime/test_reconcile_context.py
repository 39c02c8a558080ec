"""The running reconcile in context variables and log records."""

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from listwatch.runtime.commands import JsonFormatter, TextFormatter
from listwatch.runtime.reconcile_context import (
    ReconcileContext,
    ReconcileFilter,
    current_reconcile,
)
from runtime.reconciler_world import World, widget

_log = logging.getLogger("user")


@pytest.fixture(name="records")
def kept_records() -> Iterator[list[logging.LogRecord]]:
    """Keep the records of the logger `user`, as a handler with the filter does."""
    kept: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    handler = Keep()
    handler.addFilter(ReconcileFilter())
    _log.addHandler(handler)
    yield kept
    _log.removeHandler(handler)


@pytest.mark.parametrize("threaded", [False, True])
async def test_what_a_reconcile_calls_and_starts_knows_it(
    records: list[logging.LogRecord], threaded: bool
) -> None:
    world = World(threaded=threaded)
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    seen: list[ReconcileContext | None] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note() -> None:
        seen.append(current_reconcile())
        _log.warning("hello")

    if threaded:

        @world.reconciler
        def reconcile(key: str) -> None:
            del key
            note()
            loop.call_soon_threadsafe(done.set)

    else:

        @world.reconciler
        async def reconcile_async(key: str) -> None:
            del key
            await asyncio.create_task(asyncio.to_thread(note))
            done.set()

    async with world.running():
        await done.wait()
    assert seen == [ReconcileContext("test", "ns/a", 1, "test-1")]
    assert current_reconcile() is None
    (record,) = records
    assert (
        json.loads(JsonFormatter().format(record)).items()
        >= {
            "reconciler": "test",
            "key": "ns/a",
            "attempt": 1,
            "reconcile_id": "test-1",
        }.items()
    )
    assert TextFormatter().format(record).endswith("user: hello [test-1 ns/a]")


async def test_the_attempt_counts_failures_and_the_log_of_a_failure_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.handler.addFilter(ReconcileFilter())
    world = World()
    world.reconciler.for_("widget")
    world.source("widget").add(widget("a"))
    world.outcomes["ns/a"] = [TimeoutError("slow"), TimeoutError("slow"), None, TimeoutError("x")]
    async with world.running() as reconciler:
        reconciler.enqueue("ns/a")
        await world.clock.advance(1)
    attempts = [record.attempt for record in caplog.records if "slow" in record.message]  # type: ignore[attr-defined]  # set by the filter
    assert attempts == [1, 2]
    last = TextFormatter().format(caplog.records[1])
    assert last.endswith("[test-2 ns/a attempt 2]")


def test_outside_a_reconcile_logs_have_no_such_fields(records: list[logging.LogRecord]) -> None:
    _log.warning("hello")
    assert "reconciler" not in json.loads(JsonFormatter().format(records[0]))
    assert TextFormatter().format(records[0]).endswith("user: hello")
