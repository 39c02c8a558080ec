"""What an observer remembers over restarts: the last told states, and how far it has come.

The file is SQLite. A change is written to it when its command has finished, so a process that is
killed at any instant loses nothing and repeats at most the commands that were running.
"""

import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from listwatch.cache.list_watch import (
    ADDED,
    DELETED,
    MODIFIED,
    ListerWatcher,
    ListOptions,
    ObjectList,
    WatchEvent,
    WatchOptions,
    WatchStream,
)
from listwatch.errors import ListWatchError
from listwatch.objects import Object, ObjectDecodeError, decode_object
from listwatch.observe.changes import Change, ChangeType

_FORMAT: Final = "1"
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
    """A state file that can't be used: damaged, in use, or of something else."""


class Remembered(msgspec.Struct, frozen=True):
    """What is known of one resource from earlier runs.

    Attributes:
        objects: the last told states of what was told to exist, or began to be.
        begun: the keys of those whose first command has begun and was not seen to end: they are
            told again, as additions, or else their end is.
        version: everything up to it was told; 0 if there is no such version yet.
        finished: for keys of which more was told, up to which version; deleted ones included.
    """

    objects: Sequence[Object]
    begun: frozenset[str]
    version: int
    finished: Mapping[str, int]


class StateFile:
    """A file of states. For one process, and within it for one thread.

    Args:
        path: the file; made if it is not there.
        binding: what it belongs to; a file of something else is refused.

    Raises:
        StateError: it can't be used.
    """

    def __init__(self, path: Path, binding: Mapping[str, str]) -> None:
        self._path = path
        try:
            self._database = sqlite3.connect(path, isolation_level=None, timeout=0.5)
        except sqlite3.Error as error:
            raise StateError(f"unable to open the state file {path}: {error}") from error
        try:
            self._open(binding)
        except BaseException as error:
            self._database.close()
            if not isinstance(error, sqlite3.Error):
                raise
            raise StateError(f"unable to use the state file {path}: {_reason(error)}") from error

    def _open(self, binding: Mapping[str, str]) -> None:
        run = self._database.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run("BEGIN EXCLUSIVE")
        for statement in _SCHEMA.split(";\n"):
            run(statement)
        found = dict(run("SELECT name, value FROM binding").fetchall())
        wanted = {"format": _FORMAT, **binding}
        if not found:
            self._database.executemany("INSERT INTO binding VALUES (?, ?)", wanted.items())
            found = wanted
        run("COMMIT")
        for name, value in wanted.items():
            if found.get(name) != value:
                raise StateError(
                    f"the state file {self._path} belongs to another {name}"
                    f" ({found.get(name, '')!r}, this is {value!r}); use a file of its own"
                )
        for (result,) in run("PRAGMA quick_check(1)").fetchall():
            if result != "ok":
                raise StateError(f"the state file {self._path} is damaged: {result}")

    def load(self, resource: str) -> Remembered:
        """Return what is known of a resource.

        Raises:
            StateError: the file holds what is no object.
        """
        rows = self._database.execute(
            "SELECT version FROM checkpoint WHERE resource = ?", (resource,)
        ).fetchall()
        checkpoint: int = rows[0][0] if rows else 0
        finished: dict[str, int] = {}
        bytes_of: dict[str, bytes] = {}
        for key, version, data in self._database.execute(
            "SELECT key, version, object FROM told WHERE resource = ?", (resource,)
        ):
            if version > checkpoint:
                finished[key] = version
            if data is not None:
                bytes_of[key] = data
        begun = dict(
            self._database.execute(
                "SELECT key, object FROM begun WHERE resource = ?", (resource,)
            ).fetchall()
        )
        objects: list[Object] = []
        for key, data in {**bytes_of, **begun}.items():
            try:
                if not isinstance(data, bytes):  # a damaged database holds whatever it holds
                    raise ObjectDecodeError(f"a {type(data).__name__} in place of bytes")  # noqa: TRY301 - as the decoder's
                objects.append(decode_object(data))
            except ObjectDecodeError as error:
                raise StateError(
                    f"the state file {self._path} is damaged: {key}: {error}"
                ) from error
        return Remembered(objects, frozenset(begun), checkpoint, finished)

    def begins(self, resource: str, change: Change) -> None:
        """Remember that a change is about to be told, so that the end of its object will be.

        Only that of an addition is written down: the others' objects are remembered already.

        Raises:
            StateError: it can't be written.
        """
        if change.old is None and change.object is not None and change.position:
            self._write(
                "INSERT OR REPLACE INTO begun VALUES (?, ?, ?)",
                (resource, change.key, change.object.json()),
            )

    def finished(self, resource: str, change: Change) -> None:
        """Remember that a change was told, and its command has ended.

        Raises:
            StateError: it can't be written.
        """
        if change.type is ChangeType.RESYNC or not change.position:
            return
        gone = change.type is ChangeType.DELETED or change.object is None
        data = None if gone or change.object is None else change.object.json()
        self._write(
            "INSERT INTO told VALUES (?, ?, ?, ?) ON CONFLICT (resource, key)"
            " DO UPDATE SET version = excluded.version, object = excluded.object",
            (resource, change.key, change.position, data),
        )
        self._write("DELETE FROM begun WHERE resource = ? AND key = ?", (resource, change.key))

    def reached(self, resource: str, version: int) -> None:
        """Remember that everything up to a version was told and has ended.

        Raises:
            StateError: it can't be written.
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
        """Close the file; nothing is lost without."""
        self._database.close()


def _reason(error: sqlite3.Error) -> str:
    match error.sqlite_errorcode & 0xFF:  # the rest of it tells more than is needed here
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "it is in use by another process"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return f"it is damaged or no state file ({error}); move it away to start anew"
        case _:
            return f"{error}; it and its directory must be writable"


def version_number(version: str) -> int:
    """Return a resource version as the number that API servers make of it.

    Raises:
        StateError: it is none.
    """
    if not version.isdigit():
        raise StateError(f"--state needs resource versions that are numbers, not {version!r}")
    return int(version)


class ResumingListWatch:
    """Lists what is remembered the first time, so that a watch goes on where the last one was.

    Events of what was told already are left out. All later lists are real ones.

    Args:
        source: the resource.
        remembered: what is known of it, up to a version.
    """

    def __init__(self, source: ListerWatcher, remembered: Remembered) -> None:
        self._source = source
        self._remembered = remembered
        self._finished = dict(remembered.finished)
        self.has_resumed = False

    async def list(self, options: ListOptions) -> ObjectList:
        """Return what is remembered, and later what the server has."""
        if not self.has_resumed:
            self.has_resumed = True
            return ObjectList(
                items=list(self._remembered.objects),
                resource_version=str(self._remembered.version),
            )
        self._finished.clear()  # a list is of a later version than whatever was told
        return await self._source.list(options)

    def watch(self, options: WatchOptions) -> AbstractAsyncContextManager[WatchStream]:
        """Open a watch without what was told already."""
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
        return version_number(obj.resource_version) <= self._finished.get(obj.key, 0)
