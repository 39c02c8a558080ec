"""Contend for a lease and, while leading, write ConfigMaps with the fencing token."""

import asyncio
import contextlib
import itertools
import signal
import sys
from collections.abc import AsyncIterator

from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.errors import ListWatchError
from listwatch.runtime.candidate import LeaseTimings
from listwatch.runtime.fencing import fenced
from listwatch.runtime.leader_election import LeaderElector
from listwatch.runtime.leading import LeadershipGuard, LeadershipLostError
from listwatch.runtime.lease import ClientLeases, LeaseClient


async def main(url: str, identity: str) -> None:
    numbers = itertools.count()
    config = Config(server=url)

    @contextlib.asynccontextmanager
    async def open_client() -> AsyncIterator[LeaseClient]:
        async with Client(config) as client:
            yield ClientLeases(client, "default")

    elector = LeaderElector(
        open_client,
        namespace="default",
        name="lock",
        identity=identity,
        timings=LeaseTimings(lease_duration=2, renew_deadline=1.4, retry_period=0.3),
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def act(guard: LeadershipGuard) -> None:
        async with Client(config) as plain:
            client = fenced(plain, lambda: guard)
            while not stop.is_set():
                obj = {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": f"{identity}-{next(numbers)}", "namespace": "default"},
                    "data": {"token": str(guard.transitions), "identity": identity},
                }
                try:
                    await client.create(obj)
                except LeadershipLostError:
                    raise
                except (ListWatchError, TimeoutError):
                    pass  # The server is down; the lease decides when to stop.
                await asyncio.sleep(0.03)

    while not stop.is_set():
        with contextlib.suppress(LeadershipLostError):
            await elector.run(act)
        await asyncio.sleep(0.1)


asyncio.run(main(*sys.argv[1:]))
