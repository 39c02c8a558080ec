import asyncio
import random
import sqlite3
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from listwatch.cache.list_watch import Decoder, KnowsObjects, ListOptions
from listwatch.client.client import Client
from listwatch.client.kubeconfig import load_config
from listwatch.objects import Object
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.state import (
    Remembered,
    ResumingListWatch,
    StateError,
    StateFile,
    version_number,
)
from listwatch.testing import story
from listwatch.testing.fake_controller_source import FakeControllerSource, pod
from observe.observing import observing
from processes import api_server, running

BINDING = {"cluster": "c1", "resource": "pods.v1."}
TELL = ("/bin/echo", "tell")
GONE = ("/bin/echo", "gone")


def _object(name: str, version: int) -> Object:
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": str(version)}
    return Object.from_dict({"kind": "Pod", "apiVersion": "v1", "metadata": meta})


def _told(name: str, version: int) -> Observation:
    return Observation(
        ObservationType.UPDATED, f"ns/{name}", _object(name, version), position=version
    )


def _gone(name: str, version: int) -> Observation:
    return Observation(
        ObservationType.DELETED, f"ns/{name}", _object(name, version), position=version
    )


def test_what_was_told_is_there_again_and_so_is_how_far_it_came(tmp_path: Path) -> None:
    path = tmp_path / "state"
    file = StateFile(path, BINDING)
    for change in (_told("a", 1), _told("b", 2), _told("a", 5), _gone("b", 6), _told("c", 7)):
        file.finished("pods.v1.", change)
    file.reached("pods.v1.", 5)
    file.close()
    file = StateFile(path, BINDING)
    remembered = file.load("pods.v1.")
    assert sorted(obj.key for obj in remembered.objects) == ["ns/a", "ns/c"]
    assert remembered.version == 5
    assert remembered.finished == {"ns/b": 6, "ns/c": 7}
    file.reached("pods.v1.", 7)
    assert file.load("pods.v1.").finished == {}
    assert file.load("others.v1.").objects == []
    file.close()


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    StateFile(path, BINDING).close()
    with pytest.raises(StateError, match=r"belongs to another cluster \('c1', this is 'c2'\)"):
        StateFile(path, {**BINDING, "cluster": "c2"})
    StateFile(path, BINDING).close()


def test_a_file_in_use_damaged_or_nowhere_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "state"
    file = StateFile(path, BINDING)
    with pytest.raises(StateError, match="it is in use by another process"):
        StateFile(path, BINDING)
    file.close()
    broken = tmp_path / "broken"
    broken.write_text("this is no database, but a text of some length\n" * 100)
    before = broken.read_bytes()
    with pytest.raises(StateError, match="damaged or not a state file"):
        StateFile(broken, BINDING)
    assert broken.read_bytes() == before
    with pytest.raises(StateError, match="/dev/null is not a regular file; name another"):
        StateFile(Path("/dev/null"), BINDING)
    with pytest.raises(StateError, match="unable to open the state file"):
        StateFile(tmp_path / "no" / "where", BINDING)
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO told VALUES ('pods.v1.', 'ns/a', 1, 'nonsense')")
    database.close()
    file = StateFile(path, BINDING)
    with pytest.raises(StateError, match="damaged: a value of type str in the wrong place"):
        file.load("pods.v1.")
    file.close()


def test_versions_that_are_no_numbers_are_refused() -> None:
    assert version_number("12") == 12
    with pytest.raises(StateError, match="resource versions that are numbers"):
        version_number("abc")


def _words(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("# ")]


async def test_the_next_run_tells_only_what_changed_and_watches_on(tmp_path: Path) -> None:
    source = FakeControllerSource()
    for name in "abc":
        source.add(pod(name, "ns"))
    options: dict[str, Any] = {
        "command": TELL,
        "delete_command": GONE,
        "state_file": tmp_path / "state",
    }
    async with observing(tmp_path, source, **options) as state:
        await state.until(lambda: state.observer.synced)
        source.delete("ns/c")
        await state.until(lambda: "gone ns c" in state.out)
    source.modify(pod("a", "ns", image="2"))
    source.modify(pod("a", "ns", image="3"))
    source.delete("ns/b")
    source.add(pod("b", "ns"))
    source.requests.clear()
    before = len(state.out)
    async with observing(tmp_path, source, **options) as state:
        await state.until(lambda: state.out[before:].count("tell ns b") == 2)
    assert _words(state.out[before:]) == ["tell ns a", "tell ns a", "gone ns b", "tell ns b"]
    assert not any(isinstance(request.options, ListOptions) for request in source.requests)


