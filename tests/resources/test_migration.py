"""Objects stored in old versions are rewritten in the storage version, and old versions pruned."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from listwatch.client import Client
from listwatch.clock import Clock
from listwatch.errors import InvalidError, UnknownResourceError
from listwatch.objects import Object
from listwatch.resources.migrate_command import migrate_command
from listwatch.resources.migration import ANNOTATION, Migration, MigrationError, Progress
from listwatch.testing import APIServer, eventually

CRDS = "crds"
NAME = "sites.example.com"


def crd(stored: str, limit: int = 100) -> dict[str, Any]:
    """Return a definition of two versions; rules at the root hold for unchanged objects too."""
    rule = {"rule": f"self.spec.size < {limit}", "message": "too big"}
    size = {"type": "object", "properties": {"size": {"type": "integer"}}}
    schema = {
        "type": "object",
        "properties": {"spec": size},
        "x-kubernetes-validations": [rule],
    }
    names = {"kind": "Site", "listKind": "SiteList", "plural": "sites", "singular": "site"}
    versions = [
        {
            "name": version,
            "served": True,
            "storage": version == stored,
            "schema": {"openAPIV3Schema": schema},
        }
        for version in ("v1alpha1", "v1")
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": names,
            "versions": versions,
        },
    }


@pytest.fixture
async def server() -> AsyncIterator[APIServer]:
    async with APIServer() as running:
        yield running


@pytest.fixture
async def client(server: APIServer) -> AsyncIterator[Client]:
    async with server.client() as made:
        yield made


async def stored_before(client: Client, count: int = 5, limit: int = 100) -> None:
    """Store objects in v1alpha1, and make v1 the storage version."""
    await client.create(crd("v1alpha1"))
    await client.wait_for(CRDS, NAME, "Established", seconds=20)
    for name in ("ns-0", "ns-1"):
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for number in range(count):
        await client.create(
            {
                "apiVersion": "example.com/v1alpha1",
                "kind": "Site",
                "metadata": {"name": f"s{number}", "namespace": f"ns-{number % 2}"},
                "spec": {"size": number},
            }
        )
    spec = crd("v1", limit)["spec"]
    await client.update_existing(CRDS, NAME, lambda value: value.update(spec=spec))


def versions(server: APIServer) -> list[str]:
    """Return the versions in which the objects are stored."""
    bucket = server.embedded.store.bucket("example.com/sites")
    decode = server.embedded.registry.decode
    return [decode(entry)["apiVersion"].partition("/")[2] for entry in bucket.entries.values()]


async def stored_versions(client: Client) -> list[str]:
    value = (await client.get(CRDS, NAME)).to_dict()
    found: list[str] = value["status"]["storedVersions"]
    return found


async def test_all_objects_are_rewritten_and_the_old_version_is_pruned(
    server: APIServer, client: Client
) -> None:
    await stored_before(client)
    assert versions(server) == ["v1alpha1"] * 5
    told: list[Progress] = []
    migration = Migration(client, "sites", rate=1e6, page_size=2, on_progress=told.append)
    outcome = await migration.run()
    assert (outcome.version, outcome.rewritten, outcome.pruned) == ("v1", 5, ("v1alpha1",))
    assert versions(server) == ["v1"] * 5
    assert await stored_versions(client) == ["v1"]
    assert [(one.rewritten, one.remaining) for one in told] == [(2, 3), (4, 1), (5, None)]
    assert ANNOTATION not in ((await client.get(CRDS, NAME))["metadata"].get("annotations") or {})
    again = await Migration(client, "sites").run()
    assert (again.rewritten, again.pruned) == (0, ())


async def test_a_dry_run_changes_nothing(server: APIServer, client: Client) -> None:
    await stored_before(client)
    before = (await client.list("sites")).items, await client.get(CRDS, NAME)
    outcome = await Migration(client, "sites", rate=1e6, dry_run=True).run()
    assert (outcome.rewritten, outcome.pruned) == (5, ("v1alpha1",))
    after = (await client.list("sites")).items, await client.get(CRDS, NAME)
    assert [one.json() for one in after[0]] == [one.json() for one in before[0]]
    assert after[1].json() == before[1].json()
    assert versions(server) == ["v1alpha1"] * 5


async def test_what_fails_is_named_and_nothing_is_pruned_before_it_is_mended(
    server: APIServer, client: Client
) -> None:
    await stored_before(client, limit=4)
    failures: list[tuple[str, str]] = []

    def note(obj: Object, error: Exception) -> None:
        assert isinstance(error, InvalidError)
        failures.append((obj.key, str(error)))

    outcome = await Migration(client, "sites", rate=1e6, on_failure=note).run()
    assert (outcome.rewritten, outcome.failed, outcome.pruned) == (4, 1, ())
    assert [key for key, _ in failures] == ["ns-0/s4"]
    assert "too big" in failures[0][1]
    assert await stored_versions(client) == ["v1alpha1", "v1"]
    await client.patch("sites", "s4", {"spec": {"size": 0}}, "ns-0")
    outcome = await Migration(client, "sites", rate=1e6).run()
    assert outcome.pruned == ("v1alpha1",)
    assert versions(server) == ["v1"] * 5


class Counting(Client):
    """Counts patches of objects, and does something before some of them."""

    patched: list[str]
    before: Any = None

    async def patch(self, resource: Any, name: str, *args: Any, **options: Any) -> Object:
        if name != NAME:
            self.patched.append(name)
            if self.before is not None:
                await self.before(name)
        return await super().patch(resource, name, *args, **options)


@pytest.fixture
async def counting(server: APIServer) -> AsyncIterator[Counting]:
    async with Counting(server.config) as made:
        made.patched = []
        yield made


async def test_an_interrupted_migration_continues_after_the_last_page(
    server: APIServer, client: Client, counting: Counting
) -> None:
    await stored_before(client, count=6)

    async def interrupt(name: str) -> None:
        if name == "s3":
            raise KeyError(name)

    counting.before = interrupt
    with pytest.raises(KeyError):
        await Migration(counting, "sites", rate=1e6, page_size=2).run()
    assert counting.patched == ["s0", "s2", "s4", "s1", "s3"]
    assert await stored_versions(client) == ["v1alpha1", "v1"]
    counting.patched, counting.before = [], None
    outcome = await Migration(counting, "sites", rate=1e6, page_size=2).run()
    assert counting.patched == ["s3", "s5"]
    assert (outcome.rewritten, outcome.pruned) == (6, ("v1alpha1",))
    assert versions(server) == ["v1"] * 6


async def test_a_list_that_expires_goes_on_after_the_last_object(
    server: APIServer, client: Client, counting: Counting
) -> None:
    await stored_before(client, count=6, limit=5)
    failures: list[str] = []

    async def compact(name: str) -> None:
        if name in {"s4", "s3"}:
            server.compact()

    counting.before = compact
    migration = Migration(
        counting,
        "sites",
        rate=1e6,
        page_size=2,
        on_failure=lambda obj, _: failures.append(obj.name),
    )
    outcome = await migration.run()
    assert counting.patched == ["s0", "s2", "s4", "s1", "s3", "s5"]
    assert (outcome.rewritten, outcome.failed, failures) == (5, 1, ["s5"])


async def test_progress_of_another_state_of_the_definition_does_not_count(
    client: Client, counting: Counting
) -> None:
    await stored_before(client, count=3)
    kept = '{"generation":1,"after":"ns-1/s1","rewritten":9}'
    await client.patch(CRDS, NAME, {"metadata": {"annotations": {ANNOTATION: kept}}})
    outcome = await Migration(counting, "sites", rate=1e6).run()
    assert outcome.rewritten == 3
    assert len(counting.patched) == 3


async def test_objects_changed_or_deleted_meanwhile_need_no_rewrite(
    server: APIServer, client: Client, counting: Counting
) -> None:
    await stored_before(client, count=3)

    async def meddle(_name: str) -> None:
        counting.before = None
        await client.patch("sites", "s0", {"spec": {"size": 50}}, "ns-0")
        await client.delete("sites", "s2", "ns-0")

    counting.before = meddle
    outcome = await Migration(counting, "sites", rate=1e6).run()
    assert outcome.pruned == ("v1alpha1",)
    assert versions(server) == ["v1"] * 2


async def test_a_definition_that_changes_meanwhile_is_not_pruned(
    client: Client, counting: Counting
) -> None:
    await stored_before(client, count=2)

    async def switch(_name: str) -> None:
        counting.before = None
        spec = crd("v1alpha1")["spec"]
        await client.update_existing(CRDS, NAME, lambda value: value.update(spec=spec))

    counting.before = switch
    with pytest.raises(MigrationError, match=r"sites.example.com has changed since"):
        await Migration(counting, "sites", rate=1e6).run()
    assert await stored_versions(client) == ["v1alpha1", "v1"]


async def test_it_stops_when_every_object_fails(client: Client) -> None:
    await stored_before(client, count=12, limit=-1)
    with pytest.raises(MigrationError, match=r"10 objects in a row could not .* too big"):
        await Migration(client, "sites", rate=1e6).run()


class Noting(Clock):
    """Notes sleeps instead of sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_the_rate_is_kept(server: APIServer, client: Client) -> None:
    await stored_before(client, count=3)
    clock = Noting()
    async with Client(server.config, clock=clock) as slow:
        await Migration(slow, "sites", rate=1e-6).run()
    # The client's own sleeps are short.
    assert [round(seconds / 1e6) for seconds in clock.slept if seconds > 1e5] == [1, 2]
    with pytest.raises(ValueError, match="rate must be above 0"):
        Migration(client, "sites", rate=0)


