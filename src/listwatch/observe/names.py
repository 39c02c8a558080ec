"""Finds missed deletions: compares an outside system's names with the server's objects."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

from listwatch.backoff import COMMAND
from listwatch.clock import Clock
from listwatch.errors import ListWatchError
from listwatch.objects import KeyFunctionError, split_key
from listwatch.observe.execute import Executor, Outcome
from listwatch.observe.metrics import ObserveMetrics
from listwatch.observe.options import ObserveOptions
from listwatch.observe.output import OutputStream
from listwatch.printable import printable

_SHOWN = 10
_MOST_PRINTED = 64 * 1024 * 1024
_MOST_COMPLAINT = 4096


class NamesError(ListWatchError):
    """The --names command failed, or implies more deletions than allowed."""


class NamedSource(Protocol):
    """What must be known about the resource of the names."""

    @property
    def resource(self) -> str:
        """Its name."""
        ...

    @property
    def namespaced(self) -> bool:
        """Whether its objects are namespaced."""
        ...

    @property
    def exists(self) -> Callable[[str], Awaitable[bool]]:
        """Asks the server for one object."""
        ...


class KnownNames:
    """Runs the --names command and finds the names of objects that no longer exist.

    Ignores names in other namespaces than the observed one. If selectors hide some objects, it asks
    the server for each name that the list lacks, so that an object that only stopped matching does
    not count as deleted.

    Args:
        options: the command, the limits and what is observed.
        namespace: the observed namespace; empty for all.
        executor: runs the command.
        metrics: measures the command.
        err: standard error.
        clock: for the delay before a retry.
    """

    def __init__(
        self,
        options: ObserveOptions,
        *,
        namespace: str,
        executor: Executor,
        metrics: ObserveMetrics,
        err: OutputStream,
        clock: Clock,
    ) -> None:
        self._options = options
        self._namespace = namespace
        self._executor = executor
        self._metrics = metrics
        self._err = err
        self._clock = clock

    async def missing(self, source: NamedSource, listed: Collection[str]) -> Sequence[str]:
        """Return the keys that the command knows and the server lacks, sorted.

        Args:
            source: the resource.
            listed: the server's keys, as far as the selectors show them.

        Raises:
            NamesError: the command failed, or so many names are missing that it is likely a
                mistake.
        """
        known = await self._known(source)
        missing = sorted(known.difference(listed))
        if self._options.selector or self._options.field_selector:
            missing = [key for key in missing if await self._is_gone(source, key)]
        if self._options.names_dry_run:
            for key in missing:
                await self._err.write(f"names: would be deleted: {printable(key)}\n")
            return ()
        if not self._options.max_deletes.allows(len(missing), len(known)):
            shown = ", ".join(missing[:_SHOWN]) + (" …" if len(missing) > _SHOWN else "")
            raise NamesError(
                f"--names knows {len(known)} {source.resource}, of which {len(missing)} are not on"
                f" the server; this exceeds --max-deletes={self._options.max_deletes}, so nothing"
                f" was deleted: {shown}"
            )
        return missing

    async def _known(self, source: NamedSource) -> set[str]:
        outcome, printed, complaint = await self._run()
        if not outcome.succeeded:
            why = outcome.failure or f"exit status {outcome.exit_code}"
            words = " ".join(complaint.decode(errors="replace").split())
            raise NamesError(f"unable to list known keys: {why}{words and ': '}{words}")
        keys: set[str] = set()
        odd: list[str] = []
        lines = [line.strip() for line in printed.decode(errors="replace").split("\n")]
        for line in filter(None, lines):
            try:
                key = self._key(line, source)
            except KeyFunctionError as error:
                odd.append(str(error))
                continue
            if key:
                keys.add(key)
        if odd and len(odd) == len(lines) - lines.count(""):
            raise NamesError(f"unable to list known keys: {odd[0]}")
        for words in odd[:_SHOWN]:
            await self._err.write(f"warning: --names: {words}; it is left alone\n")
        if len(odd) > _SHOWN:
            await self._err.write(f"warning: --names: {len(odd) - _SHOWN} more lines like these\n")
        return keys

    def _key(self, line: str, source: NamedSource) -> str:
        """Return the key for a line of the command's output; empty if it is not observed.

        Raises:
            KeyFunctionError: the line is not a key.
        """
        namespace, name = split_key(line)
        if not line.isprintable():
            raise KeyFunctionError(f"{line!r} has control characters")
        if source.namespaced and not namespace:
            if not self._namespace:
                raise KeyFunctionError(f"{line!r} lacks a namespace; print namespace/name")
            return f"{self._namespace}/{name}"
        if not source.namespaced and namespace:
            raise KeyFunctionError(f"{line!r}, but {source.resource} have no namespace")
        return "" if self._namespace and namespace not in {"", self._namespace} else line

    async def _is_gone(self, source: NamedSource, key: str) -> bool:
        """Ask the server; without a clear answer the object counts as existing."""
        try:
            return not await source.exists(key)
        except (ListWatchError, OSError, ValueError) as error:
            words = printable(f"unable to get {key}: {error}")
            await self._err.write(f"warning: --names: {words}; it is left alone for now\n")
            return False

    async def _run(self) -> tuple[Outcome, bytes, bytes]:
        options = self._options
        tries_left = options.retry_count if options.retry_on_exit_code else 0
        backoff, failures = COMMAND.starting_at(options.retry_delay), 0
        while True:
            output = {1: bytearray(), 2: bytearray()}

            async def keep(fd: int, data: bytes, output: dict[int, bytearray] = output) -> None:
                if fd == 2:
                    data = data[: max(_MOST_COMPLAINT - len(output[2]), 0)]
                output[fd] += data
                if len(output[1]) > _MOST_PRINTED:
                    raise NamesError(
                        "unable to list known keys: the command printed more than"
                        f" {_MOST_PRINTED // 1_000_000} MB"
                    )

            outcome = await self._executor.run(options.names_command, keep)
            self._metrics.ran_names(outcome)
            again = not outcome.failure and outcome.exit_code == options.retry_on_exit_code
            if outcome.succeeded or not again or tries_left <= 0:
                return outcome, bytes(output[1]), bytes(output[2])
            tries_left -= 1
            await self._clock.sleep(backoff.delay(failures))
            failures += 1
