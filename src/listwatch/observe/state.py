"""The state that an observer keeps across restarts: reported objects, and its progress.

The file is SQLite. A change is written to it when its command has finished, so a process that is
killed at any instant loses nothing and repeats at most the commands that were running.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import UnionType
from typing import Any, Final

import msgspec

from listwatch.cache.list_watch import (
    ADDED,
    DELETED,
    MODIFIED,
    KnowsDefinition,
    KnowsObjects,
    KnowsServer,
    ListerWatcher,
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.errors import ListWatchError
from listwatch.objects import Object, ObjectDecodeError, decode_object
from listwatch.observe.changes import Observation, ObservationType
from listwatch.private_file import (
    SQLITE_COMPANIONS,
    PrivateFileError,
    create_private,
    tighten,
)

_FORMAT: Final = "1"
_HIGHEST: Final = 2**63 - 1  # of SQLite's integers
_TABLES: Final = {"binding", "checkpoint", "told"}
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS binding (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS checkpoint (resource TEXT PRIMARY KEY, version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS told (
  resource TEXT NOT NULL,
  key TEXT NOT NULL,
  version INTEGER NOT NULL,
  object BLOB, -- NULL for what was told to be deleted, until the checkpoint is past it
  PRIMARY KEY (resource, key)
);
CREATE TABLE IF NOT EXISTS begun (
  resource TEXT NOT NULL, key TEXT NOT NULL, object BLOB NOT NULL, PRIMARY KEY (resource, key)
);
CREATE INDEX IF NOT EXISTS gone ON told (resource, version) WHERE object IS NULL;
"""


class StateError(ListWatchError):
    """A state file is unusable: damaged, in use, or for something else."""


class Remembered(msgspec.Struct, frozen=True):
    """What is known of one resource from earlier runs.

    Attributes:
        objects: the last reported states of objects reported as existing, or whose report started.
        begun: the keys whose first command started without a recorded end: they are reported again
            as additions, or else their deletion is.
        version: everything up to it was reported; 0 if there is no such version yet.
        finished: for keys with later reports, the version reached; includes deleted ones.
    """

    objects: Sequence[Object]
    begun: frozenset[str]
    version: int
    finished: Mapping[str, int]