async def test_what_cannot_be_migrated_says_so(client: Client) -> None:
    with pytest.raises(MigrationError, match="pods has no CustomResourceDefinition"):
        await Migration(client, "pods").run()
    with pytest.raises(UnknownResourceError, match="no resource 'nothing'"):
        await Migration(client, "nothing").run()


@pytest.fixture
def kubeconfig(server: APIServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig())
    return path


async def run(path: Path, *arguments: str) -> tuple[int, str, str]:
    invoke = CliRunner().invoke
    words = ["--kubeconfig", str(path), *arguments]
    done = await asyncio.to_thread(invoke, migrate_command, words)
    return done.exit_code, done.stdout, done.stderr


async def test_the_command_tells_what_it_does_and_what_fails(
    client: Client, kubeconfig: Path
) -> None:
    await stored_before(client, limit=4)
    code, out, err = await run(kubeconfig, "sites", "--dry-run")
    assert (code, out) == (
        1,
        "4 objects rewritten in v1, 1 failed; no version was pruned\n",
    )
    assert err.splitlines()[0].startswith("Site ns-0/s4: ")
    assert err.splitlines()[1] == "sites: 4 rewritten, 1 failed"
    await client.patch("sites", "s4", {"spec": {"size": 0}}, "ns-0")
    code, out, err = await run(kubeconfig, "sites", "--dry-run")
    assert (code, out) == (
        0,
        "dry run: 5 objects would be rewritten in v1, and v1alpha1 pruned\n",
    )
    code, out, err = await run(kubeconfig, "sites.example.com", "--rate", "1000")
    assert (code, out) == (0, "5 objects rewritten in v1; v1alpha1 pruned\n")
    assert err == "sites.example.com: 5 rewritten\n"
    code, out, err = await run(kubeconfig, "sites")
    assert (code, out, err) == (0, "nothing to do: all objects are stored in v1\n", "")
    code, out, err = await run(kubeconfig, "nothing")
    assert (code, out, err) == (7, "", "error: the server has no resource 'nothing'\n")


@pytest.mark.proof
async def test_a_killed_command_continues_and_completes(
    server: APIServer, client: Client, kubeconfig: Path
) -> None:
    await stored_before(client, count=40)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "listwatch", "migrate", "sites", "--rate", "30"),
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
    )
    try:
        await eventually(lambda: versions(server).count("v1") >= 10)
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    assert versions(server).count("v1") < 40
    assert await stored_versions(client) == ["v1alpha1", "v1"]
    code, out, _ = await run(kubeconfig, "sites", "--rate", "1000")
    assert (code, out) == (0, "40 objects rewritten in v1; v1alpha1 pruned\n")
    assert versions(server) == ["v1"] * 40
