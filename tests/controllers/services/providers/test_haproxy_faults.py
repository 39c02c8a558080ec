"""The HAProxy provider with a faulty HAProxy, predecessor or service."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from controllers.published import Slices
from controllers.services.providers.test_haproxy import haproxy_of, one_service, running
from listwatch.controllers.services.providers import haproxy_supervisor
from listwatch.controllers.services.providers.haproxy_process import HAProxyError
from listwatch.testing.load_balancer_conformance import (
    ask,
    converse,
    make_service,
    named_server,
)
from listwatch.testing.ports import free_port
from listwatch.testing.waiting import eventually

pytestmark = [pytest.mark.needs("haproxy"), pytest.mark.proof]


async def test_source_ranges_may_be_more_than_fit_one_line() -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        ranges = [*(f"10.{number}.0.0/16" for number in range(150)), "127.0.0.0/8"]
        ports = [{"port": free_port(), "name": ""}]
        service = make_service(ports=ports, loadBalancerSourceRanges=ranges)
        await slices.publish(service, {"": [one]})
        status = await provider.ensure("c", service, ())

        async def answers() -> bool:
            return await ask((status.ingress[0].ip, service.spec.ports[0].port)) == "one hello"

        await eventually(answers, "who is in the last range")


async def test_hundreds_of_backends_change_at_once() -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        _, address = await one_service(provider, slices, one)
        many = {
            "metadata": {
                "name": "many",
                "namespace": "conformance",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [f"127.0.1.{number}"]} for number in range(1, 255)],
            "ports": [{"name": "", "port": 9}],
        }
        reloads = provider.statistics().reloads
        slices.source.add(many)

        async def are_there() -> bool:
            text = await haproxy_of(provider).ask("runtime.sock", ["show servers state"])
            return sum(" 127.0.1." in line for line in text.splitlines()) == 254

        await eventually(are_there, "all of them")
        slices.source.delete(many)

        async def answers() -> bool:
            return provider.statistics().runtime_changes > 0 and await ask(address) == "one hello"

        await eventually(answers, "the one that is left")
        assert provider.statistics().reloads == reloads


async def test_backends_that_could_not_be_told_come_with_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The runtime API fails once, after slots are assigned."""
    slices = Slices()
    async with (
        running(slices) as provider,
        named_server("one") as one,
        named_server("two") as two,
    ):
        service, address = await one_service(provider, slices, one)
        tell, failures = haproxy_of(provider).tell, 0

        async def fail_once(commands: Sequence[str]) -> None:
            nonlocal failures
            failures += 1
            if failures == 1:
                raise ConnectionRefusedError("not now")
            await tell(commands)

        monkeypatch.setattr(haproxy_of(provider), "tell", fail_once)
        await slices.publish(service, {"": [two]})

        async def moved() -> bool:
            return {await ask(address) for _ in range(4)} == {"two hello"}

        await eventually(moved, "the other backend")
        assert failures >= 1


async def test_an_older_uid_does_not_take_the_endpoints_of_its_successor_along() -> None:
    """Removing the first of two services of one name leaves the second its backends."""
    slices = Slices()
    async with (
        running(slices) as provider,
        named_server("one") as one,
        named_server("two") as two,
    ):
        old, _ = await one_service(provider, slices, one)
        ports = [{"port": free_port(), "name": ""}]
        new = make_service(old.object.name, uid="second", ports=ports)
        status = await provider.ensure("c", new, ())
        await provider.ensure_deleted("c", old)
        await slices.publish(new, {"": [two]})

        async def answers() -> bool:
            return await ask((status.ingress[0].ip, new.spec.ports[0].port)) == "two hello"

        await eventually(answers, "the second")


async def test_a_change_while_haproxy_is_started_again_waits_for_it() -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        await one_service(provider, slices, one)
        process = haproxy_of(provider).process
        assert process is not None
        process.kill()

        async def has_ended() -> bool:
            return provider.statistics().restarts == 1

        await eventually(has_ended, "the end of HAProxy")
        service = make_service("other", uid="other", ports=[{"port": free_port(), "name": ""}])
        await slices.publish(service, {"": [one]})
        status = await provider.ensure("c", service, ())

        async def answers() -> bool:
            return await ask((status.ingress[0].ip, service.spec.ports[0].port)) == "one hello"

        await eventually(answers, "the service that was made meanwhile")


async def test_a_change_is_refused_in_words_where_haproxy_does_not_start_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(haproxy_supervisor, "RELOAD_SECONDS", 1.5)
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        service, _ = await one_service(provider, slices, one)
        process = haproxy_of(provider).process
        assert process is not None
        monkeypatch.setattr(haproxy_of(provider), "binary", "/bin/false")
        process.kill()
        await process.wait()

        async def has_ended() -> bool:
            return provider.statistics().restarts > 0

        await eventually(has_ended, "the end of HAProxy")
        with pytest.raises(HAProxyError, match=r"^haproxy exited and did not start again"):
            await provider.ensure_deleted("c", service)