class StateFile:
    """A file of states. For one process, and within it for one thread.

    Only its owner can read it, because it contains whole objects.

    Args:
        path: the file; created if missing.
        binding: what it belongs to; a file for something else is refused.

    Attributes:
        warning: one line for the user if others could read the file until now; otherwise empty.

    Raises:
        StateError: it is unusable. A file that is not a state file is left unchanged.
    """

    def __init__(self, path: Path, binding: Mapping[str, str]) -> None:
        self._path = path
        self.warning = ""
        try:
            create_private(path, SQLITE_COMPANIONS)
            self._database = sqlite3.connect(path, isolation_level=None, timeout=0.5)
        except (sqlite3.Error, OSError, PrivateFileError) as error:
            raise StateError(f"unable to open the state file {path}: {_reason(error)}") from error
        try:
            self._open(binding)
        except BaseException as error:
            self._database.close()
            if not isinstance(error, sqlite3.Error | OSError | PrivateFileError):
                raise
            raise StateError(f"unable to use the state file {path}: {_reason(error)}") from error

    def _open(self, binding: Mapping[str, str]) -> None:
        run = self._database.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        tables = {name for (name,) in run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and not tables >= _TABLES:
            raise StateError(
                f"{self._path} is another kind of database; choose another --state file"
            )
        for (result,) in run("PRAGMA quick_check(1)").fetchall():
            if result != "ok":
                raise self._damaged(result)
        wanted = {"format": _FORMAT, **binding}
        if tables:
            self._check_binding(wanted)
        self.warning = tighten(self._path, SQLITE_COMPANIONS)
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run("BEGIN EXCLUSIVE")
        for statement in _SCHEMA.split(";\n"):
            run(statement)
        if not tables:
            self._database.executemany("INSERT INTO binding VALUES (?, ?)", wanted.items())
        run("COMMIT")

    def _check_binding(self, wanted: Mapping[str, str]) -> None:
        found = dict(self._rows("SELECT name, value FROM binding", (), str, str))
        if found.keys() != wanted.keys():
            raise self._damaged("its owner is not recorded")
        for name, value in wanted.items():
            if found[name] != value:
                raise StateError(
                    f"the state file {self._path} belongs to another {name}"
                    f" ({found[name]!r}, this is {value!r}); use a separate file"
                )

    def _rows(
        self, statement: str, values: tuple[str, ...], *types: type | UnionType
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query whose values have these types: a damaged file may have any."""
        for row in self._database.execute(statement, values):
            for value, wanted in zip(row, types, strict=True):
                if not isinstance(value, wanted):
                    raise self._damaged(
                        f"a value of type {type(value).__name__} in the wrong place"
                    )
            yield row

    def _damaged(self, why: object) -> StateError:
        return StateError(
            f"the state file {self._path} is damaged: {why}; move it away to start over"
        )

    def load(self, resource: str) -> Remembered:
        """Return what is known of a resource.

        Raises:
            StateError: the file contains something that is not an object.
        """
        try:
            return self._load(resource)
        except sqlite3.Error as error:
            raise self._damaged(error) from error

    def _load(self, resource: str) -> Remembered:
        checkpoints = self._rows(
            "SELECT version FROM checkpoint WHERE resource = ?", (resource,), int
        )
        checkpoint: int = next(checkpoints, (0,))[0]
        finished: dict[str, int] = {}
        bytes_of: dict[str, bytes] = {}
        for key, version, data in self._rows(
            "SELECT key, version, object FROM told WHERE resource = ?",
            (resource,),
            str,
            int,
            bytes | None,
        ):
            if version > checkpoint:
                finished[key] = version
            if data is not None:
                bytes_of[key] = data
        begun = dict(
            self._rows("SELECT key, object FROM begun WHERE resource = ?", (resource,), str, bytes)
        )
        objects = [self._object(key, data) for key, data in {**bytes_of, **begun}.items()]
        return Remembered(objects, frozenset(begun), checkpoint, finished)

    def _object(self, key: str, data: bytes) -> Object:
        try:
            obj = decode_object(data)
        except ObjectDecodeError as error:
            raise self._damaged(f"{key}: {error}") from error
        if obj.key != key:
            raise self._damaged(f"{obj.key} is kept as {key}")
        return obj

    def begins(self, resource: str, change: Observation) -> None:
        """Record that the report of a change starts, so that its object's deletion gets reported.

        Writes only for additions: other objects are recorded already.

        Raises:
            StateError: writing failed.
        """
        if change.old is None and change.object is not None and change.position:
            self._write(
                "INSERT OR REPLACE INTO begun VALUES (?, ?, ?)",
                (resource, change.key, change.object.json()),
            )

    def finished(self, resource: str, change: Observation) -> None:
        """Record that a change was reported, and its command has ended.

        Raises:
            StateError: writing failed.
        """
        if change.type is ObservationType.RESYNC or not change.position:
            return
        gone = change.type is ObservationType.DELETED or change.object is None
        data = None if gone or change.object is None else change.object.json()
        self._write(
            "INSERT INTO told VALUES (?, ?, ?, ?) ON CONFLICT (resource, key)"
            " DO UPDATE SET version = excluded.version, object = excluded.object",
            (resource, change.key, change.position, data),
        )
        self._write("DELETE FROM begun WHERE resource = ? AND key = ?", (resource, change.key))

    def reached(self, resource: str, version: int) -> None:
        """Record that everything up to a version was reported and has ended.

        Raises:
            StateError: writing failed.
        """
        self._write(
            "INSERT INTO checkpoint VALUES (?, ?) ON CONFLICT (resource)"
            " DO UPDATE SET version = excluded.version",
            (resource, version),
        )
        self._write(
            "DELETE FROM told WHERE resource = ? AND version <= ? AND object IS NULL",
            (resource, version),
        )

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise StateError(f"unable to write the state file {self._path}: {error}") from error

    def close(self) -> None:
        """Close the file; without this nothing is lost either."""
        self._database.close()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if not isinstance(error, sqlite3.Error):
        return str(error)
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # none: not UTF-8 in a text
    match code & 0xFF:  # the other bits have details not needed here
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "it is in use by another process"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR:
            return f"it is damaged or not a state file ({error}); move it away to start over"
        case sqlite3.SQLITE_FULL:
            return f"{error}; make room"
        case _:
            return f"{error}; it and its directory must be writable"


def version_number(version: str) -> int:
    """Return a resource version as a number, as API servers interpret it.

    Raises:
        StateError: it is not a number.
    """
    if (number := number_or_none(version)) is None:
        raise StateError(f"--state needs resource versions that are numbers, not {version!r:.100}")
    return number


def number_or_none(version: str) -> int | None:
    """Return a resource version as a number for SQLite, None if it is not one."""
    if not (version.isascii() and version.isdigit()) or len(version) > len(str(_HIGHEST)):
        return None
    number = int(version)
    return number if number <= _HIGHEST else None


class ResumingListWatch:
    """Lists the recorded objects the first time, so that the watch resumes where it was.

    Skips events that were reported already. All later lists are real ones.

    Args:
        source: the resource.
        remembered: what is known of it, up to a version.
    """

    def __init__(self, source: ListerWatcher, remembered: Remembered) -> None:
        self._source = source
        self._remembered = remembered
        self._finished = dict(remembered.finished)
        self.has_resumed = False
        if isinstance(source, KnowsObjects):
            self.find = source.find

    async def list(self, options: ListOptions) -> ObjectList:
        """Return the recorded objects first, and later the server's."""
        if not self.has_resumed:
            self.has_resumed = True
            return ObjectList(
                items=list(self._remembered.objects),
                resource_version=str(self._remembered.version),
            )
        self._finished.clear()  # a list is newer than anything reported
        return await self._source.list(options)

    async def wait_until_reachable(self) -> bool:
        """Return when the server accepts connections; True if it did not before."""
        source = self._source
        return isinstance(source, KnowsServer) and await source.wait_until_reachable()

    async def is_gone(self) -> bool:
        """Return whether the resource is certainly no longer defined."""
        source = self._source
        return isinstance(source, KnowsDefinition) and await source.is_gone()

    def watch(self, options: WatchOptions) -> AbstractAsyncContextManager[WatchStream]:
        """Open a watch without the events reported already."""
        return self._watch(options) if self._finished else self._source.watch(options)

    @asynccontextmanager
    async def _watch(self, options: WatchOptions) -> AsyncIterator[WatchStream]:
        async with self._source.watch(options) as stream:
            yield self._new_ones(stream)

    async def _new_ones(self, stream: WatchStream) -> AsyncIterator[Sequence[WatchEvent]]:
        async for batch in stream:
            yield [event for event in batch if not self._was_told(event)]

    def _was_told(self, event: WatchEvent) -> bool:
        obj = event.object
        if obj is None or event.type not in {ADDED, MODIFIED, DELETED}:
            return False
        version = number_or_none(obj.resource_version)
        return version is not None and version <= self._finished.get(obj.key, 0)
