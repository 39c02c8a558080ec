"""Reconcilers of a manager: prepared before the start, run beside it, ended with grace."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from listwatch.backoff import START, retry
from listwatch.errors import DisconnectedError, StatusError, UnknownResourceError
from listwatch.runtime.parts import Part, Parts, cancelled_at_once

if TYPE_CHECKING:
    from listwatch.client.client import Client
    from listwatch.clock import Clock
    from listwatch.runtime.leading import LeadershipGuard
    from listwatch.runtime.reconciler import Reconciler

_logger = logging.getLogger(__name__)


async def prepare(
    reconcilers: "Sequence[Reconciler]", client: "Client", clock: "Clock", seconds: float
) -> None:
    """Look the resources up; wait for a server or definition that appears late.

    Raises:
        ListWatchError: waiting can't help, or does not help within `seconds`.
    """
    give_up_at = clock.now() + seconds
    for reconciler in reconcilers:

        def after(error: Exception, delay: float, name: str = reconciler.name) -> float | None:
            if clock.now() + delay > give_up_at or not _may_pass(error):
                return None
            _logger.warning("reconciler %s can't start: %s; next try in %g s", name, error, delay)
            return delay

        await retry(
            partial(reconciler.prepare, client.discovery, client), START, after, clock=clock
        )


@contextlib.asynccontextmanager
async def reconciling(
    parts: Parts,
    reconcilers: "Sequence[Reconciler]",
    clock: "Clock",
    guard: "LeadershipGuard | None" = None,
) -> AsyncIterator[None]:
    """Run reconcilers beside the body; at its normal end they get the grace period."""
    async with AsyncExitStack() as stack:
        running: list[Part] = []
        for reconciler in reconcilers:
            name = f"reconciler {reconciler.name}"
            run = partial(reconciler.run, guard)
            running.append(await stack.enter_async_context(parts.running(name, run)))
        with cancelled_at_once(running):
            yield
            for reconciler in reconcilers:
                reconciler.stop()
            if not running:
                return
            try:
                async with clock.timeout(parts.grace):
                    await asyncio.wait([part.task for part in running])
            except TimeoutError:
                late = {r.name: sorted(r.in_process) for r in reconcilers if r.in_process}
                _logger.warning("cancelled after %g s of grace: %s", parts.grace, late)


def _may_pass(error: Exception) -> bool:
    """Return whether waiting may help."""
    if isinstance(error, StatusError):
        return error.code not in {401, 403}
    return isinstance(error, DisconnectedError | TimeoutError | UnknownResourceError)
