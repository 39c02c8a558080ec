import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.clock import FakeClock
from listwatch.errors import ConfigError
from listwatch.runtime.body_scope import ManagerError
from listwatch.runtime.health import Check
from listwatch.runtime.leading import LeadershipLostError
from listwatch.runtime.manager import Manager
from listwatch.runtime.reconciler import NotStartedError
from listwatch.testing.ports import free_port
from listwatch.testing.waiting import eventually
from metric_samples import samples_of


def config_map(name: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", **more}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


class Log:
    """An ordered log of events that tests can wait on."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = asyncio.Event()

    def add(self, line: str) -> None:
        self.lines.append(line)
        self._news.set()

    async def until(self, line: str) -> None:
        async with asyncio.timeout(45):
            while line not in self.lines:
                self._news.clear()
                await self._news.wait()


def make(server: EmbeddedAPIServer, log: Log, **options: Any) -> Manager:
    app = Manager("test", config=Config(server=server.url), **options)
    maps = app.reconciler("maps").for_("configmaps", namespace="default")

    @maps
    async def reconcile(key: str) -> None:
        log.add(key if maps.get(key) else f"gone {key}")

    return app


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_a_program_reconciles_inside_its_async_with(
    server: EmbeddedAPIServer, client: Client
) -> None:
    log = Log()
    await client.create(config_map("a"))
    async with make(server, log) as app:
        await log.until("default/a")
        await client.create(config_map("b"))
        await log.until("default/b")
        await client.delete("configmaps", "b", "default")
        await log.until("gone default/b")
        assert app.is_leader
    assert not app.is_leader


async def test_parts_start_in_order_and_stop_in_the_reverse(
    server: EmbeddedAPIServer, client: Client
) -> None:
    log = Log()
    app = make(server, log, leader_election="lock")

    def part(name: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            log.add(f"{name} began")
            try:
                await asyncio.Event().wait()
            finally:
                log.add(f"{name} ended")

        return run

    app.task(part("everywhere"), name="everywhere", leader_only=False)
    app.task(part("leader"), name="leader")
    await client.create(config_map("a"))
    async with app:
        await log.until("default/a")
    assert log.lines == [
        "everywhere began",
        "leader began",
        "default/a",
        "leader ended",
        "everywhere ended",
    ]
    lease = await client.get("leases", "lock", "default")
    assert "holderIdentity" not in lease["spec"]
    events = (await client.list("events.events.k8s.io", "default")).items
    assert {event["reason"] for event in events} == {"LeaderElection"}


async def test_running_reconciles_get_their_grace_and_no_more(
    server: EmbeddedAPIServer, client: Client
) -> None:
    log, clock = Log(), FakeClock()
    config = Config(server=server.url)
    app = Manager("test", config=config, grace=0.2, health_port=None, clock=clock)
    maps = app.reconciler("maps", concurrency=2).for_("configmaps", namespace="default")
    release = asyncio.Event()

    @maps
    async def reconcile(key: str) -> None:
        log.add(f"{key} began")
        try:
            await (release.wait() if key == "default/quick" else asyncio.Event().wait())
            log.add(f"{key} done")
        except asyncio.CancelledError:
            log.add(f"{key} cancelled")
            raise

    async def end_the_grace() -> None:
        await eventually(lambda: maps._work.is_stopping)
        release.set()
        await log.until("default/quick done")
        await clock.advance(0.2)

    async with asyncio.TaskGroup() as group, app:
        await client.create(config_map("quick"))
        await client.create(config_map("stuck"))
        await log.until("default/quick began")
        await log.until("default/stuck began")
        group.create_task(end_the_grace())
    assert log.lines[2:] == ["default/quick done", "default/stuck cancelled"]


async def test_a_part_that_fails_stops_the_rest_and_is_named(server: EmbeddedAPIServer) -> None:
    log = Log()
    app = make(server, log)

    async def broken() -> None:
        raise ConfigError("no bucket")

    app.task(broken)
    with pytest.raises(ManagerError, match="broken failed: no bucket") as caught:
        await app.serve()
    assert isinstance(caught.value.__cause__, ConfigError)


async def test_a_failure_ends_the_body_of_the_async_with(server: EmbeddedAPIServer) -> None:
    fail = asyncio.Event()
    app = make(server, Log())

    @app.task
    async def breaks_later() -> None:
        await fail.wait()
        raise ConfigError("disk full")

    async def body() -> None:
        async with app:
            fail.set()
            await asyncio.Event().wait()

    with pytest.raises(ManagerError, match="breaks_later failed: disk full"):
        await body()


async def test_a_stop_ends_the_body_of_the_async_with_quietly(server: EmbeddedAPIServer) -> None:
    app = make(server, Log())
    after = False

    async def body() -> None:
        nonlocal after
        async with app:
            asyncio.get_running_loop().call_soon(app.stop)
            await asyncio.Event().wait()
        await asyncio.sleep(0)  # nothing is cancelled any more
        after = True

    await body()
    assert after


async def test_what_the_body_raises_comes_out(server: EmbeddedAPIServer) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with make(server, Log()):
            raise KeyError("mine")


async def test_a_task_that_ends_by_itself_stops_nothing(
    server: EmbeddedAPIServer, client: Client
) -> None:
    log = Log()
    app = make(server, log)

    @app.task
    async def once() -> None:
        log.add("once")

    async with app:
        await log.until("once")
        await client.create(config_map("a"))
        await log.until("default/a")


async def test_an_unknown_resource_is_told_after_the_time_to_start(
    server: EmbeddedAPIServer,
) -> None:
    app = Manager("test", config=Config(server=server.url), start_timeout=0.1)
    widgets = app.reconciler("widgets").for_("widgets.example.com").owns("pods")

    @widgets
    async def reconcile(key: str) -> None:
        raise AssertionError(key)

    with pytest.raises(ManagerError, match="widgets"):
        await app.serve()


async def test_it_runs_once_and_needs_something_to_do(server: EmbeddedAPIServer) -> None:
    with pytest.raises(ValueError, match="no reconciler, task or webhook"):
        await Manager(config=Config(server=server.url)).serve()
    app = make(server, Log())
    async with app:
        pass
    with pytest.raises(RuntimeError, match="runs once"):
        await app.serve()
    with pytest.raises(RuntimeError, match="configure it before"):
        app.reconciler("late")


async def test_run_inside_an_event_loop_says_what_to_do(server: EmbeddedAPIServer) -> None:
    with pytest.raises(RuntimeError, match="use `async with app:`"):
        make(server, Log()).run()


async def test_names_of_reconcilers_are_unique(server: EmbeddedAPIServer) -> None:
    with pytest.raises(ValueError, match="a reconciler maps already"):
        make(server, Log()).reconciler("maps")


async def test_the_client_is_there_once_it_runs(server: EmbeddedAPIServer) -> None:
    with pytest.raises(NotStartedError, match="client is available while the manager runs"):
        _ = make(server, Log()).client


async def test_a_fenced_client_reads_but_does_not_write_without_leadership(
    server: EmbeddedAPIServer,
) -> None:
    app = make(server, Log(), leader_election="lock")
    wrote = asyncio.Event()

    @app.task
    async def lead() -> None:
        await app.client.create(config_map("mine"))
        wrote.set()

    async with app:
        await wrote.wait()
        assert app.is_leader
        assert app.guard is not None
        app.guard.end("for the test")
        await app.client.list("configmaps", "default")
        with pytest.raises(LeadershipLostError, match="for the test"):
            await app.client.create(config_map("other"))
        await app.unfenced_client.create(config_map("other"))


async def test_the_endpoints_tell_health_readiness_and_figures(
    server: EmbeddedAPIServer, client: Client
) -> None:
    log = Log()
    app = make(server, log, leader_election="lock")
    state = Check("disk", ok=True)
    app.ready_check(lambda: state)
    await client.create(config_map("a"))
    async with app:
        await log.until("default/a")
        assert await get(f"{app.health_url}/healthz") == (200, "ok\n")
        status, text = await get(f"{app.health_url}/readyz")
        assert (status, text) == (200, "[+] cache configmaps in default\n[+] disk\nready\n")
        state = Check("disk", ok=False, problem="full")
        status, text = await get(f"{app.health_url}/readyz")
        assert (status, text.splitlines()[1:]) == (503, ["[-] disk: full", "not ready"])

        families: dict[str, Any] = {}
        host = server.url.removeprefix("http://")

        async def figures() -> bool:
            # The watch begins and the reconcile ends after its function has begun.
            _, text = await get(f"{app.health_url}/metrics")
            families.update({f.name: f for f in text_string_to_metric_families(text)})
            values = samples_of(families.values())
            assert values["leader_election_master_status", "lock"] == 1
            assert values["controller_runtime_reconcile_total", "maps", "success"] >= 1
            assert values["workqueue_adds_total", "maps"] >= 1
            assert values["listwatch_cache_objects", "configmaps in default"] >= 1
            requests = "rest_client_requests_total"
            return values[requests, "200", host, "GET", "configmaps", "WATCH"] >= 1

        await eventually(figures, ignoring=KeyError)
    assert problems(families) == []


def problems(families: dict[str, Any]) -> list[str]:
    """Return the problems that `promtool check metrics` would report."""
    found = []
    for name, family in families.items():
        if not family.documentation:
            found.append(f"{name}: no help text")
        if name != name.lower() or ":" in name:
            found.append(f"{name}: not in snake case")
        if any(name.endswith(unit) for unit in ("_milliseconds", "_ms", "_minutes", "_kilobytes")):
            found.append(f"{name}: not a base unit")
        if family.type == "counter":
            found += [
                f"{sample.name}: a counter without _total"
                for sample in family.samples
                if not sample.name.endswith(("_total", "_created"))
            ]
        elif name.endswith("_total"):
            found.append(f"{name}: _total without a counter")
        if family.type != "histogram" and name.endswith(("_count", "_sum", "_bucket")):
            found.append(f"{name}: a histogram's suffix")
    return found


async def test_readiness_says_which_cache_has_not_synced_and_why() -> None:
    gone = EmbeddedAPIServer(port=free_port())
    app = make(gone, Log())
    serving = asyncio.ensure_future(app.serve())
    try:

        async def refusal() -> tuple[int, str]:
            status, text = await get(f"{app.health_url}/readyz")
            assert "refused" in text
            return status, text

        status, text = await eventually(refusal, ignoring=NotStartedError)
        assert status == 503
        assert text.startswith("[-] cache configmaps in default: not synced")
        assert (await get(f"{app.health_url}/healthz"))[0] == 200
    finally:
        app.stop()
        await serving


async def test_a_port_that_is_taken_is_a_clear_error(server: EmbeddedAPIServer) -> None:
    app = make(server, Log(), health_port=server.port)
    with pytest.raises(ManagerError, match=f"health and metrics on 127.0.0.1:{server.port}"):
        await app.serve()


async def test_a_script_stops_in_order_on_sigterm(
    server: EmbeddedAPIServer, client: Client
) -> None:
    script = textwrap.dedent("""
        import os, sys
        from listwatch.client.config import Config
        from listwatch.runtime.manager import Manager

        app = Manager("script", config=Config(server=sys.argv[1]), leader_election="script")
        maps = app.reconciler("maps").for_("configmaps", namespace="default")

        @maps
        async def reconcile(key):
            print(key, flush=True)

        app.run()
        print("ended", flush=True)
    """)
    await client.create(config_map("a"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, server.url, stdout=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(50):
            assert process.stdout is not None
            assert b"default/" in await process.stdout.readline()
            os.kill(process.pid, signal.SIGTERM)
            rest = (await process.stdout.read()).splitlines()
            assert rest[-1] == b"ended"
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "holderIdentity" not in (await client.get("leases", "script", "default"))["spec"]


async def test_a_program_that_can_not_stop_its_work_is_killed_before_others_act(
    server: EmbeddedAPIServer, client: Client
) -> None:
    script = textwrap.dedent("""
        import sys, time
        from listwatch.client.config import Config
        from listwatch.runtime import LeaseTimings, Manager

        app = Manager(
            "script",
            config=Config(server=sys.argv[1]),
            leader_election="script",
            lease_timings=LeaseTimings(lease_duration=2, renew_deadline=1.4, retry_period=0.3),
        )

        @app.task
        async def block():
            print("leads", flush=True)
            time.sleep(60)

        app.run()
    """)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, server.url, stdout=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(50):
            assert process.stdout is not None
            assert await process.stdout.readline() == b"leads\n"
            spec = {"holderIdentity": "another", "leaseDurationSeconds": 2}
            await client.patch("leases", "script", {"spec": spec}, "default")
            assert await process.wait() == 70
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_replicas_share_keys_instead_of_electing(
    server: EmbeddedAPIServer, client: Client
) -> None:
    logs = [Log(), Log()]
    apps = [make(server, log, sharing="shared", health_port=None) for log in logs]
    async with apps[0], apps[1]:
        await eventually(lambda: all(len(app.members) == 2 for app in apps))
        names = [f"map-{number}" for number in range(20)]
        for name in names:
            await client.create(config_map(name))
        await eventually(lambda: len({line for log in logs for line in log.lines}) == len(names))
    assert all(log.lines for log in logs)
    assert not set(logs[0].lines) & set(logs[1].lines)
    with pytest.raises(ValueError, match="leader_election= or sharing=, not both"):
        Manager(leader_election="a", sharing="b")
