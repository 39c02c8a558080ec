"""Work on the keys of a share; record the begin and the end of each work as ConfigMaps."""

import asyncio
import contextlib
import itertools
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable

from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.errors import ListWatchError
from listwatch.runtime.candidate import LeaseTimings
from listwatch.runtime.fencing import fenced
from listwatch.runtime.leading import LeadershipGuard, LeadershipLostError
from listwatch.runtime.lease import ClientLeases, LeaseClient
from listwatch.runtime.sharing import ShareMember

# Enough keys that no member gets all of them.
KEYS = [f"key-{number}" for number in range(16)]


class Work:
    """Works on each key of its share in a separate task, repeatedly."""

    def __init__(self, config: Config, name: str, stop: asyncio.Event) -> None:
        self._config = config
        self._name = name
        self._stop = stop
        self._accepts: Callable[[str], bool] = bool
        self._working: set[str] = set()
        self._ended = asyncio.Event()
        self._numbers = itertools.count()

    def share(self, accepts: Callable[[str], bool]) -> None:
        self._accepts = accepts

    async def drained(self, keeps: Callable[[str], bool]) -> None:
        while not all(keeps(key) for key in self._working):
            self._ended.clear()
            await self._ended.wait()

    def wake(self, wanted: Callable[[str], bool]) -> None:
        """Do nothing: the tasks check their keys all the time."""

    async def run(self, guard: LeadershipGuard) -> None:
        async with Client(self._config) as plain, asyncio.TaskGroup() as group:
            client = fenced(plain, lambda: guard)
            for key in KEYS:
                group.create_task(self._work_on(client, key, guard.identity))

    async def _work_on(self, client: Client, key: str, member: str) -> None:
        while not self._stop.is_set():
            await asyncio.sleep(0.05)
            if not self._accepts(key):
                continue
            self._working.add(key)
            try:
                for step in ("begin", "end"):
                    await self._act(client, key, member, step)
                    await asyncio.sleep(0.1)
            except LeadershipLostError:
                raise
            except (ListWatchError, TimeoutError):
                pass  # The server is down; the lease decides when to stop.
            finally:
                self._working.discard(key)
                self._ended.set()

    async def _act(self, client: Client, key: str, member: str, step: str) -> None:
        name = f"{self._name}-{next(self._numbers)}"
        obj = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"},
            "data": {"key": key, "member": member, "step": step, "process": self._name},
        }
        _ = await client.create(obj)


async def main(url: str, name: str) -> None:
    config = Config(server=url)

    @contextlib.asynccontextmanager
    async def open_client() -> AsyncIterator[LeaseClient]:
        async with Client(config) as client:
            yield ClientLeases(client, "default")

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    work = Work(config, name, stop)
    while not stop.is_set():
        member = ShareMember(
            open_client,
            namespace="default",
            group="test",
            member=f"{name}-{secrets.token_hex(3)}",
            timings=LeaseTimings(lease_duration=2, renew_deadline=1.4, retry_period=0.3),
        )
        member.share(work)
        with contextlib.suppress(LeadershipLostError):
            try:
                await member.run(work.run)
            except* LeadershipLostError:
                pass
        await asyncio.sleep(0.1)


asyncio.run(main(*sys.argv[1:]))
