"""The same informers in a program without asyncio."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any, assert_type

import msgspec
import pytest

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.cache.factory import ListWatchSource
from listwatch.cache.failures import Failure
from listwatch.cache.handlers import Added, Deleted, HandlerFuncs, Updated
from listwatch.cache.list_watch import ListerWatcher
from listwatch.cache.processor import StoppedError
from listwatch.client import Client, Config
from listwatch.client.reading import Reads
from listwatch.errors import BadRequestError, ConfigError, ConflictError, NotFoundError
from listwatch.objects import Object
from listwatch.resources import ObjectMeta, definition, resource
from listwatch.sync import BlockingInformer, Cluster, Connection, connect
from listwatch.testing.fake_controller_source import FakeControllerSource, pod
from listwatch.testing.scripted_server import ScriptedServer, respond


class Pod(msgspec.Struct):
    spec: dict[str, int] = {}


class Source:
    """An in-memory resource that the background thread writes."""

    def __init__(self) -> None:
        self.pods = FakeControllerSource()
        self.pods.add(pod("a", "ns"))

    def list_watch(self, resource: str, namespace: str | None = None, **_: Any) -> ListerWatcher:
        assert resource == "pods"
        return self.pods.list_watch(namespace=namespace or "")


@asynccontextmanager
async def opened(cluster: Source) -> AsyncGenerator[ListWatchSource, None]:
    yield cluster


@pytest.fixture
def cluster() -> Source:
    return Source()


@pytest.fixture
def connection(cluster: Source) -> Iterator[Connection]:
    with Connection(lambda: opened(cluster)) as connection:
        yield connection


def write(connection: Connection, work: Any) -> Object:
    async def run() -> Object:
        obj: Object = work()
        return obj

    return connection.call(run)


def test_a_cache_is_kept_in_the_background(connection: Connection, cluster: Source) -> None:
    pods = connection.informer("pods", "ns")
    pods.wait_for_sync(20)
    assert pods.has_synced
    assert [obj.key for obj in pods.lister.list()] == ["ns/a"]
    written = write(connection, lambda: cluster.pods.add(pod("b", "ns")))
    pods.wait_for_resource_version(written.resource_version, seconds=20)
    assert pods.lister.get("b", "ns").uid == written.uid
    assert pods.resource_version == "2"
    assert connection.informer("pods", "ns") is pods
    assert connection.wait_for_cache_sync(20) == {}
    assert pods.statistics().store.objects == 2


def test_changes_are_iterated_over_until_the_connection_is_closed(cluster: Source) -> None:
    seen: list[str] = []
    with Connection(lambda: opened(cluster)) as connection:
        pods = connection.informer("pods")
        first = next(pods.changes())
        assert isinstance(first, Added)
        got = threading.Event()

        def read() -> None:
            for change in pods.changes():
                seen.append(f"{type(change).__name__} {change.key}")
                got.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert got.wait(20)
        got.clear()
        write(connection, lambda: cluster.pods.delete("ns/a"))
        assert got.wait(20)
    reader.join(20)
    assert not reader.is_alive()
    assert seen == ["Added ns/a", "Deleted ns/a"]
    assert pods.is_stopped


def test_handlers_are_called_on_threads_of_their_own(
    connection: Connection, cluster: Source
) -> None:
    pods = connection.informer("pods")
    seen: list[str] = []
    got = threading.Event()

    def on_add(obj: Object, _: bool) -> None:
        seen.append(f"{obj.name} {threading.current_thread().name}")
        got.set()

    registration = pods.add_handler(HandlerFuncs(on_add), name="mine")
    registration.wait_for_sync(20)
    assert seen == ["a handler pods: mine"]
    assert registration.statistics().handler.delivered == 1
    registration.remove()
    write(connection, lambda: cluster.pods.add(pod("b")))
    pods.wait_for_resource_version("2", seconds=20)
    assert len(seen) == 1


def test_an_informer_speaks_in_a_type_of_ones_own(cluster: Source) -> None:
    cluster.pods.add(pod("misfit", x="no number"))
    cluster.pods.add(pod("b", x=1))
    failures: list[Failure] = []
    with Connection(lambda: opened(cluster), on_error=failures.append) as connection:
        pods = connection.informer("pods", decode=Pod)
        assert_type(pods, BlockingInformer[Pod])
        assert_type(connection.informer("pods"), BlockingInformer[Object])
        pods.wait_for_sync(20)
        assert pods.indexer is connection.informer("pods").indexer
        assert pods.lister.get("b").spec == {"x": 1}
        told: list[dict[str, int]] = []
        pods.add_handler(HandlerFuncs(lambda obj, _: told.append(obj.spec))).wait_for_sync(20)
        assert told == [{"x": 1}, {}]
        changes = pods.changes()
        assert_type(changes, Generator[Added[Pod] | Updated[Pod] | Deleted[Pod], None, None])
        first, second = next(changes), next(changes)
        assert isinstance(first, Added)
        assert (first.key, first.obj.spec, second.key) == ("b", {"x": 1}, "ns/a")
        assert isinstance(failures[0], Failure)
        assert sorted(failure.doing for failure in failures) == ["changes", "handler of added"]
        assert {failure.key for failure in failures} == {"misfit"}


async def test_it_works_beside_a_running_event_loop(cluster: Source) -> None:
    """As in a notebook."""
    assert asyncio.get_running_loop().is_running()
    with Connection(lambda: opened(cluster)) as connection:
        pods = connection.informer("pods")
        pods.wait_for_sync(20)
        assert len(pods.lister) == 1


def test_waiting_has_an_end(connection: Connection) -> None:
    pods = connection.informer("pods")
    with pytest.raises(TimeoutError):
        pods.wait_for_resource_version("99", seconds=0.01)


def test_a_closed_connection_says_so_and_the_cache_stays(cluster: Source) -> None:
    with Connection(lambda: opened(cluster)) as connection:
        pods = connection.informer("pods")
        pods.wait_for_sync(20)
    connection.close()
    assert pods.lister.get("a", "ns").name == "a"
    with pytest.raises(StoppedError, match="not open"):
        pods.wait_for_resource_version("99")
    with pytest.raises(RuntimeError, match="opens once"):
        connection.__enter__()


def test_who_waits_is_told_of_the_end(cluster: Source) -> None:
    errors: list[BaseException] = []
    with Connection(lambda: opened(cluster)) as connection:
        pods = connection.informer("pods")

        def wait() -> None:
            try:
                pods.wait_for_resource_version("99")
            except StoppedError as error:
                errors.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
    waiter.join(20)
    assert len(errors) == 1


def test_the_background_thread_can_not_wait_for_itself(connection: Connection) -> None:
    async def inside() -> None:
        for wait in (lambda: connection.informer("pods"), connection.close):
            with pytest.raises(RuntimeError, match="thread"):
                wait()

    connection.call(inside)


def test_what_fails_at_opening_is_raised_at_entering() -> None:
    @asynccontextmanager
    async def broken() -> AsyncGenerator[ListWatchSource, None]:
        raise ConfigError("no configuration")
        yield Source()  # type: ignore[unreachable]  # makes it a generator

    with pytest.raises(ConfigError, match="no configuration"), Connection(broken):
        pass


def test_connecting_without_a_configuration_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError), connect():
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_after_a_fork_the_error_is_clear(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forking a process with threads is unsafe in a test, so only the process ID changes."""
    real = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: real + 1)
    with pytest.raises(RuntimeError, match="forked"):
        connection.informer("pods")
    with pytest.raises(RuntimeError, match="forked"):
        connection.__enter__()
    monkeypatch.undo()