async def test_where_the_history_is_gone_the_next_run_lists_and_compares(tmp_path: Path) -> None:
    source = FakeControllerSource()
    for name in "abc":
        source.add(pod(name, "ns"))
    options: dict[str, Any] = {
        "command": TELL,
        "delete_command": GONE,
        "state_file": tmp_path / "state",
    }
    async with observing(tmp_path, source, **options) as state:
        await state.until(lambda: state.observer.synced)
    source.modify(pod("a", "ns", image="2"))
    source.delete("ns/b")
    source.reset_watch()
    before = len(state.out)
    async with observing(tmp_path, source, **options) as state:
        await state.until(lambda: "tell ns a" in state.out[before:])
    assert _words(state.out[before:]) == ["gone ns b", "tell ns a"]


async def test_once_with_a_state_file_tells_what_is_new_since_the_last_run(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    options: dict[str, Any] = {
        "command": TELL,
        "delete_command": GONE,
        "state_file": tmp_path / "state",
        "once": True,
        "quiet": True,
    }

    async def run() -> list[str]:
        (tmp_path / "out").unlink(missing_ok=True)
        async with observing(tmp_path, source, **options) as state:
            await state.task
        return _words(state.out)

    assert await run() == ["tell ns a"]
    assert await run() == []
    source.add(pod("b", "ns"))
    assert await run() == ["tell ns b"]
    source.delete("ns/a")
    assert await run() == ["gone ns a"]


async def test_what_was_running_at_the_end_is_run_again(tmp_path: Path) -> None:
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    source.add(pod("b", "ns"))
    script = "echo $2; test $2 = a || sleep 600"
    async with observing(
        tmp_path,
        source,
        command=("/bin/sh", "-c", script, "sh"),
        state_file=tmp_path / "state",
        grace=0.0,
    ) as state:
        await state.until(lambda: "b\n" in state.out)
    before = len(state.out)
    async with observing(tmp_path, source, command=TELL, state_file=tmp_path / "state") as state:
        await state.until(lambda: state.observer.synced)
    assert _words(state.out[before:]) == ["tell ns b"]


@pytest.mark.parametrize("lost_history", [False, True])
@pytest.mark.parametrize("synced_before", [False, True])
async def test_the_end_is_told_of_what_had_only_begun_to_be_told(
    tmp_path: Path, *, synced_before: bool, lost_history: bool
) -> None:
    """A killed command may have done its work, so its object's deletion must be delivered."""
    source = FakeControllerSource()
    source.add(pod("a", "ns"))
    options: dict[str, Any] = {"state_file": tmp_path / "state", "delete_command": GONE}
    began = tmp_path / "began"
    script = ("/bin/sh", "-c", f"echo $2 >> {began}; test $2 = a || sleep 600", "sh")
    began.touch()

    def add_others() -> None:
        source.add(pod("b", "ns"))
        source.add(pod("c", "ns"))

    if not synced_before:
        add_others()
    async with observing(
        tmp_path, source, command=script, grace=0.0, parallel=2, **options
    ) as state:
        if synced_before:
            await state.until(lambda: state.observer.synced)
            add_others()
        await state.until(lambda: sorted(began.read_text().split()) == ["a", "b", "c"])
    source.delete("ns/b")
    if lost_history:
        source.reset_watch()
    before = len(state.headers)
    async with observing(tmp_path, source, command=TELL, **options) as state:
        await state.until(lambda: {"gone ns b", "tell ns c"} <= {*_words(state.out)})
        source.modify(pod("c", "ns", image="2"))
        await state.until(lambda: _words(state.out).count("tell ns c") == 2)
    types = [(line[:7].split()[0], line[-4:]) for line in state.headers[before:]]
    assert types.count(("Deleted", "ns b")) == 1
    is_listed = lost_history or not synced_before
    assert [kind for kind, who in types if who == "ns c"] == [
        "Sync" if is_listed else "Added",
        "Updated",
    ]
    assert ("Sync", "ns a") not in types or not synced_before


PARALLEL, KILLS = 3, 5
SCRIPT = '#!/bin/sh\nsleep 0.01\necho "$EVENT $*" >> "$STORY"\n'


class Writer:
    """Change pods continuously on a thread, and record the changes."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._stop = threading.Event()
        self.done: list[story.Chapter] = []
        self._thread = threading.Thread(target=self._write)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)

    def _write(self) -> None:
        asyncio.run(self._write_until_stopped())

    async def _write_until_stopped(self) -> None:
        pick = random.Random(1)
        alive: dict[str, Object] = {}
        async with Client.from_config(load_config(self._kubeconfig)) as client:
            while not self._stop.is_set():
                name = f"c{pick.randrange(8)}"
                body = {
                    "kind": "ConfigMap",
                    "apiVersion": "v1",
                    "metadata": {"name": name, "namespace": "default"},
                    "data": {"n": str(len(self.done))},
                }
                if name not in alive:
                    obj = alive[name] = await client.create(body)
                    kind = story.ChapterType.ADDED
                elif pick.random() < 0.3:
                    before = alive.pop(name)
                    found = await client.delete("configmaps", name)
                    obj = found if found is not None else before
                    kind = story.ChapterType.DELETED
                else:
                    obj = alive[name] = await client.update(body)
                    kind = story.ChapterType.UPDATED
                change = story.Chapter(kind, obj.key, obj.uid, int(obj.resource_version))
                self.done.append(change)
                time.sleep(0.004)  # noqa: ASYNC251 - this loop has nothing else to do


def _read(path: Path) -> list[story.Chapter]:
    found = []
    for line in path.read_text().splitlines():
        kind, namespace, name, uid, version = line.split(" ")
        found.append(
            story.Chapter(story.ChapterType(kind), f"{namespace}/{name}", uid, int(version))
        )
    return found


def _without_repeats(told: list[story.Chapter]) -> list[story.Chapter]:
    return list(dict.fromkeys(told))


@pytest.mark.timeout(180)
@pytest.mark.proof
def test_killing_it_at_any_instant_loses_nothing_and_repeats_only_what_was_running(
    tmp_path: Path,
) -> None:
    script, told, state = tmp_path / "script", tmp_path / "story", tmp_path / "state"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    told.touch()
    pick = random.Random(2)
    arguments = [
        "observe", "configmaps", "--state", str(state), "--parallel", str(PARALLEL),
        "--listen-addr=", "--type-env-var=EVENT",
        "--template", "{.metadata.uid} {.metadata.resourceVersion}",
        "--delete", str(script), "--", str(script),
    ]  # fmt: skip

    def has_grown(before: int) -> bool:
        return told.stat().st_size > before

    with api_server(tmp_path) as kubeconfig:
        env = {"KUBECONFIG": str(kubeconfig), "STORY": str(told)}
        writer = Writer(kubeconfig)
        for turn in range(KILLS):
            with running(*arguments, **env) as observe:  # killed at the end of the block
                if not turn:
                    observe.until(lambda: any("Sync ended" in line for line in observe.out))
                    writer.start()
                observe.until(partial(has_grown, told.stat().st_size))
                time.sleep(pick.uniform(0, 0.3))
        writer.stop()
        with running(*arguments, **env) as observe:
            observe.until(
                lambda: not story.compare(writer.done, _without_repeats(_read(told))).mistakes
            )
            assert observe.stop() == 0
    result = story.compare(writer.done, _without_repeats(_read(told)))
    assert result.mistakes == []
    assert result.done > 50
    repeats = sum(count - 1 for count in Counter(_read(told)).values())
    assert repeats <= KILLS * PARALLEL


def test_a_source_that_can_be_asked_for_one_object_can_be_when_it_resumes() -> None:
    remembered = Remembered(objects=[], begun=frozenset(), version=1, finished={})
    source = FakeControllerSource()
    assert not isinstance(ResumingListWatch(source, remembered), KnowsObjects)

    class Asked(FakeControllerSource):
        async def find(self, key: str, _: Decoder) -> Object | None:
            return self.objects.get(key)

    assert isinstance(ResumingListWatch(Asked(), remembered), KnowsObjects)