KILLED = """
import asyncio, os, signal
from listwatch.controllers.services.providers.haproxy import HAProxyProvider
async def main():
    async with HAProxyProvider(backends="node-ports") as provider:
        program = provider._haproxy.process
        print(program.directory, program.process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.fixture
def short_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory with a short path: a socket's path has at most 108 characters."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def test_files_of_a_killed_program_are_removed_by_the_next_and_nobody_elses(
    short_directory: Path,
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    left = Path(killed.stdout.split()[0])
    assert left.parent == short_directory
    assert left.exists()
    foreign = short_directory / "listwatch-haproxy-foreign"
    foreign.mkdir()

    async def main() -> set[Path]:
        async with running(Slices()) as first, running(Slices()) as second:
            assert {haproxy_of(first).directory, haproxy_of(second).directory} < set(
                _inside(short_directory)
            )
            return set(_inside(short_directory))

    assert left not in asyncio.run(main())
    assert _inside(short_directory) == [foreign]


def _inside(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_a_configuration_that_can_never_be_used_is_told_at_once_with_haproxys_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of the temporary directory is too long for sockets."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(HAProxyError, match=r"rejected its configuration: .*too long"):
        async with running(Slices()):
            pass
    assert _inside(deep) == []


async def test_a_process_that_ends_as_it_starts_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Waiting can't help, so the failure must come before the time-out."""
    broken = tmp_path / "broken"
    broken.write_text('#!/bin/sh\ncase "$*" in *-W*) exit 1 ;; esac\n')
    broken.chmod(0o700)
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        _, address = await one_service(provider, slices, one)
        program = haproxy_of(provider)
        working, program.binary = program.binary, str(broken)
        assert program.process is not None
        program.process.kill()

        async def has_failed() -> bool:
            return "haproxy does not start: haproxy exited" in caplog.text

        await eventually(has_failed, "the failure")
        program.binary = working

        async def is_back() -> bool:
            return await ask(address) == "one hello"

        await eventually(is_back, "a process that works")


async def test_a_reload_that_the_master_misses_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        ask_haproxy, missed = haproxy_of(provider).ask, 0

        async def miss_one(name: str, commands: Sequence[str]) -> str:
            nonlocal missed
            if name == "master.sock" and not missed:
                missed += 1
                raise ConnectionRefusedError("at its last reload")
            return await ask_haproxy(name, commands)

        monkeypatch.setattr(haproxy_of(provider), "ask", miss_one)
        _, address = await one_service(provider, slices, one)
        assert missed == 1
        assert await ask(address) == "one hello"


@pytest.mark.parametrize("answer", [errno.ECONNREFUSED, errno.ENOTCONN, errno.ECONNRESET, None])
async def test_a_master_that_reloads_is_asked_again(
    answer: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the connection, or drops it before the command or before the answer."""
    async with running(Slices()) as provider:
        process = haproxy_of(provider)
        ask_haproxy, missed = process.ask, 0

        async def miss_every_second(name: str, commands: Sequence[str]) -> str:
            nonlocal missed
            missed += 1
            if missed % 2 == 0:
                return await ask_haproxy(name, commands)
            if answer is None:
                return ""
            raise OSError(answer, os.strerror(answer))

        monkeypatch.setattr(process, "ask", miss_every_second)
        assert await process.old_workers() == []
        assert missed == 2


async def test_a_reload_is_over_when_no_old_worker_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then it could take commands and connections, and its ports are in use."""
    slices = Slices()
    async with running(slices) as provider, named_server("one") as one:
        service, address = await one_service(provider, slices, one)
        ask_haproxy, listening = haproxy_of(provider).ask, 2

        async def stop_late(name: str, commands: Sequence[str]) -> str:
            nonlocal listening
            answer = await ask_haproxy(name, commands)
            if commands[0].endswith(" show info") and listening:
                listening -= 1
                return answer.replace("Stopping: 1", "Stopping: 0")
            return answer

        # A connection that lasts keeps the old worker alive.
        reader, writer = await asyncio.open_connection(*address)
        assert await converse(reader, writer) == "one hello"
        monkeypatch.setattr(haproxy_of(provider), "ask", stop_late)
        await provider.ensure_deleted("c", service)
        assert listening == 0
        monkeypatch.undo()
        (old,) = await haproxy_of(provider).old_workers()
        info = await haproxy_of(provider).ask("master.sock", [f"@!{old} show info"])
        assert "Stopping: 1" in info.splitlines()
        writer.close()