FORKING = """
import os, sys
from contextlib import asynccontextmanager
from listwatch.cache.handlers import HandlerFuncs
from listwatch.sync import Connection
from listwatch.testing.fake_controller_source import FakeControllerSource, pod

@asynccontextmanager
async def opened():
    yield source

class Source(FakeControllerSource):
    def list_watch(self, *_, **__):
        return super().list_watch()

source = Source()
source.add(pod("a"))
with Connection(opened) as connection:
    pods = connection.informer("pods")
    registration = pods.add_handler(HandlerFuncs())
    registration.wait_for_sync(20)
    changes = pods.changes()
    next(changes)
    child = os.fork()
    if not child:
        LEAVE
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(len(pods.statistics().listeners))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.parametrize(
    ("leave", "code", "words"),
    [
        ("sys.exit(3)", 3, ""),
        ("raise KeyError('its own')", 1, "KeyError: 'its own'"),
        ("registration.remove(); changes.close(); connection.close(); sys.exit(3)", 3, ""),
        ("del changes, registration, pods; sys.exit(3)", 3, ""),
    ],
)
def test_a_forked_child_leaves_as_if_there_were_no_connection(
    leave: str, code: int, words: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING.replace("LEAVE", leave)],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    # The parent continues with its handler and its iteration.
    assert ended.stdout.split() == [str(code), "2"]
    assert ended.stderr.strip().splitlines()[-1:] == ([words] if words else [])


def test_a_handler_may_remove_itself_and_nothing_is_told_afterwards(
    connection: Connection, cluster: Source
) -> None:
    pods = connection.informer("pods")
    cluster.pods.add(pod("b"))
    told: list[str] = []
    added = threading.Event()
    removed = threading.Event()

    def on_add(obj: Object, _: bool) -> None:
        told.append(obj.name)
        added.wait(20)
        registration.remove()
        removed.set()

    registration = pods.add_handler(HandlerFuncs(on_add))
    added.set()
    assert removed.wait(20)
    write(connection, lambda: cluster.pods.add(pod("c")))
    pods.wait_for_resource_version("3", seconds=20)
    with pytest.raises(StoppedError, match="removed"):
        registration.wait_for_sync(20)
    assert len(told) == 1
    assert pods.statistics().listeners == ()


def test_leaving_late_is_no_error(cluster: Source) -> None:
    with Connection(lambda: opened(cluster)) as connection:
        pods = connection.informer("pods")
        registration = pods.add_handler(HandlerFuncs())
        changes = pods.changes()
        next(changes)
    registration.remove()
    changes.close()
    assert pods.is_stopped


POD: dict[str, Any] = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


@pytest.fixture
def real() -> Iterator[Cluster]:
    """Open a connection to an API server."""
    with serving() as config, Cluster(config) as cluster:
        yield cluster


def log_of_a_pod() -> ScriptedServer:
    server = ScriptedServer()
    server.answers["/api/v1/namespaces/default/pods/p/log"] = respond(
        b"one\ntwo\nthree\n", type_="text/plain"
    )
    return server


@contextmanager
def serving(
    make: Callable[[], EmbeddedAPIServer | ScriptedServer] = EmbeddedAPIServer,
) -> Iterator[Config]:
    """Run a server in a new thread."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        async with make() as server:
            stop = asyncio.Event()
            started.set_result((server.url, asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    url, loop, stop = started.result(20)
    yield Config(server=url, namespace="default")
    loop.call_soon_threadsafe(stop.set)
    thread.join()


def test_every_verb_waits_for_its_answer(real: Cluster) -> None:
    made = real.create(POD)
    assert real.get("pods", "p").uid == made.uid
    assert [obj.name for obj in real.list("pods").items] == ["p"]
    labelled = real.patch("pods", "p", {"metadata": {"labels": {"a": "1"}}})
    assert labelled.meta.labels == {"a": "1"}
    changed = labelled.to_dict()
    changed["metadata"]["labels"] = {"a": "2"}
    assert real.update(changed).meta.labels == {"a": "2"}
    with pytest.raises(ConflictError):
        real.update(changed)

    def label(obj: dict[str, Any]) -> None:
        obj["metadata"]["labels"]["b"] = "3"

    assert real.update_existing("pods", "p", label).meta.labels == {"a": "2", "b": "3"}
    meta = {"name": "p", "labels": {"c": "4"}}
    applied = real.apply({**POD, "metadata": meta, "spec": {}}, field_manager="m")
    assert applied.meta.labels == {"a": "2", "b": "3", "c": "4"}
    with pytest.raises(BadRequestError):
        list(real.logs("p"))
    with pytest.raises(TimeoutError):
        real.wait_for("pods", "p", "Ready", seconds=0.1)
    assert real.wait_for("pods", "p", lambda pod: pod.meta.labels.get("c")).uid == made.uid
    real.delete("pods", "p", grace_period_seconds=0)
    real.wait_for_deletion("pods", "p", seconds=20)
    with pytest.raises(NotFoundError):
        real.get("pods", "p")


def test_the_lines_of_a_log_are_read_one_by_one() -> None:
    with serving(log_of_a_pod) as config, Cluster(config) as cluster:
        lines = cluster.logs("p")
        assert next(lines) == "one"
        lines.close()
        assert list(cluster.logs("p")) == ["one", "two", "three"]


@resource("example.com", "v1")
class Widget(msgspec.Struct):
    metadata: ObjectMeta
    size: int = 1


def test_verbs_take_types_and_return_them(real: Cluster) -> None:
    real.create(definition(Widget))
    real.wait_for("crds", "widgets.example.com", "Established", seconds=20)
    made = real.create(Widget(ObjectMeta(name="w")))
    assert_type(made, Widget)

    def grow(widget: Widget) -> None:
        widget.size += 1

    assert_type(real.update_existing(Widget, "w", grow), Widget)
    read = real.get(Widget, "w")
    assert_type(read, Widget)
    assert read.size == 2
    assert_type(real.get("widgets", "w"), Object)
    assert [obj.name for page in real.pages(Widget) for obj in page.items] == ["w"]
    real.delete_collection(Widget)
    assert real.list(Widget).items == []


def test_every_verb_of_the_client_is_there() -> None:
    own = {*vars(Client), *vars(Reads)} - {"through", "from_config", "list_watch", "close"}
    missing = {name for name in own if not name.startswith("_")} - {*dir(Cluster)}
    assert missing == {"config", "clock", "discovery", "http"} & missing
    assert Cluster.get.__doc__ == Client.get.__doc__


def test_a_connection_that_is_not_open_has_no_client() -> None:
    with pytest.raises(StoppedError, match="not open"):
        Cluster(Config(server="http://127.0.0.1:1")).get("pods", "p")


def test_a_state_of_the_cache_is_waited_for(connection: Connection, cluster: Source) -> None:
    pods = connection.informer("pods", "ns")
    pods.wait_for(lambda lister: len(lister) == 1, 20)
    with pytest.raises(TimeoutError):
        pods.wait_for(lambda lister: len(lister) == 2, 0.1)
    write(connection, lambda: cluster.pods.add(pod("b", "ns")))
    pods.wait_for(lambda lister: len(lister) == 2, 20)


def test_changes_end_after_a_time(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = connection.informer("pods", "ns")
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("listwatch.sync.connection.time", clock)
    told = []
    for change in pods.changes(seconds=30):
        told.append(change.key)
        now = 30.0
    assert told == ["ns/a"]
