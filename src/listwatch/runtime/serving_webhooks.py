"""A manager's webhooks while it runs: their server, and the lease of the replica that publishes."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from listwatch.backoff import WEBHOOKS
from listwatch.errors import ListWatchError
from listwatch.inline import runs_inline
from listwatch.runtime.health import Check
from listwatch.runtime.leader_election import LeaderElector, OpenLeaseClient
from listwatch.runtime.leading import LeadershipGuard, LeadershipLostError
from listwatch.webhooks.upkeep import Upkeep
from listwatch.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from listwatch.client.client import Client
    from listwatch.clock import Clock
    from listwatch.runtime.candidate import LeaseTimings
    from listwatch.runtime.parts import Parts

_logger = logging.getLogger(__name__)

#: Seconds for the removal of configurations at the end.
_REMOVAL: Final = 5.0


class WebhookServing:
    """Serves a manager's webhooks, if it has any.

    Args:
        webhooks: what to serve.
        parts: runs the tasks; a failure stops the manager.
        clock: the time.
        start_timeout: seconds within which webhooks must serve, and then be registered.
        timings: of the lease.
    """

    def __init__(
        self,
        webhooks: Webhooks,
        parts: "Parts",
        clock: "Clock",
        *,
        start_timeout: float,
        timings: "LeaseTimings | None",
    ) -> None:
        self._webhooks = webhooks
        self._parts = parts
        self._clock = clock
        self._start_timeout = start_timeout
        self._timings = timings

    @contextlib.asynccontextmanager
    async def running(
        self, client: "Client", namespace: str, open_lease_client: OpenLeaseClient
    ) -> AsyncIterator[None]:
        """Serve, and enter the body when there is a certificate or everything is to stop.

        Serves nothing in a simulation, which has no sockets.

        Args:
            client: reads and writes the certificate and the configurations.
            namespace: of the manager.
            open_lease_client: opens the client of the lease.
        """
        if not self._webhooks or runs_inline.get():
            yield
            return
        elector = LeaderElector(
            open_lease_client,
            namespace=namespace,
            name=self._webhooks.lease,
            timings=self._timings,
        )
        async with self._webhooks.open(client, namespace, self._clock) as upkeep:
            running = self._parts.running
            leads = False
            try:
                async with (
                    running("the webhooks", upkeep.run),
                    running("the webhooks' lease", lambda: self._contend(elector, upkeep)),
                    running("the webhooks", lambda: self._until(upkeep.serving)) as start,
                ):
                    await self._parts.until_stopping(start.task)
                    try:
                        yield
                        await self._linger()
                    finally:
                        leads = upkeep.leads
            finally:
                if leads:
                    await self._remove()

    async def wait_until_registered(self) -> None:
        """Return when API servers can find the webhooks.

        Raises:
            ListWatchError: not within the time limit.
        """
        upkeep = self._webhooks.upkeep
        if upkeep is not None:
            await self._until(upkeep.registered)

    async def _until(self, event: asyncio.Event) -> None:
        try:
            async with self._clock.timeout(self._start_timeout):
                await event.wait()
        except TimeoutError:
            upkeep = self._webhooks.upkeep
            problem = upkeep.problem if upkeep is not None else ""
            problem = problem or "another replica holds the lease and has not published them"
            raise ListWatchError(f"not ready within {self._start_timeout:g} s: {problem}") from None

    async def _contend(self, elector: LeaderElector, upkeep: Upkeep) -> None:
        async def publish(guard: LeadershipGuard) -> None:
            del guard  # all writes are of the version that was read
            upkeep.lead(leads=True)
            try:
                await asyncio.Event().wait()
            finally:
                upkeep.lead(leads=False)

        while True:
            try:
                await elector.run(publish)
            except LeadershipLostError as error:
                _logger.info("webhooks: %s", error)
                await self._clock.sleep(WEBHOOKS.base)

    async def _linger(self) -> None:
        """Go on serving after an orderly stop: the cluster's proxies still send requests."""
        place = self._webhooks.place
        if place is not None and place.linger:
            await self._clock.sleep(place.linger)

    async def _remove(self) -> None:
        """Remove configurations that lead to this process alone, so that they block nobody."""
        webhooks = self._webhooks
        if webhooks.place is None or not webhooks.place.is_local or webhooks.registrar is None:
            return
        try:
            async with self._clock.timeout(_REMOVAL):
                await webhooks.registrar.remove()
        except (ListWatchError, TimeoutError) as error:
            _logger.warning("webhooks: their configurations stay: %s", error)

    def check(self) -> Check:
        """Return the state of the webhooks for a readiness probe."""
        upkeep = self._webhooks.upkeep
        if upkeep is None or not upkeep.serving.is_set():
            problem = "" if upkeep is None else upkeep.problem
            return Check("webhooks", False, problem or "there is no certificate yet")
        return Check("webhooks", True)
