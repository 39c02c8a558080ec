"""Several servers in one process, each in its own thread, share no mutable state."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.api.body import decode_body
from listwatch.apiserver.storage.registry import WriteContext
from listwatch.schema.facts import Facts, Form, Schema, facts
from listwatch.schema.fast_typed import QuickDecoder
from listwatch.testing.workload import PodGenerator

_THREADS = 4


@pytest.fixture(autouse=True)
def switching_all_the_time() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def at_once(work: Callable[[int], object]) -> None:
    """Run work in several threads that start together; raise the first failure."""
    start = threading.Barrier(_THREADS)

    def run(number: int) -> None:
        start.wait(50)
        work(number)

    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(run, number) for number in range(_THREADS)]:
            done.result()


def test_servers_store_their_own_objects() -> None:
    def store_many(number: int) -> None:
        server = EmbeddedAPIServer(controllers=False)
        maps = server.table.get("", "v1", "configmaps")
        assert maps is not None
        for name in range(2000):
            text = f"{number}" * (100 + name)
            obj = {"metadata": {"name": f"m{name}"}, "data": {"k": text}}
            entry = server.registry.create(maps, "default", obj, WriteContext())
            assert server.registry.decode(entry)["data"] == {"k": text}

    at_once(store_many)


def test_a_type_is_seen_when_it_is_whole() -> None:
    packed = facts()
    rows = {
        "definitions": packed.definitions,
        "resources": packed.resources,
        "columns": packed.columns,
        "defaults": packed.defaults,
    }

    def parts(schema: Schema, seen: set[Schema]) -> int:
        if schema in seen:
            return 0
        seen.add(schema)
        below = [*schema.fields.values(), *([schema.item] if schema.item else [])]
        assert below or schema.form not in {Form.STRUCT, Form.LIST, Form.MAP}, schema
        return 1 + sum(parts(each, seen) for each in below)

    whole = parts(packed.schema("", "v1", "Pod"), set())
    for _ in range(5):
        fresh = Facts(rows)

        def count(_: int, fresh: Facts = fresh) -> None:
            assert parts(fresh.schema("", "v1", "Pod"), set()) == whole

        at_once(count)


def test_bodies_are_decoded_side_by_side() -> None:
    table = EmbeddedAPIServer(controllers=False).table
    pods = table.get("", "v1", "pods")
    assert pods is not None

    def decode_many(number: int) -> None:
        quick = QuickDecoder(worth_it=2)
        generator = PodGenerator(number)
        for each in range(100):
            pod = generator.pod(each)
            data = msgspec.json.encode(pod)
            found = decode_body(data, "application/json", pods, quick).obj
            assert found == decode_body(data, "application/json", pods).obj
            assert found["metadata"]["name"] == pod["metadata"]["name"]

    at_once(decode_many)
