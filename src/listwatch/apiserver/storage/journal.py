"""Keeps a store's objects, resource version and history in a SQLite file with a write-ahead log."""

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from listwatch.apiserver.storage.store import (
    Entry,
    NotStoredError,
    Storage,
    StoredChange,
    StoredChangeType,
)
from listwatch.errors import ConfigError
from listwatch.private_file import (
    SQLITE_COMPANIONS,
    PrivateFileError,
    create_private,
    tighten,
)

_log = logging.getLogger(__name__)

_APPLICATION = 0x4C57_4150  # "LWAP"
_FORMAT = 1
_HIGHEST = 2**62  # leaves room to continue within SQLite's integers
_TABLES = (
    """CREATE TABLE objects (
        bucket TEXT NOT NULL, key TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (bucket, key)
    ) WITHOUT ROWID""",
    """CREATE TABLE changes (
        revision INTEGER PRIMARY KEY, bucket TEXT NOT NULL, type TEXT NOT NULL,
        data BLOB NOT NULL, previous BLOB
    )""",
    "CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
)

MakeEntry = Callable[[str, bytes], Entry]


class SQLiteJournal:
    """Keeps each commit in a file before it becomes visible.

    Each change is one transaction, so a killed process leaves all of it or nothing. A power failure
    may lose the last changes, never the file. The file contains whole objects, including Secrets,
    so only its owner may read it: other permissions are removed, with a warning in the log. For the
    thread of the store.

    Args:
        path: the file, created if missing.

    Raises:
        ConfigError: the file is damaged, not a journal, in use by another process, or readable by
            others and its mode can't be changed. The file stays unchanged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = self._open()
        except (sqlite3.Error, OSError) as error:
            self.close()
            why = error.strerror if isinstance(error, OSError) else error
            raise self._refusal(why) from None
        except PrivateFileError as error:
            self.close()
            raise ConfigError(str(error)) from None
        except BaseException:
            self.close()
            raise

    def _refusal(self, error: object) -> ConfigError:
        if "locked" in str(error):
            return ConfigError(f"{self._path} is in use by another process")
        return ConfigError(
            f"{self._path} can't be used ({error}); it was left as it is: move it away, or name "
            "another file"
        )

    def _open(self) -> sqlite3.Connection:
        if not create_private(self._path, SQLITE_COMPANIONS):
            with self._path.open("rb") as file:
                if file.read(16) not in {b"", b"SQLite format 3\0"}:
                    raise self._refusal("it is no database")
        connection = sqlite3.connect(self._path, timeout=0.5, isolation_level=None)
        self._connection = connection
        execute = connection.execute
        execute("PRAGMA locking_mode=EXCLUSIVE")
        owner = execute("PRAGMA application_id").fetchone()[0]
        tables = execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not owner and not tables:
            # the file is new, or was left by a process killed before this step
            self._tighten()
            execute("PRAGMA journal_mode=WAL")
            execute("BEGIN EXCLUSIVE")
            for table in _TABLES:
                execute(table)
            execute(f"PRAGMA application_id={_APPLICATION}")
            execute(f"PRAGMA user_version={_FORMAT}")
            execute("COMMIT")
        else:
            form = execute("PRAGMA user_version").fetchone()[0]
            if owner != _APPLICATION or form != _FORMAT:
                raise self._refusal("it is a database of something else")
            verdict = execute("PRAGMA quick_check").fetchone()[0]
            if verdict != "ok":
                raise self._refusal(verdict)
            self._tighten()
            execute("PRAGMA journal_mode=WAL")
            execute("BEGIN EXCLUSIVE")
            execute("COMMIT")
        execute("PRAGMA synchronous=NORMAL")
        return connection

    def _tighten(self) -> None:
        warning = tighten(self._path, SQLITE_COMPANIONS)
        if warning:
            _log.warning("%s", warning)

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ConfigError(f"{self._path} was closed")
        return self._connection

    def close(self) -> None:
        """Release the file. Harmless when called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Yield a function that executes statements, all or none of which are kept.

        Raises:
            NotStoredError: the file can't be written; no statement is kept.
        """
        database = self._db
        try:
            database.execute("BEGIN IMMEDIATE")
            yield database.execute
            database.execute("COMMIT")
        except BaseException as error:
            if database.in_transaction:  # after some errors SQLite has already ended it
                database.rollback()
            if isinstance(error, sqlite3.Error):
                raise NotStoredError(f"{self._path}: {error}") from error
            raise

    def record(self, bucket: str, change: StoredChange, key: str) -> None:
        """Record a change.

        Raises:
            NotStoredError: it can't be recorded, for example because the disk is full.
        """
        with self._transaction() as execute:
            if change.type is StoredChangeType.DELETED:
                execute("DELETE FROM objects WHERE bucket=? AND key=?", (bucket, key))
            else:
                execute(
                    "INSERT INTO objects VALUES (?,?,?) ON CONFLICT DO UPDATE SET "
                    "data=excluded.data",
                    (bucket, key, change.entry.data),
                )
            previous = None if change.previous is None else change.previous.data
            execute(
                "INSERT INTO changes VALUES (?,?,?,?,?)",
                (change.revision, bucket, change.type.value, change.entry.data, previous),
            )

    def record_compaction(self, revision: int) -> None:
        """Discard the history up to a revision.

        Raises:
            NotStoredError: writing failed.
        """
        with self._transaction() as execute:
            last = execute("SELECT max(revision) FROM changes").fetchone()[0] or 0
            execute("DELETE FROM changes WHERE revision<=?", (revision,))
            for name, value in (("compacted", revision), ("revision", max(last, revision))):
                execute("INSERT OR REPLACE INTO state VALUES (?,?)", (name, value))

    def load(self, store: Storage, make: MakeEntry) -> None:
        """Load the recorded data into an unused store.

        Args:
            store: receives objects, revision and history.
            make: creates an entry from a bucket's name and its bytes.

        Raises:
            ConfigError: the data can't be read; the file is then closed.
        """
        try:
            state = dict(self._db.execute("SELECT name, value FROM state").fetchall())
            for name, value in state.items():
                if type(value) is not int or not 0 <= value <= _HIGHEST:
                    raise ValueError(f"its {name} is {value!r:.40}")  # noqa: TRY301 - reported below like all other damage
            entries: dict[str, list[Entry]] = {}
            for bucket, data in self._db.execute("SELECT bucket, data FROM objects"):
                entries.setdefault(bucket, []).append(make(bucket, data))
            history = [
                (
                    bucket,
                    StoredChange(
                        StoredChangeType(kind),
                        make(bucket, data),
                        None if previous is None else make(bucket, previous),
                    ),
                )
                for bucket, kind, data, previous in self._db.execute(
                    "SELECT bucket, type, data, previous FROM changes ORDER BY revision"
                )
            ]
        except (sqlite3.Error, ValueError, LookupError, TypeError) as error:
            self.close()
            raise self._refusal(error) from None
        last = history[-1][1].revision if history else 0
        revision = max(state.get("revision", 0), last)
        if revision:
            store.restore(revision, state.get("compacted", 0), entries, history)
