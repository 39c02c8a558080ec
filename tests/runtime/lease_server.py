"""An in-memory server of Leases, and clients with faults."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from listwatch.clock import Clock, FakeClock, Timer
from listwatch.errors import AlreadyExistsError, ConflictError, DisconnectedError, NotFoundError
from listwatch.objects import Object, decode_object
from listwatch.runtime.leader_election import OpenLeaseClient
from listwatch.runtime.lease import LeaseClient
from listwatch.selector import parse_label_selector


class LeaseServer:
    def __init__(self) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.writes: list[tuple[str, str]] = []

    def _store(self, lease: Mapping[str, Any]) -> Object:
        self.version += 1
        meta = {**lease["metadata"], "resourceVersion": str(self.version)}
        name = meta["name"]
        self.leases[name] = {**lease, "metadata": meta}
        self.writes.append((name, lease["spec"].get("holderIdentity", "")))
        return Object.from_dict(self.leases[name])

    def get(self, name: str) -> Object:
        if name not in self.leases:
            raise NotFoundError(f'leases "{name}" not found')
        return Object.from_dict(self.leases[name])

    def create(self, lease: Mapping[str, Any]) -> Object:
        if lease["metadata"]["name"] in self.leases:
            raise AlreadyExistsError("taken")
        return self._store(lease)

    def update(self, lease: Mapping[str, Any]) -> Object:
        meta = lease["metadata"]
        if meta["name"] not in self.leases:
            raise NotFoundError("gone")
        if self.leases[meta["name"]]["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            raise ConflictError("changed")
        return self._store(lease)

    def delete(self, name: str, resource_version: str) -> None:
        if self.get(name).resource_version != resource_version:
            raise ConflictError("changed")
        del self.leases[name]

    def list(self, label_selector: str) -> list[Object]:
        selector = parse_label_selector(label_selector)
        objects = [Object.from_dict(lease) for lease in self.leases.values()]
        return [obj for obj in objects if selector.matches(obj.labels)]


class ProcessClock(Clock):
    """One process's view of the shared clock; none of its code runs while it is paused."""

    def __init__(self, world: FakeClock, skew: float = 0.0) -> None:
        self.world = world
        self.skew = skew
        self.paused_until = 0.0

    @property
    def paused(self) -> bool:
        return self.world.now() < self.paused_until

    def pause(self, seconds: float) -> None:
        self.paused_until = max(self.paused_until, self.world.now() + seconds)

    def now(self) -> float:
        return self.world.now()

    def time(self) -> float:
        return self.world.time() + self.skew

    async def sleep(self, seconds: float) -> None:
        await self.world.sleep(seconds)
        while self.paused:
            await self.world.sleep(self.paused_until - self.world.now())

    def call_later(self, seconds: float, callback: Any, *args: object) -> Timer:
        return _DeferredTimer(self, seconds, callback, args)


class _DeferredTimer:
    def __init__(self, clock: ProcessClock, seconds: float, callback: Any, args: Any) -> None:
        self._clock = clock
        self._call = (callback, args)
        self._timer = clock.world.call_later(seconds, self._run)

    def _run(self) -> None:
        if self._clock.paused:
            left = self._clock.paused_until - self._clock.world.now()
            self._timer = self._clock.world.call_later(left, self._run)
        else:
            callback, args = self._call
            callback(*args)

    def cancel(self) -> None:
        self._timer.cancel()


class FaultyLeaseClient:
    """A candidate's client; each request gets the next fault of a list, cyclically.

    Faults: "ok"; "refuse" (not applied, error); "lose" (applied, error); "hang" (not applied, no
    answer for 60 s); "mute" (applied, no answer for 60 s); "slow" (applied after 3 s);
    "late" (no answer, applied after 12 s even if nobody waits for it).
    """

    def __init__(self, server: LeaseServer, clock: ProcessClock, faults: list[str]) -> None:
        self.server = server
        self.clock = clock
        self.faults = faults
        self.requests = 0

    async def _do(self, call: Any, *args: object) -> Any:
        fault = self.faults[self.requests % len(self.faults)] if self.faults else "ok"
        self.requests += 1
        if fault == "refuse":
            raise DisconnectedError("refused", refused=True)
        if fault == "hang":
            await self.clock.sleep(60)
        if fault == "slow":
            await self.clock.sleep(3)
        if fault == "late":
            self.clock.world.call_later(12, _ignore_errors, call, *args)
            await self.clock.sleep(60)
        await self.clock.sleep(0.01)
        result = call(*args)
        if fault == "lose":
            raise DisconnectedError("reset")
        if fault == "mute":
            await self.clock.sleep(60)
        await self.clock.sleep(0.01)
        return result

    async def get(self, name: str) -> Object:
        return decode_object((await self._do(self.server.get, name)).raw)

    async def create(self, lease: Mapping[str, Any]) -> Object:
        result: Object = await self._do(self.server.create, lease)
        return result

    async def update(self, lease: Mapping[str, Any]) -> Object:
        result: Object = await self._do(self.server.update, lease)
        return result

    async def delete(self, name: str, *, resource_version: str) -> None:
        await self._do(self.server.delete, name, resource_version)

    async def list(self, label_selector: str) -> list[Object]:
        result: list[Object] = await self._do(self.server.list, label_selector)
        return result


def _ignore_errors(call: Any, *args: object) -> None:
    with contextlib.suppress(NotFoundError, ConflictError):
        call(*args)


def opened(client: LeaseClient) -> OpenLeaseClient:
    @contextlib.asynccontextmanager
    async def open_client() -> AsyncIterator[LeaseClient]:
        yield client

    return open_client


async def until(world: FakeClock, condition: Callable[[], Any], limit: float = 60.0) -> float:
    start = world.now()
    while not condition():
        assert world.now() - start < limit, "it did not happen"
        await world.advance(0.1)
    return world.now() - start


def _expanded(runs: list[tuple[str, int]]) -> list[str]:
    return [fault for fault, length in runs for _ in range(length)]


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["ok", "refuse", "lose", "hang", "mute", "slow", "late"]),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=8,
).map(_expanded)
