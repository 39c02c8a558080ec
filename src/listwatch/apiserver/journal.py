"""A file that keeps a store's objects, resource version and history: SQLite with a log ahead."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from listwatch.apiserver.storage import Change, ChangeType, Entry, Store
from listwatch.errors import ConfigError

_APPLICATION = 0x4C57_4150  # "LWAP"
_FORMAT = 1
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
    """Keeps each commit in a file before anybody sees it.

    Each change is one transaction, so that a killed process leaves either all of it or nothing. A
    power failure may lose the last ones, never the file. For the thread of the store.

    Raises:
        ConfigError: the file is damaged, of something else, or in use by another process; it is
            left as it is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = self._open()
        except sqlite3.Error as error:
            self.close()
            raise self._refusal(error) from None
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
        if self._path.exists():
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
            # new, or left so by a process that was killed before it was done with this
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
            execute("PRAGMA journal_mode=WAL")
            execute("BEGIN EXCLUSIVE")
            execute("COMMIT")
        execute("PRAGMA synchronous=NORMAL")
        return connection

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ConfigError(f"{self._path} was closed")
        return self._connection

    def close(self) -> None:
        """Let the file go. Harmless when called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def record(self, bucket: str, change: Change, key: str) -> None:
        """Keep a change."""
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        try:
            if change.type is ChangeType.DELETED:
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
            execute("COMMIT")
        except BaseException:
            self._db.rollback()
            raise

    def record_compaction(self, revision: int) -> None:
        """Forget the history up to a revision."""
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        try:
            last = execute("SELECT max(revision) FROM changes").fetchone()[0] or 0
            execute("DELETE FROM changes WHERE revision<=?", (revision,))
            for name, value in (("compacted", revision), ("revision", max(last, revision))):
                execute("INSERT OR REPLACE INTO state VALUES (?,?)", (name, value))
            execute("COMMIT")
        except BaseException:
            self._db.rollback()
            raise

    def load(self, store: Store, make: MakeEntry) -> None:
        """Put into an unused store what was kept.

        Args:
            store: gets objects, revision and history.
            make: makes an entry of a bucket's name and its bytes.

        Raises:
            ConfigError: what was kept can't be read.
        """
        try:
            state = dict(self._db.execute("SELECT name, value FROM state").fetchall())
            entries: dict[str, list[Entry]] = {}
            for bucket, data in self._db.execute("SELECT bucket, data FROM objects"):
                entries.setdefault(bucket, []).append(make(bucket, data))
            history = [
                (
                    bucket,
                    Change(
                        ChangeType(kind),
                        make(bucket, data),
                        None if previous is None else make(bucket, previous),
                    ),
                )
                for bucket, kind, data, previous in self._db.execute(
                    "SELECT bucket, type, data, previous FROM changes ORDER BY revision"
                )
            ]
        except (sqlite3.Error, ValueError, LookupError, TypeError) as error:
            raise self._refusal(error) from None
        last = history[-1][1].revision if history else 0
        revision = max(state.get("revision", 0), last)
        if revision:
            store.restore(revision, state.get("compacted", 0), entries, history)
