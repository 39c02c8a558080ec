"""Reacts to one change: the header line, the command, its retries, and the error budget."""

import os
import tempfile
import unicodedata
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from listwatch.backoff import COMMAND
from listwatch.clock import Clock
from listwatch.errors import ListWatchError
from listwatch.objects.differences import differences, matches_path
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.execute import LONGEST_STRING, Executor, Outcome, StartError
from listwatch.observe.metrics import ObserveMetrics
from listwatch.observe.options import ObserveOptions, shown_command
from listwatch.observe.output import LineCutter, OutputStream
from listwatch.observe.printing import Printer
from listwatch.observe.templates.template import TemplateError
from listwatch.printable import printable

T = TypeVar("T")

_MOST_HELD = 1024 * 1024
_UPDATES = frozenset({ObservationType.UPDATED, ObservationType.RELISTED})


class ErrorLimitError(ListWatchError):
    """Too many runs have failed; observing ends."""


class ErrorBudget:
    """Counts failed runs against a limit.

    Args:
        maximum: the failure that reaches it raises; -1 for no limit.
        window: count only failures in this many seconds; 0 counts all.
        clock: the time.
    """

    def __init__(self, maximum: int, window: float, clock: Clock) -> None:
        self._maximum = maximum
        self._window = window
        self._clock = clock
        self._times: deque[float] = deque()
        self.total = 0

    def spend(self) -> None:
        """Count a failed run.

        Raises:
            ErrorLimitError: the limit is reached.
        """
        self.total += 1
        if self._maximum < 0:
            return
        now = self._clock.now()
        self._times.append(now)
        while self._window and self._times[0] <= now - self._window:
            self._times.popleft()
        if len(self._times) >= self._maximum:
            within = f" within {self._window:g}s" if self._window else ""
            raise ErrorLimitError(
                f"reached maximum error limit of {self._maximum}{within}, exiting"
            )


class Spectator(Protocol):
    """Observes a reaction, in its event loop. Must not block."""

    def told(self, change: Observation, kind: str) -> None:
        """A change is reported, with the word for its type."""

    def started(self, run: int, change: Observation, argv: Sequence[str]) -> None:
        """A command starts; `run` numbers this run of it."""

    def wrote(self, run: int, fd: int, data: bytes) -> None:
        """A command wrote to 1, standard output, or 2, standard error."""

    def ended(self, run: int, outcome: Outcome) -> None:
        """A command ended."""


