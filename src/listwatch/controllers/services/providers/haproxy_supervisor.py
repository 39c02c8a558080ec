"""Keeps HAProxy running with the current configuration."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from listwatch.backoff import RESTART
from listwatch.clock import Clock
from listwatch.controllers.services.providers.haproxy_config import Frontend, Settings, render
from listwatch.controllers.services.providers.haproxy_process import (
    RELOAD_SECONDS,
    HAProxyError,
    HAProxyProcess,
)
from listwatch.controllers.services.providers.haproxy_state import agrees, kept_states
from listwatch.controllers.services.providers.haproxy_traffic import (
    TRAFFIC_SECONDS,
    HAProxyTraffic,
)

_logger = logging.getLogger(__name__)

#: Default of `HAProxyProvider(old_worker_seconds=)`.
OLD_WORKER_SECONDS: Final = 4 * 3600.0


class HAProxySupervisor:
    """Applies the current frontends to one HAProxy, which it restarts. For one event loop.

    Args:
        frontends: returns the current frontends.
        saved: returns the current load balancers for the next program, given the generation.
        check_seconds: interval between checks of a backend.
        old_worker_seconds: how long connections continue in an old process after a reload.
        clock: the time.
    """

    def __init__(
        self,
        frontends: Callable[[], Sequence[Frontend]],
        saved: Callable[[int], bytes],
        *,
        check_seconds: float,
        old_worker_seconds: float,
        clock: Clock,
    ) -> None:
        self._frontends = frontends
        self._saved = saved
        self.check_seconds = check_seconds
        self._old_worker_seconds = old_worker_seconds
        self._clock = clock
        self.process: HAProxyProcess  # set by `start`
        #: One change at a time; changes that wait for it are included in the next.
        self.changing = asyncio.Lock()
        self._up = asyncio.Event()
        self._wanted = self._applied = 0
        # How many configurations were written for a reload or start: each has all changes so far.
        self._written = 0
        # HAProxy may not know some assigned slots: the next change must write a configuration.
        self._is_unsure = False
        self.traffic = HAProxyTraffic()
        #: Configurations that took effect; commands that did; restarts.
        self.reloads = self.runtime_changes = self.restarts = 0

    @property
    def is_up(self) -> bool:
        """Whether HAProxy runs; otherwise it is being restarted."""
        return self._up.is_set()

    async def start(self, process: HAProxyProcess) -> None:
        """Start HAProxy with the current configuration.

        Raises:
            HAProxyError: it does not start.
        """
        self.process = process
        await self._start()

    async def take_over(self, process: HAProxyProcess, generation: int) -> None:
        """Continue with a running HAProxy; correct it if it differs from the frontends.

        Args:
            process: its process.
            generation: the generation of the configuration that was written last.

        Raises:
            HAProxyError: a correction did not take effect.
            OSError: HAProxy is unreachable.
        """
        self.process = process
        running = await process.generation()
        # A reload of the previous program may be in progress.
        self._wanted = self._applied = max(generation, running)
        self._up.set()
        text = await process.ask("runtime.sock", ["show servers state"])
        is_as_written = process.written() == self._configuration(generation)
        if running != generation or not is_as_written or not agrees(text, self._frontends()):
            await self.reload()

    async def keep_running(self) -> None:
        """Restart HAProxy whenever it exits, until cancelled."""
        while True:
            code = await self.process.ended()
            self._up.clear()
            _logger.error("haproxy exited with code %s and is being restarted", code)
            self.restarts += 1
            await self._clock.sleep(RESTART.delay(0))
            async with self.changing:
                try:
                    await self._start()
                except (HAProxyError, OSError) as error:
                    _logger.error("haproxy does not start: %s", error)  # noqa: TRY400 - the message is enough

    async def follow_traffic(self) -> None:
        """Read the statistics every few seconds, until cancelled."""
        while True:
            await self._clock.sleep(TRAFFIC_SECONDS)
            if self.is_up:
                await self.read_traffic()

    async def read_traffic(self) -> None:
        """Read the statistics, unless a reload or restart prevents it."""
        try:
            text = await self.process.ask("runtime.sock", ["show stat"])
        except (OSError, HAProxyError) as error:
            _logger.debug("haproxy returned no statistics: %s", error)
            return
        self.traffic.read(text)

    async def reload(self) -> None:
        """Apply the whole current configuration, once HAProxy is up.

        Raises:
            HAProxyError: it did not take effect.
        """
        self._wanted += 1
        mine = self._wanted
        while not await self._tried(mine):
            await self._until_up()

    async def change(self, commands: Sequence[str]) -> None:
        """Apply a change by commands, or by a reload if HAProxy may lack earlier changes.

        Call it without awaiting anything since the change of the frontends.

        Raises:
            HAProxyError: it did not take effect.
        """
        if not commands and not self._is_unsure:
            return
        written = self._written
        await self._until_up()
        async with self.changing:
            if self._written == written and not self._is_unsure:
                try:
                    self._write(self._applied)
                    await self.process.tell(commands)
                except BaseException:
                    self._is_unsure = True
                    raise
                self.runtime_changes += 1
                return
            is_included = not self._is_unsure
        if not is_included:
            await self.reload()

    async def _start(self) -> None:
        self.process.state_file.unlink(missing_ok=True)  # left by the previous process
        # The file may contain a change that did not take effect.
        self._written += 1
        self._write(self._applied)
        await self.process.start(self._applied)
        self._up.set()

    async def _until_up(self) -> None:
        """Wait while HAProxy is being restarted, but not for a running change."""
        try:
            async with self._clock.timeout(RELOAD_SECONDS):
                await self._up.wait()
        except TimeoutError:
            raise HAProxyError(
                f"haproxy exited and did not start again within {RELOAD_SECONDS:g} s"
            ) from None

    async def _tried(self, mine: int) -> bool:
        """Apply the whole configuration; return False if HAProxy is down and this must wait."""
        async with self.changing:
            if self._applied >= mine:
                return True  # the reload of another task included this change
            if not self.is_up:
                return False
            generation = self._wanted
            try:
                self._written += 1
                self._write(generation)
                self._is_unsure = False
                await self.read_traffic()  # the next process starts its counters at zero
                await self._keep_states()
                await self.process.reload(generation)
            except BaseException:
                self._is_unsure = True
                raise
            self._applied = generation
            self.reloads += 1
            return True

    async def _keep_states(self) -> None:
        """Pass the health of backends on to the next process."""
        try:
            text = await self.process.ask("runtime.sock", ["show servers state"])
        except OSError as error:
            _logger.debug("haproxy told no state of servers: %s", error)
            return
        self.process.keep_states(kept_states(text, self._frontends()))

    def _write(self, generation: int) -> None:
        if self.process.outlives:
            self.process.save(self._saved(generation))
        self.process.write(self._configuration(generation))

    def _configuration(self, generation: int) -> str:
        settings = Settings(
            runtime_socket=self.process.runtime_socket,
            generation=generation,
            check_seconds=self.check_seconds,
            peers_socket=self.process.peers_socket,
            state_file=str(self.process.state_file),
            old_worker_seconds=self._old_worker_seconds,
        )
        return render(settings, self._frontends())
