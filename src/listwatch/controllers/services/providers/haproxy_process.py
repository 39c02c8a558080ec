"""The HAProxy process: its configuration file, its reloads, and its runtime API."""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from listwatch.clock import Clock
from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.haproxy_config import PEER
from listwatch.controllers.services.providers.haproxy_master import Master, RunningLock, spawn

_logger = logging.getLogger(__name__)

#: Seconds within which a new configuration must take effect.
RELOAD_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
_RELOAD_AGAIN_SECONDS: Final = 1.5
# Seconds that workers get to end after their master.
_LEFTOVER_SECONDS: Final = 2.0
_COMMAND_BYTES: Final = 8000
_NO_SERVER: Final = "<none>"
# Responses of the runtime API to commands that succeeded.
_SUCCESSES: Final = (
    "no need to change",
    "IP changed",
    "port changed",
    "New server registered",
)


class HAProxyError(ProviderError):
    """HAProxy is missing, or does not work as it should."""


def find_program(name: str) -> str | None:
    """Return the path of a program, including directories only in root's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")


def require_program(name: str) -> str:
    """Return the path of a program, like `find_program`.

    Raises:
        HAProxyError: it is not installed.
    """
    found = find_program(name)
    if found is None:
        raise HAProxyError(f"{name} is not installed: on Debian, apt-get install haproxy")
    return found


class HAProxyProcess:
    """A master process and its workers, with their files in a directory.

    One call at a time, except `tell` and `ended`. The description in a configuration, printed by
    `show info`, is its generation.

    Args:
        binary: the program.
        directory: the directory of its configuration and sockets.
        clock: for every time-out.
        outlives: whether it continues when this program ends.
    """

    def __init__(
        self, binary: str, directory: Path, clock: Clock, *, outlives: bool = False
    ) -> None:
        self.binary = binary
        self.directory = directory
        self.outlives = outlives
        self._clock = clock
        self._lock = RunningLock(directory / "running")
        self.process: Master | None = None
        # Old workers that are known to listen no more.
        self._stopping: set[int] = set()

    @property
    def runtime_socket(self) -> str:
        """The path that the configuration must use for the runtime API."""
        return str(self.directory / "runtime.sock")

    @property
    def peers_socket(self) -> str:
        """The path that the configuration must use for its peers."""
        return str(self.directory / "peers.sock")

    @property
    def state_file(self) -> Path:
        """The path that the configuration must use for the server states."""
        return self.directory / "servers"

    @property
    def _configuration(self) -> Path:
        return self.directory / "haproxy.cfg"

    @property
    def saved_file(self) -> Path:
        """The path of the load balancers, for the next program that uses the directory."""
        return self.directory / "load-balancers.json"

    def write(self, configuration: str) -> None:
        """Write the configuration for the next start or reload, in one step."""
        _replace(self._configuration, configuration.encode())

    def save(self, balancers: bytes) -> None:
        """Write the load balancers of the configuration, in one step."""
        _replace(self.saved_file, balancers)

    def keep_states(self, states: str) -> None:
        """Write the server states for the next process, in one step."""
        _replace(self.state_file, states.encode())

    def written(self) -> str:
        """Return the configuration that was written last; empty if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self._configuration.read_text(errors="replace")
        return ""

    async def start(self, generation: int) -> None:
        """Start HAProxy with the written configuration, and wait until it is in effect.

        Raises:
            HAProxyError: it refuses the configuration, or does not apply it in time.
        """
        await self._check()
        arguments = [
            self.binary,
            "-W",
            "-db",
            "-L",
            PEER,
            "-S",
            str(self.directory / "master.sock"),
            "-f",
            str(self._configuration),
        ]
        setpriv = shutil.which("setpriv")
        if setpriv and not self.outlives:
            # HAProxy must not keep the addresses, however this program ends.
            arguments = [setpriv, "--pdeathsig", "TERM", *arguments]
        lock = await self._taken_lock()
        try:
            self._watch(spawn(arguments, os.environ, lock))
        finally:
            os.close(lock)
        await self._wait_for(generation)

    async def adopt(self) -> bool:
        """Take over the HAProxy that runs in the directory; return False if there is none.

        If one runs but does not answer, it is killed.
        """
        try:
            async with self._clock.timeout(RELOAD_SECONDS):
                while self._lock.is_held:
                    # The master does not answer for a moment at each reload.
                    with contextlib.suppress(OSError):
                        pid = _master_in(await self.ask("master.sock", ["show proc"]))
                        if pid:
                            self._watch(pid)
                            return True
                    await self._clock.sleep(_POLL_SECONDS)
        except TimeoutError:
            _logger.warning("haproxy in %s does not answer and is killed", self.directory)
            self._lock.kill_holders()
        return False

    async def _taken_lock(self) -> int:
        """Return the lock for a new HAProxy, once no process of the previous one runs."""
        kill_at = self._clock.now() + _LEFTOVER_SECONDS
        give_up_at = self._clock.now() + RELOAD_SECONDS
        while (lock := self._lock.take()) is None:
            now = self._clock.now()
            if now >= give_up_at:
                raise HAProxyError(f"the previous haproxy in {self.directory} does not end")
            if now >= kill_at:
                self._lock.kill_holders()
            await self._clock.sleep(_POLL_SECONDS)
        return lock

    def _watch(self, pid: int) -> None:
        if self.process is not None:
            self.process.release()
        self.process = Master(pid)

    async def ended(self) -> int:
        """Wait until the process has ended, and return its exit code; -1 if it is unknown."""
        if self.process is None:
            raise RuntimeError("haproxy has not been started")
        return await self.process.wait()

    async def end(self) -> None:
        """Stop the process; or leave it, if it outlives this program."""
        if not self.outlives or self.process is None:
            await self.stop()
            return
        process, self.process = self.process, None
        if process.returncode is None:
            process.release()
            _logger.info(
                "haproxy continues without the controller; to end it, run: kill %d", process.pid
            )

    async def stop(self) -> None:
        """Stop the process, gently at first."""
        process, self.process = self.process, None
        if process is None or process.returncode is not None:
            return
        try:
            process.terminate()  # the master ends its workers, including old ones
            try:
                async with self._clock.timeout(RELOAD_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        finally:
            process.release()

    async def reload(self, generation: int) -> None:
        """Apply the written configuration; the old process serves its connections until they end.

        Afterwards no old process accepts connections or commands, and its ports are free; one that
        does not stop in time is logged.

        Raises:
            HAProxyError: it refuses the configuration, or does not apply it in time.
        """
        await self._check()
        await self._wait_for(generation, reload=True)
        try:
            async with self._clock.timeout(RELOAD_SECONDS):
                await self._old_workers_stopped()
        except OSError as error:
            _logger.warning("an old haproxy process may still accept connections: %s", error)

    async def _old_workers_stopped(self) -> None:
        """Wait until no old worker listens.

        The master tells it to stop when the new worker is there already, and both share the
        sockets.
        """
        while True:
            old = set(await self.old_workers())
            self._stopping &= old
            for worker in old - self._stopping:
                answer = await self._ask_master(f"@!{worker} show info")
                if "Stopping: 0" not in answer.splitlines():  # it stops, or has ended
                    self._stopping.add(worker)
            if self._stopping == old:
                return
            await self._clock.sleep(_POLL_SECONDS)

    async def tell(self, commands: Sequence[str]) -> None:
        """Send commands to the runtime API.

        Raises:
            HAProxyError: it refuses one.
            OSError: it is unreachable.
        """
        answers = [await self.ask("runtime.sock", some) for some in _in_pieces(commands)]
        complaints = [
            line
            for answer in answers
            for line in answer.splitlines()
            if line and not line.startswith(_SUCCESSES)
        ]
        if complaints:
            raise HAProxyError(f"haproxy rejected a command: {' '.join(complaints)[:300]}")

    async def old_workers(self) -> list[int]:
        """Return the IDs of old processes that still serve connections.

        Raises:
            OSError: HAProxy is unreachable.
        """
        text = await self._ask_master("show proc")
        _, _, old = text.partition("# old workers\n")
        lines = [line.split() for line in old.partition("# programs\n")[0].splitlines()]
        return [int(words[0]) for words in lines if words and words[0].isdecimal()]

    async def end_sessions(self, workers: Iterable[int], is_gone: Callable[[str], bool]) -> None:
        """End connections in old workers; ignore those that have ended.

        Args:
            workers: the old workers' process IDs.
            is_gone: whether the connections to a server, as the runtime API names it, must end.

        Raises:
            OSError: HAProxy is unreachable.
        """
        there = set(await self.old_workers())
        for worker in there.intersection(workers):
            # An old worker's proxies are disabled, so sessions can only be ended one by one.
            sessions = await self._ask_master(f"@!{worker} show sess")
            for session in _sessions_with(sessions, is_gone):
                await self._ask_master(f"@!{worker} shutdown session {session}")

    async def _ask_master(self, command: str) -> str:
        """Send a command to the master, which answers none for a moment at each reload."""
        give_up_at = self._clock.now() + RELOAD_SECONDS
        while True:
            try:
                # Every answer has at least an empty line: without it the connection was dropped.
                if answer := await self.ask("master.sock", [command]):
                    return answer
                raise ConnectionResetError(errno.ECONNRESET, "haproxy's master does not answer")
            except OSError:
                if self._clock.now() >= give_up_at:
                    raise
            await self._clock.sleep(_POLL_SECONDS)

    async def ask(self, name: str, commands: Sequence[str]) -> str:
        """Send commands to one of the sockets and return the response."""
        async with self._clock.timeout(RELOAD_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(self.directory / name))
            try:
                writer.write("; ".join(commands).encode() + b"\n")
                writer.write_eof()  # otherwise the master waits for more
                return (await reader.read()).decode(errors="replace")
            finally:
                writer.transport.abort()

    async def _check(self) -> None:
        path = self._configuration
        process = await asyncio.create_subprocess_exec(
            self.binary,
            "-c",
            "-L",
            PEER,
            "-f",
            str(path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, complaints = await process.communicate()
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if process.returncode:
            words = "; ".join(
                line.partition(" : ")[2] or line
                for line in complaints.decode(errors="replace")
                .replace(str(path), path.name)
                .splitlines()
                if "[ALERT]" in line
            )
            raise HAProxyError(f"haproxy rejected its configuration: {words[:500]}")

    async def _wait_for(self, generation: int, *, reload: bool = False) -> None:
        ask_at = self._clock.now()
        try:
            async with self._clock.timeout(RELOAD_SECONDS):
                while await self.generation() != generation:
                    if self.process is None or self.process.returncode is not None:
                        raise HAProxyError("haproxy exited before it loaded its configuration")
                    # A master that is still busy with its last reload may miss the next.
                    if reload and self._clock.now() >= ask_at:
                        ask_at = self._clock.now() + _RELOAD_AGAIN_SECONDS
                        with contextlib.suppress(OSError):  # it closes the connection at once
                            await self.ask("master.sock", ["reload"])
                    await self._clock.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise HAProxyError(
                f"haproxy did not load its configuration within {RELOAD_SECONDS:g} s"
            ) from None

    async def generation(self) -> int:
        """Return the generation of the configuration in effect; -1 if HAProxy does not answer."""
        with contextlib.suppress(OSError):
            for line in (await self.ask("runtime.sock", ["show info"])).splitlines():
                name, _, value = line.partition(": ")
                if name == "description" and value.isdigit():
                    return int(value)
        return -1


def _sessions_with(text: str, is_gone: Callable[[str], bool]) -> Iterator[str]:
    """Yield the session IDs in a response to `show sess` that lead to servers that are gone."""
    for line in text.splitlines():
        identity, _, rest = line.partition(": ")
        words = dict(word.partition("=")[::2] for word in rest.split(" "))
        if words.get("srv", _NO_SERVER) != _NO_SERVER and is_gone(
            f"{words.get('be')}/{words['srv']}"
        ):
            yield identity


def _master_in(text: str) -> int:
    """Return the master's process ID in a response to `show proc`; 0 if there is none."""
    for line in text.splitlines():
        words = line.split()
        if words[1:2] == ["master"] and words[0].isdecimal():
            return int(words[0])
    return 0


def _replace(path: Path, content: bytes) -> None:
    """Replace a file in one step; nobody else can read it.

    Raises:
        HAProxyError: it can't be written; the previous file stays.
    """
    new = path.with_suffix(".new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)  # on a full disk it takes the last room
        raise HAProxyError(f"can't write {path}: {error.strerror or error}") from error


def _in_pieces(commands: Iterable[str]) -> Iterator[list[str]]:
    """Yield the commands in batches that fit HAProxy's buffer of 16 KiB."""
    piece: list[str] = []
    room = _COMMAND_BYTES
    for command in commands:
        room -= len(command) + 2
        if room < 0 and piece:
            yield piece
            piece, room = [], _COMMAND_BYTES - len(command) - 2
        piece.append(command)
    if piece:
        yield piece
