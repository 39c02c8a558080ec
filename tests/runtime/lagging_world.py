"""In-memory resources whose watches lag, and a server for a reconciler's writes."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

from listwatch.cache.list_watch import (
    ListerWatcher,
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.client.http import HTTP, Answer
from listwatch.client.request_target import RequestTarget, target_of
from listwatch.clock import FakeClock
from listwatch.errors import DisconnectedError, NotFoundError
from listwatch.objects import Object, select
from listwatch.runtime.recorded_writes import (
    _RecordingHTTP,  # private: `recorded` puts it in place of a client's HTTP
)
from listwatch.selector import parse_label_selector
from listwatch.testing.fake_controller_source import FakeControllerSource
from runtime.reconciler_world import World


class Lagging:
    """A source whose watch delivers events late, in order."""

    def __init__(self, source: ListerWatcher, lag: Any, clock: FakeClock) -> None:
        self._source = source
        self._lag = lag
        self._clock = clock

    async def list(self, options: ListOptions) -> ObjectList:
        return await self._source.list(options)

    @asynccontextmanager
    async def watch(self, options: WatchOptions) -> AsyncIterator[WatchStream]:
        arrived: asyncio.Queue[tuple[float, WatchEvent] | None] = asyncio.Queue()

        async def take_in(stream: WatchStream) -> None:
            async for batch in stream:
                for event in batch:
                    lag = 0.0 if event.object is None else self._lag()
                    arrived.put_nowait((self._clock.now() + lag, event))
            arrived.put_nowait(None)

        async def tell() -> WatchStream:
            while (item := await arrived.get()) is not None:
                due, event = item
                if (seconds := due - self._clock.now()) > 0:
                    await self._clock.sleep(seconds)
                yield [event]

        async with self._source.watch(options) as stream:
            pump = asyncio.create_task(take_in(stream))
            try:
                yield tell()
            finally:
                pump.cancel()
                await asyncio.wait({pump})


class Server:
    """Answers a reconcile's requests from the sources, and loses some answers."""

    def __init__(self, world: "LaggingWorld") -> None:
        self._world = world
        self.requests: list[str] = []
        #: Fates of the next writes: "lost", "not sent", or "".
        self.fates: Iterable[str] = iter(())
        self.stream = None
        self._names = 0

    async def request(
        self, method: str, path: str, _query: Any = (), *, body: bytes | None = None, **_: Any
    ) -> Answer:
        target = target_of(path)
        assert target is not None
        await self._world.clock.sleep(self._world.rng.choice([0, 0.01]))
        fate = next(iter(self.fates), "")
        self.requests.append(f"{method} {target.plural}")
        if fate == "not sent":
            raise DisconnectedError("no connection")
        source = self._world.source(target.plural)
        obj = json.loads(body or b"{}")
        if method == "DELETE":
            answer = self._delete(source, target)
        elif "deletionTimestamp" in obj["metadata"] and not obj["metadata"].get("finalizers"):
            # Nothing keeps the object: the server deletes it and answers with its previous version.
            before = source.objects[f"ns/{target.name}"]
            source.delete(before)
            obj["metadata"]["resourceVersion"] = before.resource_version
            answer = json.dumps(obj).encode()
        else:
            if prefix := obj["metadata"].pop("generateName", ""):
                self._names += 1
                obj["metadata"]["name"] = f"{prefix}{self._names}"
            stored = source.add(obj) if method == "POST" else source.modify(obj)
            answer = stored.json()
        if fate == "lost":
            raise DisconnectedError("the connection broke within a response")
        return Answer(200, {}, answer)

    def _delete(self, source: FakeControllerSource, target: RequestTarget) -> bytes:
        if not target.name:
            everywhere = source.objects.values()
            here = [obj for obj in everywhere if obj.namespace == target.namespace]
            gone = [source.delete(obj) for obj in here]
            return json.dumps({"items": [obj.to_dict() for obj in gone]}).encode()
        key = f"{target.namespace}/{target.name}"
        if key not in source.objects:
            raise NotFoundError("gone")
        uid = source.delete(source.objects[key]).uid
        return json.dumps({"kind": "Status", "details": {"uid": uid}}).encode()


class Reader:
    """The client that reads objects after writes whose answers were lost."""

    def __init__(self, world: "LaggingWorld") -> None:
        self._world = world
        self.discovery = world

    async def get(self, resource: Any, name: str, namespace: str | None) -> Object:
        found = self._world.source(resource.plural).objects.get(f"{namespace}/{name}")
        if found is None:
            raise NotFoundError("no such object")
        return found

    async def pages(
        self, resource: Any, namespace: str | None, *, label_selector: str, field_selector: str
    ) -> AsyncIterator[ObjectList]:
        assert not field_selector
        objects = self._world.source(resource.plural).objects.values()
        selected = select(objects, parse_label_selector(label_selector))
        yield ObjectList(items=[one for one in selected if one.namespace == namespace])


class LaggingWorld(World):
    def __init__(self, seed: int = 0, lag: float = 0.0, **options: Any) -> None:
        super().__init__(hot_key_interval=0, **options)
        self.rng = random.Random(seed)
        self.lag = lag
        #: How many of the next reads fail.
        self.unreadable = 0
        self.server = Server(self)
        self.http = _RecordingHTTP(cast("HTTP", self.server))

    def list_watch(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        **options: Any,
    ) -> Any:
        super().list_watch(resource, namespace, **options)
        part = self.source(resource).list_watch(
            label_selector=label_selector,
            field_selector=field_selector,
            namespace=namespace or "",
        )
        return Lagging(
            part, lambda: self.rng.choice([0.0, self.rng.uniform(0, self.lag)]), self.clock
        )

    async def find(self, word: str) -> Any:
        """Find a resource; after a lost response this is the first step of a read."""
        if "." in word and self.unreadable:
            self.unreadable -= 1
            raise DisconnectedError("no connection")
        return await super().find(word.partition(".")[0])

    async def post(self, plural: str, obj: dict[str, Any]) -> None:
        path = f"/apis/example.com/v1/namespaces/ns/{plural}"
        await self.http.request("POST", path, body=json.dumps(obj).encode())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Any]:
        prepare = self.reconciler.prepare

        async def prepared(discovery: Any) -> None:
            await prepare(discovery, cast("Any", Reader(self)))

        self.reconciler.prepare = prepared  # type: ignore[method-assign,assignment]
        async with super().running() as reconciler:
            yield reconciler


class Canned:
    """Gives every request the same answer."""

    stream = None

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def request(self, *_: Any, **__: Any) -> Answer:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return Answer(
            200,
            {},
            self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode(),
        )


def recording_http(server: Any) -> _RecordingHTTP:
    """Return what `recorded` puts in place of a client's HTTP."""
    return _RecordingHTTP(cast("HTTP", server))
