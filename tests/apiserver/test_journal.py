import asyncio
import http.client
import json
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from api_client import CORE, MAPS, Client, events, names
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.storage.journal import SQLiteJournal
from listwatch.apiserver.storage.store import NotStoredError, StoredChange
from listwatch.clock import FakeClock
from listwatch.errors import ConfigError

_SERVE = """
import asyncio, sys
from pathlib import Path
from listwatch.apiserver import EmbeddedAPIServer

async def main():
    async with EmbeddedAPIServer(data=Path(sys.argv[1])) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_objects_version_and_history_survive_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data.db"
    async with EmbeddedAPIServer(data=data) as server, Client(server) as client:
        first = await client.create(MAPS, "a", data={"k": "1"})
        await client.merge(f"{MAPS}/a", {"data": {"k": "2"}})
        await client.create(MAPS, "b")
        await client.call("DELETE", f"{MAPS}/b", expect=200)
        before = await client.call("GET", MAPS)
        revision = server.store.revision
    async with EmbeddedAPIServer(data=data) as server, Client(server) as client:
        assert server.store.revision == revision
        after = await client.call("GET", MAPS)
        assert after["items"] == before["items"]
        version = first["metadata"]["resourceVersion"]
        async with client.watch(MAPS, f"resourceVersion={version}") as watch:
            found = await events(watch, 3)
        old = await client.call(
            "GET", f"{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact", expect=200
        )
    assert [event["type"] for event in found] == ["MODIFIED", "ADDED", "DELETED"]
    assert old["items"][0]["data"] == {"k": "1"}


async def test_custom_resources_are_served_again_after_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data.db"
    spec = {"type": "object", "properties": {"color": {"type": "string"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    definition = {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": schema,
                    "selectableFields": [{"jsonPath": ".spec.color"}],
                }
            ],
        },
    }
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    widgets = "/apis/example.com/v1/namespaces/default/widgets"
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    async with EmbeddedAPIServer(data=data) as server, Client(server) as client:
        await client.call("POST", crds, definition, expect=201)
        await client.call("GET", widgets, expect=200)
        await client.call("POST", widgets, {**widget, "spec": {"color": "red"}}, expect=201)
    async with EmbeddedAPIServer(data=data) as server, Client(server) as client:
        query = "fieldSelector=spec.color=red"
        assert names(await client.call("GET", f"{widgets}?{query}", expect=200)) == ["w"]


async def test_compaction_survives_too(tmp_path: Path) -> None:
    data = tmp_path / "data.db"
    async with EmbeddedAPIServer(data=data) as server, Client(server) as client:
        await client.create(MAPS, "a")
        server.compact()
        compacted = server.store.compacted
    async with EmbeddedAPIServer(data=data) as server:
        assert server.store.compacted == compacted
        assert server.store.revision == compacted


@pytest.mark.parametrize("damage", ["text", "other", "pages"])
async def test_a_file_that_can_not_be_used_is_refused_and_left_alone(
    tmp_path: Path, damage: str
) -> None:
    data = tmp_path / "data.db"
    if damage == "text":
        data.write_text("apiVersion: v1\n" * 1000)
    elif damage == "other":
        with sqlite3.connect(data) as other:
            other.execute("CREATE TABLE t (x)")
        other.close()
    else:
        async with EmbeddedAPIServer(data=data) as server, Client(server) as client:
            for number in range(50):
                await client.create(MAPS, f"m{number}", data={"k": "x" * 2000})
        content = bytearray(data.read_bytes())
        content[8192:32768] = os.urandom(32768 - 8192)
        data.write_bytes(content)
    before = data.read_bytes()
    with pytest.raises(ConfigError, match="was left as it is") as refused:
        EmbeddedAPIServer(data=data)
    assert str(data) in str(refused.value)
    assert data.read_bytes() == before


@pytest.mark.parametrize("value", ["'abc'", "x'ff'", "-1", "3.5", "9223372036854775807"])
@pytest.mark.parametrize("name", ["revision", "compacted"])
async def test_a_number_that_can_be_none_is_damage(tmp_path: Path, name: str, value: str) -> None:
    data = tmp_path / "data.db"
    async with EmbeddedAPIServer(data=data) as server, Client(server) as client:
        await client.create(MAPS, "a")
        server.compact()
    with sqlite3.connect(data) as database:
        database.execute(f"UPDATE state SET value = {value} WHERE name = '{name}'")  # noqa: S608 - of this test
    database.close()
    with pytest.raises(ConfigError, match=f"its {name} is .*it was left as it is"):
        EmbeddedAPIServer(data=data)


async def test_a_process_that_was_killed_while_it_made_the_file_leaves_one_that_can_be_used(
    tmp_path: Path,
) -> None:
    """The file has SQLite's header, but no tables yet."""
    half = tmp_path / "half.db"
    connection = sqlite3.connect(half, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("BEGIN EXCLUSIVE")
    connection.execute("CREATE TABLE objects (x)")
    data = tmp_path / "data.db"
    data.write_bytes(half.read_bytes())
    connection.close()
    assert data.stat().st_size > 0
    for _ in range(2):
        async with EmbeddedAPIServer(data=data) as server:
            assert server.store.revision > 1


async def test_the_file_keeps_no_more_history_than_the_server(tmp_path: Path) -> None:
    """The oldest changes are deleted in batches of a thousand."""
    data = tmp_path / "data.db"
    async with EmbeddedAPIServer(data=data, history_limit=50) as server, Client(server) as client:
        await client.create(MAPS, "a")
        (bucket,) = (each for each in server.store.buckets() if each.name == "configmaps")
        for _ in range(2500):
            (entry,) = bucket.current()
            server.store.put(bucket, entry.at_revision(server.store.revision + 1))
        revision = server.store.revision
    with sqlite3.connect(data) as file:
        (kept,) = file.execute("SELECT count(*) FROM changes").fetchone()
    file.close()
    assert 50 <= kept < 1200
    async with EmbeddedAPIServer(data=data) as server:
        assert server.store.revision == revision
        assert server.store.statistics().history == kept


async def test_a_file_in_use_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data.db"
    async with EmbeddedAPIServer(data=data):
        with pytest.raises(ConfigError, match="is in use by another process"):
            EmbeddedAPIServer(data=data)


def _request(url: str, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(  # noqa: S310 - the server of this test
        url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=50) as answer:  # noqa: S310 - as above
        return json.load(answer)


def _write_until_killed(url: str, process: "subprocess.Popen[str]", after: int) -> dict[str, str]:
    """Create objects, kill the server after some, and return the acknowledged ones."""
    acknowledged: dict[str, str] = {}
    for number in range(10_000):
        if number == after:
            process.send_signal(signal.SIGKILL)
        name = f"m{process.pid}-{number}"
        try:
            made = _request(url, "POST", MAPS, {"metadata": {"name": name}})
        except (OSError, http.client.HTTPException):  # cut off before or within its response
            break
        acknowledged[name] = made["metadata"]["resourceVersion"]
    process.wait(50)
    return acknowledged


def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """After each kill, the file has every acknowledged object, and versions keep growing."""
    data = tmp_path / "data.db"
    random.seed(5)
    known: dict[str, str] = {}
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(data)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process.stdout:
            url = process.stdout.readline().strip()
            found = _request(url, "GET", MAPS)
            present = {
                item["metadata"]["name"]: item["metadata"]["resourceVersion"]
                for item in found["items"]
            }
            assert known.items() <= present.items()
            newest = int(found["metadata"]["resourceVersion"])
            assert all(int(version) <= newest for version in known.values())
            made = _write_until_killed(url, process, random.randrange(5, 60))
            assert all(int(version) > newest for version in made.values())
            known = {**present, **made}
    assert len(known) > 25


def test_the_journal_is_closed_with_the_server(tmp_path: Path) -> None:
    async def run() -> None:
        async with EmbeddedAPIServer(data=tmp_path / "data.db"):
            pass

    asyncio.run(run())
    asyncio.run(run())


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
async def test_the_file_is_its_owners_alone_whatever_the_umask(
    umask: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data.db"
    before = os.umask(umask)
    try:
        async with EmbeddedAPIServer(data=data) as server, Client(server) as client:
            await client.create(f"{CORE}/secrets", "a", stringData={"k": "v"})
            modes = [_mode(data), _mode(tmp_path / "data.db-wal")]
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600]
    assert not caplog.records


def test_a_file_that_others_can_read_is_tightened_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data.db"
    EmbeddedAPIServer(data=data).close()
    data.chmod(0o644)
    EmbeddedAPIServer(data=data).close()
    assert _mode(data) == 0o600
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{data} had mode 0644" in caplog.text


def test_a_file_that_is_refused_keeps_its_mode(tmp_path: Path) -> None:
    data = tmp_path / "data.db"
    data.write_text("something else, and long enough")
    data.chmod(0o644)
    with pytest.raises(ConfigError, match="it is no database"):
        EmbeddedAPIServer(data=data)
    assert _mode(data) == 0o644


def _fill_the_disk(server: EmbeddedAPIServer, *, full: bool) -> None:
    # SQLite's page limit fails like a full disk. The connection is private.
    journal = server.store.journal
    assert isinstance(journal, SQLiteJournal)
    journal._db.execute(f"PRAGMA max_page_count={1 if full else 1_000_000}")


async def test_a_full_disk_refuses_writes_and_says_so(tmp_path: Path) -> None:
    data = tmp_path / "data.db"
    async with EmbeddedAPIServer(data=data) as server, Client(server) as client:
        await client.create(MAPS, "a", data={"k": "1"})
        revision = server.store.revision
        async with client.watch(MAPS, f"resourceVersion={revision}") as watch:
            _fill_the_disk(server, full=True)
            body = {"metadata": {"name": "b"}, "data": {"k": "x" * 10_000}}
            refused = await client.call("POST", MAPS, body, expect=500)
            assert refused["reason"] == "InternalError"
            assert refused["message"] == (
                f"Internal error occurred: the change was not stored: {data}: "
                "database or disk is full"
            )
            assert server.store.revision == revision
            assert names(await client.call("GET", MAPS)) == ["a"]
            _fill_the_disk(server, full=False)
            await client.create(MAPS, "b", data={"k": "2"})
            assert [event["object"]["data"] for event in await events(watch, 1)] == [{"k": "2"}]
    async with EmbeddedAPIServer(data=data) as server, Client(server) as client:
        assert names(await client.call("GET", MAPS)) == ["a", "b"]


class _FullForMaps:
    """A journal without room for ConfigMaps."""

    full = True

    def record(self, bucket: str, change: StoredChange, key: str) -> None:
        """Fail for ConfigMaps."""
        if self.full and bucket == "configmaps":
            raise NotStoredError(f"no room for the {change.type.value} {key}")

    def record_compaction(self, revision: int) -> None:
        """Do nothing."""


async def test_what_a_controller_could_not_store_it_tries_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    async with EmbeddedAPIServer(clock=clock) as server, Client(server) as client:
        await client.create("/api/v1/namespaces", "going")
        await client.create("/api/v1/namespaces/going/configmaps", "a")
        server.store.journal = journal = _FullForMaps()
        await client.call("DELETE", "/api/v1/namespaces/going", expect=200)
        await clock.advance(1)
        assert caplog.text.count("tried again in 10 s: no room for the DELETED going/a") == 1
        await client.call("GET", "/api/v1/namespaces/going/configmaps/a", expect=200)
        journal.full = False
        await clock.advance(10)
        await client.call("GET", "/api/v1/namespaces/going", expect=404)