class Reaction:
    """Reacts to changes as the options say.

    For one event loop. May react to changes of different objects at once.

    Args:
        options: what to do.
        namespaced: whether each resource's objects are namespaced.
        out: standard output.
        err: standard error.
        metrics: counts.
        printer: prints changes without a command.
        executor: runs the commands.
        clock: the time.
        spectator: watches the reaction.
    """

    def __init__(
        self,
        options: ObserveOptions,
        *,
        namespaced: Mapping[str, bool],
        out: OutputStream,
        err: OutputStream,
        metrics: ObserveMetrics,
        printer: Printer,
        executor: Executor,
        clock: Clock,
        spectator: Spectator | None = None,
    ) -> None:
        self._spectator = spectator
        self._runs = 0
        self._options = options
        self._namespaced = namespaced
        self._streams = {1: out, 2: err}
        self._metrics = metrics
        self._printer = printer
        self._executor = executor
        self._clock = clock
        #: Changes that could not be rendered.
        self.unrendered = 0
        self.budget = ErrorBudget(options.maximum_errors, options.error_window, clock)

    async def __call__(self, changes: Sequence[Observation]) -> None:
        """Report changes and run their command to the end, including retries.

        An object that can't be rendered affects only itself: its key is reported. Several changes
        have one command, which reads them from its standard input.

        Raises:
            ErrorLimitError: a run failed and the limit is reached.
            StartError: the system lacks resources for a command.
            BrokenPipeError: nobody reads the output.
            OutputError: the output can't be written.
        """
        wanted = [change for change in changes if self._is_wanted(change)]
        if self._options.exec_batch:
            await self._react_to_batch(wanted)
            return
        for change in wanted:
            await self._react_to_one(change)

    def is_same_command(self, one: Observation, other: Observation) -> bool:
        """Return whether two changes may share a run of their command."""
        return self._command(one) == self._command(other)

    def _is_wanted(self, change: Observation) -> bool:
        """Return whether a change touches the fields of `only_paths`; updates alone can fail to."""
        paths, old, new = self._options.only_paths, change.old, change.object
        if not paths or old is None or new is None or change.type not in _UPDATES:
            return True
        changed = differences(old.to_dict(), new.to_dict())
        return any(matches_path(each.path, path) for each in changed for path in paths)

    async def _react_to_one(self, change: Observation) -> None:
        kind = self.type_word(change)
        self._metrics.told(kind)
        what = f"what renders {change.resource} {change.key}"
        try:
            told = await self._start(lambda: self._told(change, kind), what)
        except TemplateError as error:
            self.unrendered += 1
            await self._complain(f"{change.key}: unable to write arguments: {error}")
            return
        except StartError:
            raise
        except Exception as error:  # noqa: BLE001 - an odd object may make any code fail
            await self._report(f"{change.key}: {_unrenderable(error)}")
            return
        if told.argv:
            await self._react(change, kind, told)
        else:
            await self._streams[1].write(told.printed)

    async def _react_to_batch(self, changes: Sequence[Observation]) -> None:
        if not changes or not (command := self._command(changes[0])):
            for change in changes:
                await self._react_to_one(change)
            return
        lines: list[bytes] = []
        subjects: list[str] = []
        for change in changes:
            kind = self.type_word(change)
            self._metrics.told(kind)
            if self._spectator is not None:
                self._spectator.told(change, kind)
            if odd := _oddity(change):
                await self._report(f"{change.key}: no command gets it: {odd}")
                continue
            try:
                data = _standard_input("change", change, kind) or b""
            except Exception as error:  # noqa: BLE001 - an odd object may make any code fail
                await self._report(f"{change.key}: {_unrenderable(error)}")
                continue
            lines.append(msgspec.json.format(data, indent=-1) + b"\n")
            subjects.append(f"{kind} {change.resource} {change.key}")
        if not lines:
            return
        output = _Lines(self._streams, held=self._options.parallel > 1)
        if not self._options.quiet:
            header = f"# {self.timestamp()} Batch {len(lines)}\t{shown_command(command)}\n"
            await output.write(1, header.encode())
        try:
            outcome = await self._run(command, changes[0], output, None, b"".join(lines))
        finally:
            await output.finish()
        if not outcome.succeeded:
            more = f" and {len(subjects) - 1} more" if subjects[1:] else ""
            await self._failed(command[0], outcome, f"{subjects[0]}{more}")

    async def _start(self, attempt: Callable[[], T], what: str) -> T:
        try:
            return await self._executor.start(attempt, what)
        except OSError as error:
            raise StartError(f"unable to start {what}: {error.strerror or error}") from error

    def _told(self, change: Observation, kind: str) -> "_Told":
        """Render everything that depends on the object, before anything is done."""
        if self._spectator is not None:
            self._spectator.told(change, kind)
        options = self._options
        namespace, name = change.namespace, change.name
        words = [namespace, name] if self._namespaced[change.resource] else [name]
        text = self._rendered(change)
        if text is not None and options.stdin != "template":
            words.append(text)
        command = self._command(change)
        line = shown_command([*(command or self._which(change)), *words])
        version = printable(change.resource_version)
        header = f"# {self.timestamp()} {kind} {version}\t{line}\n"
        if not command:
            return _Told(printed=self._printer.text(change, kind, header))
        if options.stdin == "template":
            stdin: bytes | None = (text or "").encode()
        else:
            stdin = _standard_input(options.stdin, change, kind)
        data = None
        if options.object_env_var:
            data = change.object.json() if change.object is not None else b""
        return _Told([*command, *words], header, stdin, data)

    async def _react(self, change: Observation, kind: str, told: "_Told") -> None:
        if odd := _oddity(change):
            await self._report(f"{change.key}: no command is run for it: {odd}")
            return
        text = told.argv[-1]
        if len(text.encode(errors="replace")) >= LONGEST_STRING:
            await self._complain(
                f'command "{told.argv[0]}" was not run for {change.key}: the argument is too long'
                f" ({len(text.encode())} bytes); use --stdin=template"
            )
            return
        lines = _Lines(self._streams, held=self._options.parallel > 1)
        if not self._options.quiet:
            await lines.write(1, told.header.encode())
        try:
            async with self._environment(kind, told) as env:
                outcome = await self._run(told.argv, change, lines, env, told.stdin)
        finally:
            await lines.finish()
        if not outcome.succeeded:
            await self._failed(told.argv[0], outcome, f"{kind} {change.resource} {change.key}")

    def type_word(self, change: Observation) -> str:
        """Return the word for a change's type, as the options ask."""
        return change.type.value if self._options.distinct_types else change.type.plain

    def timestamp(self) -> str:
        """Return the current time as RFC 3339 in the local time zone, in whole seconds."""
        now = datetime.fromtimestamp(self._clock.time()).astimezone()
        return now.isoformat(timespec="seconds").replace("+00:00", "Z")

    async def sync_line(self, word: str, resource: str) -> None:
        """Print that the report of a resource's list starts, or that all of it was processed."""
        which = f"\t{resource}" if len(self._options.resources) > 1 else ""
        if not (self._options.quiet or self._printer.is_for_machines):
            await self._streams[1].write(f"# {self.timestamp()} Sync {word}{which}\n")

    def _command(self, change: Observation) -> Sequence[str]:
        if change.type is ObservationType.DELETED:
            return self._options.delete_command
        return self._options.command

    def _which(self, change: Observation) -> Sequence[str]:
        """Return what stands in the header in place of a missing command."""
        return [change.resource] if len(self._options.resources) > 1 else []

    def _rendered(self, change: Observation) -> str | None:
        if self._options.template is None or change.object is None:
            return None
        return self._options.template.render(change.object)

    @asynccontextmanager
    async def _environment(
        self, kind: str, told: "_Told"
    ) -> AsyncIterator[Mapping[str, str] | None]:
        """Provide the environment of a change's command; None for this process's own."""
        options = self._options
        if not (options.type_env_var or options.object_env_var):
            yield None
            return
        env = dict(os.environ)
        if options.type_env_var:
            env[options.type_env_var] = kind
        path: Path | None = None
        if (data := told.object_json) is not None:
            name = options.object_env_var
            env.pop(f"{name}_FILE", None)
            if len(os.fsencode(name)) + 1 + len(data) + 1 > LONGEST_STRING:
                # The kernel refuses a longer string, whatever their total size.
                path = await self._start(partial(_write_file, data), "a command with a file")
                env[name] = ""
                env[f"{name}_FILE"] = str(path)
            else:
                env[name] = data.decode(errors="replace")
        try:
            yield env
        finally:
            if path is not None:
                path.unlink(missing_ok=True)

    async def _run(
        self,
        argv: Sequence[str],
        change: Observation,
        lines: "_Lines",
        env: Mapping[str, str] | None,
        stdin: bytes | None,
    ) -> Outcome:
        options = self._options
        tries_left = options.retry_count if options.retry_on_exit_code else 0
        backoff, failures = COMMAND.starting_at(options.retry_delay), 0
        while True:
            outcome = await self._run_once(argv, change, lines, env, stdin)
            again = not outcome.failure and outcome.exit_code == options.retry_on_exit_code
            if outcome.succeeded or not again or tries_left <= 0:
                return outcome
            tries_left -= 1
            delay = backoff.delay(failures)
            failures += 1
            await self._streams[2].write(
                f"retrying command: exit status {outcome.exit_code}"
                f" (next try in {delay:g}s, {tries_left} left)\n"
            )
            await self._clock.sleep(delay)

    async def _run_once(
        self,
        argv: Sequence[str],
        change: Observation,
        lines: "_Lines",
        env: Mapping[str, str] | None,
        stdin: bytes | None,
    ) -> Outcome:
        spectator = self._spectator
        self._runs += 1
        run = self._runs

        async def watched(fd: int, data: bytes) -> None:
            if spectator is not None:
                spectator.wrote(run, fd, data)
            await lines.write(fd, data)

        if spectator is not None:
            spectator.started(run, change, argv)
        sink = lines.write if spectator is None else watched
        outcome = await self._executor.run(argv, sink, env=env, stdin=stdin)
        await lines.end_lines()
        self._metrics.ran(self.type_word(change), outcome)
        if spectator is not None:
            spectator.ended(run, outcome)
        return outcome

    async def _failed(self, command: str, outcome: Outcome, subject: str) -> None:
        if outcome.timed_out:
            text = f"was ended after {self._options.timeout:g}s"
        elif outcome.failure and not outcome.signal:
            text = f"failed: {outcome.failure}"
        else:
            signal = f" ({outcome.failure})" if outcome.failure else ""
            text = f"exited with status code {outcome.exit_code}{signal}"
        await self._complain(f'command "{command}" for {subject} {text}')

    async def _complain(self, text: str) -> None:
        """Print an error and count it as a failed run."""
        await self._report(text)
        self.budget.spend()

    async def _report(self, text: str) -> None:
        await self._streams[2].write(f"error: {printable(text)}\n")


