"""A manager's start and end, whatever its parts do."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator

import pytest

from client.raw_server import SOON
from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.config import Config
from listwatch.clock import FakeClock
from listwatch.runtime.body_scope import ManagerError
from listwatch.runtime.manager import Manager
from listwatch.testing.waiting import eventually


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """The URL of a server that accepts connections and never answers."""
    over = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()


@pytest.mark.parametrize("owns", [True, False], ids=["looked up first", "cache only"])
async def test_a_stop_ends_a_start_that_a_silent_server_holds_up(
    silent: str, *, owns: bool
) -> None:
    app = Manager("test", config=Config(server=silent), health_port=None)
    maps = app.reconciler("maps").for_("configmaps")
    if owns:
        maps.owns("secrets")
    maps(lambda _: None)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(app.serve())
        asyncio.get_running_loop().call_later(0.2, app.stop)
        async with asyncio.timeout(SOON):
            await asyncio.wait({serving})


async def test_a_stop_ends_the_wait_for_a_resource(
    server: EmbeddedAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    app = Manager("test", config=Config(server=server.url), health_port=None, clock=clock)
    app.reconciler("gadgets").for_("gadgets.example.com").owns("secrets")(lambda _: None)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(app.serve())
        await eventually(lambda: "can't start" in caplog.text)
        app.stop()
        # The clock stands: only the stop ends the wait.
        await asyncio.wait({serving})


async def test_a_task_that_ends_by_a_cancellation_of_something_else_is_a_failure(
    server: EmbeddedAPIServer,
) -> None:
    app = Manager("test", config=Config(server=server.url), health_port=None)

    @app.task
    async def wait_for_what_is_cancelled() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    with pytest.raises(ManagerError, match="wait_for_what_is_cancelled failed: an awaited task"):
        await app.serve()


async def test_what_is_no_exception_but_an_end_is_a_failure_too(server: EmbeddedAPIServer) -> None:
    app = Manager("test", config=Config(server=server.url), health_port=None)

    @app.task
    async def leave() -> None:
        raise GeneratorExit

    with pytest.raises(ManagerError, match="leave failed: GeneratorExit"):
        await app.serve()


async def test_what_fails_in_the_stop_is_told_and_the_rest_stops(server: EmbeddedAPIServer) -> None:
    app = Manager("test", config=Config(server=server.url), health_port=None)
    begun = [asyncio.Event(), asyncio.Event()]
    ended = []

    @app.task
    async def first() -> None:
        begun[0].set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("first")

    @app.task
    async def second() -> None:
        begun[1].set()
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("the disk is full")

    async def run() -> None:
        async with app:
            for event in begun:
                await event.wait()

    with pytest.raises(ManagerError, match="second failed: the disk is full"):
        await run()
    assert ended == ["first"]


async def test_a_part_that_does_not_end_is_named_and_waited_for(
    server: EmbeddedAPIServer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    config = Config(server=server.url)
    app = Manager("test", config=config, health_port=None, grace=0.05, clock=clock)
    begun, cancelled, release = (asyncio.Event() for _ in range(3))

    @app.task
    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await release.wait()

    async def outlast_the_grace() -> None:
        await cancelled.wait()
        await clock.advance(0.05)
        release.set()

    async with asyncio.TaskGroup() as group, app:
        await begun.wait()
        group.create_task(outlast_the_grace())
    assert "stubborn still runs 0.05 s after it was cancelled, so everything waits" in caplog.text


async def test_a_program_ends_although_a_part_of_it_does_not(server: EmbeddedAPIServer) -> None:
    script = textwrap.dedent("""
        import asyncio, sys
        from listwatch.client.config import Config
        from listwatch.runtime import Manager

        app = Manager("script", config=Config(server=sys.argv[1]), health_port=None, grace=0.3)

        @app.task
        async def stubborn():
            print("begun", flush=True)
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass

        app.run()
    """)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, server.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(50):
            assert process.stdout is not None
            assert process.stderr is not None
            assert await process.stdout.readline() == b"begun\n"
            process.terminate()
            assert await process.wait() == 70
            assert (
                b"stubborn still runs 0.3 s after it was cancelled" in await process.stderr.read()
            )
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_second_signal_stops_at_once(server: EmbeddedAPIServer) -> None:
    script = textwrap.dedent("""
        import asyncio, logging, sys
        from listwatch.client.config import Config
        from listwatch.runtime import Manager

        logging.basicConfig(level=logging.INFO)
        app = Manager("script", config=Config(server=sys.argv[1]), health_port=None, grace=60)
        maps = app.reconciler("maps").for_("configmaps").every(0.05, lambda: ["ns/a"])

        @maps
        async def reconcile(key):
            print("begun", flush=True)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                print("cancelled", flush=True)
                raise

        app.run()
    """)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, server.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(50):
            assert process.stdout is not None
            assert process.stderr is not None
            assert await process.stdout.readline() == b"begun\n"
            process.terminate()
            # Two signals at once are one.
            while b"SIGTERM: stopping" not in await process.stderr.readline():
                assert not process.stderr.at_eof()
            process.terminate()
            assert await process.stdout.readline() == b"cancelled\n"
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
