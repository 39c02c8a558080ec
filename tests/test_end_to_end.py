"""The real server, the real client and observe, as separate processes over loopback."""

import asyncio
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from kubeconfigs import write_bearer
from listwatch.client.client import Client
from listwatch.client.kubeconfig import load_config
from listwatch.testing.story import Chapter, ChapterType, Gap, compare
from listwatch.testing.workload import Action, ActionType, PodWorkload
from processes import LISTWATCH, api_server, listwatch, running

HEADER = re.compile(
    r"# \S+ (?P<type>\w+) (?P<version>\d+)\t(?:\S+ )?(?P<key>\S+ \S+)"
    r' "(?P<uid>\S+) (?P<deleting>\S*)"'
)
TEMPLATE = "{.metadata.uid} {.metadata.deletionTimestamp}"


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with api_server(tmp_path_factory.mktemp("server")) as path:
        yield path


def _told(lines: list[str]) -> list[Chapter]:
    found = (HEADER.fullmatch(line) for line in lines)
    return [
        Chapter(
            ChapterType(header["type"]),
            header["key"].replace(" ", "/"),
            header["uid"],
            int(header["version"]),
            deleting=bool(header["deleting"]),
        )
        for header in found
        if header is not None
    ]


async def _carry_out(client: Client, action: Action) -> Chapter:
    meta = action.body["metadata"]
    if action.type is ActionType.DELETE:
        name, namespace = meta["name"], meta["namespace"]
        obj = await client.delete("pods", name, namespace, grace_period_seconds=0)
        assert obj is not None
        return Chapter(ChapterType.DELETED, obj.key, obj.uid, int(obj.resource_version))
    if action.type is ActionType.CREATE:
        obj = await client.create(action.body)
        return Chapter(ChapterType.ADDED, obj.key, obj.uid, int(obj.resource_version))
    obj = await client.update(action.body)
    return Chapter(ChapterType.UPDATED, obj.key, obj.uid, int(obj.resource_version))


async def _carry_out_all(client: Client, actions: Iterable[Action]) -> list[Chapter]:
    return [await _carry_out(client, action) for action in actions]


async def test_the_printed_story_is_what_was_done(kubeconfig: Path) -> None:
    workload = PodWorkload(40, seed=7)
    async with Client.from_config(load_config(kubeconfig)) as client:
        for name in workload.generator.namespaces:
            body = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}
            await client.create(body)
        done = await _carry_out_all(client, [*workload.populate(), *workload.changes(60)])
        listed = done[-1].version
        with running(
            "observe", "pods", "-A", "--listen-addr=", "--template", TEMPLATE, "--", "true",
            KUBECONFIG=str(kubeconfig),
        ) as observe:  # fmt: skip
            observe.until(lambda: any(line.endswith("Sync ended") for line in observe.out))
            done += await _carry_out_all(client, workload.changes(300))
            gaps = [Gap(0, listed)]
            await asyncio.to_thread(
                observe.until,
                lambda: not compare(done, _told(observe.out), gaps, marked=True).mistakes,
            )
            assert observe.stop() == 0
        result = compare(done, _told(observe.out), gaps, marked=True)
        assert result.mistakes == []
        assert result.done == 400
        # The list skipped earlier states; the watch delivered everything later.
        assert result.told >= 300
        everything = await client.list("pods")
    alive = {key for key in {c.key for c in done} if _last(done, key) is not ChapterType.DELETED}
    assert {obj.key for obj in everything.items} == alive
    assert observe.err == []


def _last(done: list[Chapter], key: str) -> ChapterType:
    return next(change.type for change in reversed(done) if change.key == key)


def test_an_unknown_resource_is_named(kubeconfig: Path) -> None:
    done = listwatch("observe", "podz", KUBECONFIG=str(kubeconfig))
    assert done.returncode == 7
    assert done.stderr == "error: the server has no resource 'podz'\n"
    assert done.stdout == ""


def test_a_refused_token_is_one_line(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text('right-token,alice,1,"system:masters"\n')
    with api_server(tmp_path, "--tls", "--token-auth-file", str(tokens)) as path:
        right = write_bearer(tmp_path / "right", path.read_text(), "right-token")
        assert listwatch("observe", "pods", "--once", KUBECONFIG=str(right)).returncode == 0
        wrong = write_bearer(tmp_path / "wrong", path.read_text(), "wrong-token")
        done = listwatch("observe", "pods", KUBECONFIG=str(wrong))
    assert done.returncode == 5
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "wrong-token" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(kubeconfig: Path, number: signal.Signals) -> None:
    with running("observe", "namespaces", KUBECONFIG=str(kubeconfig)) as observe:
        observe.until(lambda: any(line.endswith("Sync ended") for line in observe.out))
        assert observe.stop(number) == 0
    (line,) = observe.err
    assert line.startswith("metrics and health on http://127.0.0.1:")


def test_nobody_reading_ends_it_quietly(kubeconfig: Path) -> None:
    command = " ".join([*LISTWATCH, "observe namespaces --exit-after 20s"])
    done = subprocess.run(
        ["bash", "-c", f"{command} | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        env={"PATH": "/usr/bin:/bin", "KUBECONFIG": str(kubeconfig)},
    )
    assert done.stdout == "141\n"
    assert "Traceback" not in done.stderr


def test_several_resources_are_observed_at_once_and_one_object_by_its_name(
    kubeconfig: Path,
) -> None:
    both = listwatch(
        "observe", "namespaces,serviceaccounts", "-A", "--once", KUBECONFIG=str(kubeconfig)
    )
    assert both.returncode == 0
    assert both.stdout.count("Sync ended") == 2
    one = listwatch("observe", "ns", "default", "kube-public", "--once", KUBECONFIG=str(kubeconfig))
    told = [line.partition("\t")[2] for line in one.stdout.splitlines() if "\t" in line]
    assert told == ["default", "kube-public"]
    single = listwatch("observe", "ns", "default", "--once", KUBECONFIG=str(kubeconfig))
    assert single.stdout.count("\t") == 1