class _Told(msgspec.Struct, frozen=True):
    """What is rendered for a change.

    Attributes:
        argv: the command and its arguments; empty if there is none.
        header: the line before it.
        stdin: the command's standard input.
        object_json: the object for the environment.
        printed: what to print without a command.
    """

    argv: Sequence[str] = ()
    header: str = ""
    stdin: bytes | None = None
    object_json: bytes | None = None
    printed: str = ""


def _unrenderable(error: Exception) -> str:
    """Return why an object can't be rendered."""
    if isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError):
        return "nested too deeply"
    return f"unable to render it: {type(error).__name__}: {error}"


def _oddity(change: Observation) -> str:
    """Return why no command can get an object's names; empty if there is no reason.

    Kubernetes accepts no such names; scripts would take them for parts of a path or of a line.
    """
    for what, word in (("namespace", change.namespace), ("name", change.name)):
        if "/" in word or word in {".", ".."}:
            return f"its {what} can't be part of a path"
        if any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in word):
            return f"its {what} has control characters"
    return "" if change.name else "it has no name"


class _Lines:
    """One command's output: passed on line by line, or held and written at once."""

    def __init__(self, streams: Mapping[int, OutputStream], *, held: bool) -> None:
        self._streams = streams
        self._cutters = {1: LineCutter(), 2: LineCutter()}
        self._held = {1: bytearray(), 2: bytearray()} if held else None

    async def write(self, fd: int, data: bytes) -> None:
        await self._pass_on(fd, self._cutters[fd].feed(data))

    async def end_lines(self) -> None:
        for fd, cutter in self._cutters.items():
            await self._pass_on(fd, cutter.finish())

    async def _pass_on(self, fd: int, lines: bytes) -> None:
        if not lines:
            return
        if self._held is None:
            await self._streams[fd].write(lines)
            return
        self._held[fd] += lines
        if len(self._held[fd]) > _MOST_HELD:
            await self._flush(fd)

    async def _flush(self, fd: int) -> None:
        if self._held is not None and self._held[fd]:
            data, self._held[fd] = bytes(self._held[fd]), bytearray()
            await self._streams[fd].write(data)

    async def finish(self) -> None:
        for fd in self._cutters:
            await self._flush(fd)


def _standard_input(what: str, change: Observation, kind: str) -> bytes | None:
    if not what:
        return None
    if what == "object":
        return change.object.json() if change.object is not None else b""
    document: dict[str, object] = {"type": kind, "resource": change.resource, "key": change.key}
    for field, obj in (("object", change.object), ("oldObject", change.old)):
        if obj is not None:
            document[field] = msgspec.Raw(obj.json())
    if change.object is not None and change.old is not None:
        old, new = change.old.to_dict(), change.object.to_dict()
        document["changed"] = [difference.path for difference in differences(old, new)]
    return msgspec.json.encode(document)


def _write_file(data: bytes) -> Path:
    fd, name = tempfile.mkstemp(prefix="listwatch-", suffix=".json")  # mode 0600
    path = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    except BaseException:
        path.unlink()
        raise
    return path
