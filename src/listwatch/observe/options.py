"""The options of `observe`, and the checks that need no server."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from listwatch.client.durations import seconds_of
from listwatch.errors import ListWatchError
from listwatch.observe.templates.template import Template
from listwatch.printable import printable
from listwatch.selector import SelectorError, parse_field_selector, parse_label_selector


class UsageError(ListWatchError):
    """An option is wrong, or options conflict."""


class CommandNotFoundError(ListWatchError):
    """A command is not in PATH."""


class CommandNotExecutableError(ListWatchError):
    """A command exists and can't be executed."""


class DeleteLimit(msgspec.Struct, frozen=True):
    """How many of the known names may be deleted at once.

    Attributes:
        count: this many; None for no such limit.
        share: this percentage of the known names; None for no such limit. A share of fewer than
            ten names says nothing, so it does not limit them.
    """

    count: int | None = None
    share: int | None = None

    def allows(self, deletes: int, known: int) -> bool:
        """Return whether this many of the known names may be deleted."""
        if self.count is not None and deletes > self.count:
            return False
        return self.share is None or known < 10 or deletes * 100 <= known * self.share

    def __str__(self) -> str:
        return f"{self.share}%" if self.share is not None else str(self.count)


class ObserveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to observe and how to react.

    Attributes:
        resources: the resources, by the user's names: pods, po, deployments.apps …
        names: observe only objects of these names.
        namespace: the namespace; None for the kubeconfig's.
        all_namespaces: observe all namespaces.
        selector: a label selector.
        field_selector: a field selector.
        command: run for every addition and change, and for every listed object.
        delete_command: run for every deletion.
        names_command: prints the names that an outside system knows.
        names_dry_run: print what `names_command` would have deleted, and run nothing.
        max_deletes: maximum deletions from one run of `names_command`.
        template: renders one more argument from the object.
        type_env_var: the environment variable for the type.
        object_env_var: the environment variable for the object's JSON.
        stdin: the command's standard input: nothing (empty), `object`, `change`, or `template`,
            whose text is then no argument.
        distinct_types: use Listed, Relisted and Resync instead of Sync.
        maximum_errors: end after this many failed runs; -1 for never.
        error_window: count only failures in this many seconds; 0 counts all.
        retry_on_exit_code: retry a command with this exit code; 0 for never.
        retry_count: maximum retries.
        retry_delay: seconds before the first retry; doubles with each.
        parallel: maximum commands running at a time, for different objects.
        exec_batch: one command runs for up to so many changes, which it reads from standard
            input; 0 runs one for each.
        only_paths: report an update only if one of these fields changed.
        until: end when this CEL expression holds for all objects; empty for never.
        for_conditions: end when all objects have these conditions.
        managed_fields: keep `metadata.managedFields` of objects.
        timeout: seconds that a command may run; None for no limit.
        debounce: seconds that a change waits for later ones of its object.
        grace: seconds that running commands have at the end.
        once: end when the objects of the first list were processed.
        exit_after: end after this many seconds; None for never.
        exit_after_text: the same as the user wrote it.
        resync_period: seconds between re-deliveries of every object; None for never.
        poll: seconds between two lists of a resource that can't be watched.
        quiet: print no header lines.
        print_metrics_on_exit: write the metrics to standard output at the end.
        listen_address: host:port of metrics and health; empty for none.
        ui: serve a page that shows changes and commands live.
        state: the file that keeps the reported states across restarts.
    """

    resources: tuple[str, ...]
    names: tuple[str, ...] = ()
    namespace: str | None = None
    all_namespaces: bool = False
    selector: str = ""
    field_selector: str = ""
    command: tuple[str, ...] = ()
    delete_command: tuple[str, ...] = ()
    names_command: tuple[str, ...] = ()
    names_dry_run: bool = False
    max_deletes: DeleteLimit = DeleteLimit(share=50)
    template: Template | None = None
    type_env_var: str = ""
    object_env_var: str = ""
    stdin: str = ""
    distinct_types: bool = False
    maximum_errors: int = 20
    error_window: float = 0.0
    retry_on_exit_code: int = 0
    retry_count: int = 2
    retry_delay: float = 1.0
    parallel: int = 1
    exec_batch: int = 0
    only_paths: tuple[str, ...] = ()
    until: str = ""
    for_conditions: tuple[str, ...] = ()
    managed_fields: bool = False
    timeout: float | None = None
    debounce: float = 0.0
    grace: float = 10.0
    once: bool = False
    exit_after: float | None = None
    exit_after_text: str = ""
    resync_period: float | None = None
    poll: float | None = None
    quiet: bool = False
    print_metrics_on_exit: bool = False
    listen_address: str = ""
    ui: bool = False
    state: Path | None = None

    def check(self) -> None:
        """Check what needs no server.

        Raises:
            UsageError: an option is wrong, or options conflict.
            CommandNotFoundError: a command is not in PATH.
            CommandNotExecutableError: a command can't be executed.
        """
        if not self.resources:
            raise UsageError(
                "you must specify at least one argument containing the resource to observe"
            )
        if self.names_command and not self.delete_command:
            raise UsageError("--delete and --names must both be specified")
        if self.all_namespaces and self.namespace is not None:
            raise UsageError("use either --all-namespaces or --namespace, not both")
        if self.ui and not self.listen_address:
            raise UsageError("--ui needs --listen-addr, the address to serve the page at")
        if self.stdin == "template" and self.template is None:
            raise UsageError("--stdin=template needs a --template")
        if self.names_dry_run and not self.names_command:
            raise UsageError("--names-dry-run needs --names")
        if self.exec_batch:
            self._check_batch()
        if self.until or self.for_conditions:
            from listwatch.observe.until import Until  # noqa: PLC0415 - loads the parser of CEL

            try:
                Until(self.until, self.for_conditions)
            except ValueError as error:
                raise UsageError(str(error)) from error
        for option, parse, text in (
            ("--selector", parse_label_selector, self.selector),
            ("--field-selector", parse_field_selector, self.field_selector),
        ):
            try:
                parse(text)
            except SelectorError as error:
                raise UsageError(f"{option}={text}: {error}") from error
        self._check_words()
        for command in (self.command, self.delete_command, self.names_command):
            if command:
                find_command(command[0])

    def _check_batch(self) -> None:
        if not (self.command or self.delete_command):
            raise UsageError("--exec-batch needs a command")
        for option, given in (
            ("--template", self.template),
            ("--stdin", self.stdin),
            ("--type-env-var", self.type_env_var),
            ("--object-env-var", self.object_env_var),
        ):
            if given:
                raise UsageError(
                    f"{option} is for one change; with --exec-batch the command reads type and"
                    " object of each change from standard input"
                )

    def _check_words(self) -> None:
        for option, words in (
            ("RESOURCE", self.resources),
            ("NAME", self.names),
            ("--namespace", [self.namespace or ""]),
            ("--field-selector", [self.field_selector]),
            ("--listen-addr", [self.listen_address]),
        ):
            for word in words:
                if not _is_text(word):
                    raise UsageError(f"{option}: {word!a} is not UTF-8")
        for option, name in (
            ("--type-env-var", self.type_env_var),
            ("--object-env-var", self.object_env_var),
        ):
            if "=" in name or "\0" in name:
                raise UsageError(f"{option}: {name!a} is not a valid variable name")


def _is_text(word: str) -> bool:
    """Return whether a command-line word was UTF-8; other bytes become surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_command(name: str) -> str:
    """Return the path of a command.

    Raises:
        CommandNotFoundError: no such file, here or in PATH.
        CommandNotExecutableError: the file is not executable.
    """
    found = shutil.which(name)
    if found is not None:
        return found
    if shutil.which(name, mode=0) is not None:
        raise CommandNotExecutableError(f"{name}: not an executable file; try chmod +x")
    raise CommandNotFoundError(
        f"{name}: no such command; give a path, or the name of a program in PATH"
    )


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as 90s, 1m30s, 500ms or 2h; a bare number is seconds.

    Raises:
        UsageError: invalid.
    """
    try:
        return seconds_of(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


def parse_delete_limit(text: str) -> DeleteLimit:
    """Return the limit for `--max-deletes`: 10, 25%, or -1 for no limit.

    Raises:
        UsageError: invalid.
    """
    if text == "-1":
        return DeleteLimit()
    match = re.fullmatch(r"(\d+)(%?)", text)
    if match is None or (match[2] and int(match[1]) > 100):
        raise UsageError(
            f"{text!r} is not a limit; write a number such as 10, a percentage such as 25%"
        )
    return DeleteLimit(share=int(match[1])) if match[2] else DeleteLimit(count=int(match[1]))


def shown_command(words: Sequence[str]) -> str:
    """Return a command line for people and logs.

    Empty words, and words with quotes, backslashes, spaces, control characters or bytes that are
    not UTF-8, are quoted, so that the result is one line.
    """
    return " ".join(map(_shown_word, words))


def _shown_word(word: str) -> str:
    if word and word.isprintable() and not re.search(r'["\\\s]', word):
        return word
    return f'"{"".join(map(_shown_letter, word))}"'


def _shown_letter(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    return letter if letter.isprintable() else printable(letter)
