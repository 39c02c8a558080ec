"""State files that are damaged, of another format, or readable by others."""

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from listwatch.objects import Object
from listwatch.observe.changes import Observation, ObservationType
from listwatch.observe.session import exit_code
from listwatch.observe.state import Remembered, StateError, StateFile

BINDING = {"cluster": "c1", "resource": "pods.v1."}
TABLES = ("binding", "checkpoint", "told", "begun")
COLUMNS = {
    "binding": ("name", "value"),
    "checkpoint": ("resource", "version"),
    "told": ("resource", "key", "version", "object"),
    "begun": ("resource", "key", "object"),
}
FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def _told(name: str, version: int) -> Observation:
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": str(version)}
    obj = Object.from_dict(
        {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": {"x": "y" * 300}}
    )
    return Observation(ObservationType.ADDED, f"ns/{name}", obj, position=version)


def _fill(path: Path) -> StateFile:
    file = StateFile(path, BINDING)
    for number in range(1, 40):
        file.begins("pods.v1.", _told(f"p{number}", number))
        if number % 5:
            file.finished("pods.v1.", _told(f"p{number}", number))
    file.reached("pods.v1.", 20)
    return file


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the state files of a finished run and of a killed one."""
    directory = tmp_path_factory.mktemp("good")
    file = _fill(directory / "running")
    for ending in ("", "-wal"):
        shutil.copy(directory / f"running{ending}", directory / f"killed{ending}")
    file.close()
    (directory / "running").rename(directory / "closed")
    return directory


def _open(path: Path) -> Remembered | None:
    """Load the file; return None if it is refused, in one line that names it."""
    try:
        file = StateFile(path, BINDING)
        try:
            return file.load("pods.v1.")
        finally:
            file.close()
    except StateError as error:
        refusal = error
    assert str(path) in str(refusal)
    assert "\n" not in str(refusal)
    assert exit_code(refusal) == 8
    return None


def test_what_was_not_damaged_is_all_there(good: Path, tmp_path: Path) -> None:
    for name, endings in (("closed", ("",)), ("killed", ("", "-wal"))):
        for ending in endings:
            shutil.copy(good / f"{name}{ending}", tmp_path / f"{name}{ending}")
        remembered = _open(tmp_path / name)
        assert remembered is not None
        assert len(remembered.objects) == 39
        assert remembered.version == 20
        assert len(remembered.begun) == 7


@FILES
@given(data=st.data())
def test_any_damage_of_the_bytes_is_one_error_or_none(
    good: Path, tmp_path: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["closed", "killed"]))
    path = tmp_path / "state"
    for ending in ("", "-wal", "-shm", "-journal"):
        (tmp_path / f"state{ending}").unlink(missing_ok=True)
    damaged = data.draw(st.sampled_from(["", "-wal"] if name == "killed" else [""]))
    for ending in ("", "-wal") if name == "killed" else ("",):
        content = bytearray((good / f"{name}{ending}").read_bytes())
        if ending == damaged:
            for _ in range(data.draw(st.integers(1, 6))):
                at = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 200))
                piece = data.draw(st.binary(min_size=1, max_size=300))
                content[at : at + len(piece)] = piece
            if data.draw(st.booleans()):
                del content[data.draw(st.integers(0, len(content))) :]
        (tmp_path / f"state{ending}").write_bytes(content)
    _open(path)


CELLS = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.sampled_from(
        [b"{}", b"[" * 5000, b'{"metadata":{"name":"x"}}', b'{"metadata":{"name":1}}']
    )
)


@FILES
@given(data=st.data())
def test_any_damage_of_the_tables_is_one_error_or_none(
    good: Path, tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "state"
    shutil.copy(good / "closed", path)
    table = data.draw(st.sampled_from(TABLES))
    column = data.draw(st.sampled_from(COLUMNS[table]))
    database = sqlite3.connect(path, isolation_level=None)
    # Names can't be SQL parameters; they are constants of this module.
    match data.draw(st.sampled_from(["cell", "text", "column", "table", "rows"])):
        case "cell":
            cell = data.draw(CELLS)
            with suppress(sqlite3.IntegrityError):  # SQLite itself refuses some values
                database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = 1", (cell,))  # noqa: S608
        case "text":
            database.execute(f"UPDATE {table} SET {column} = CAST(x'ff' || rowid AS TEXT)")  # noqa: S608
        case "column":
            database.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO another")
        case "table":
            database.execute(f"DROP TABLE {table}")
        case "rows":
            database.execute(f"DELETE FROM {table}")  # noqa: S608
    database.close()
    _open(path)


def _of_another_program(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE bookmarks (url TEXT)")
    database.commit()
    database.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Path.mkdir, "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to(path), "symbolic links"),
        (lambda path: path.write_text("kind: Pod\n" * 100), "damaged or not a state file"),
        (lambda path: path.write_bytes(b"\x1f\x8b" + bytes(5000)), "damaged or not a state file"),
        (
            lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(5000)),
            "damaged or not a state",
        ),
        (_of_another_program, "is another kind of database"),
        (lambda path: Path(f"{path}-wal").mkdir(), "state-wal is not a regular file"),
        (lambda path: os.mkfifo(f"{path}-journal"), "state-journal is not a regular file"),
    ],
)
def test_what_is_no_state_file_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[Path], Any], words: str
) -> None:
    path = tmp_path / "state"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    if before is not None:
        path.chmod(0o644)
    with pytest.raises(StateError, match=words):
        StateFile(path, BINDING)
    if before is not None:
        assert path.read_bytes() == before
        assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_file_whose_binding_is_gone_is_not_taken_for_a_new_one(
    good: Path, tmp_path: Path
) -> None:
    path = tmp_path / "state"
    shutil.copy(good / "closed", path)
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM binding")
    database.close()
    with pytest.raises(StateError, match="damaged: its owner is not recorded; move it away"):
        StateFile(path, BINDING)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_all_files_of_a_state_are_its_owners_alone_whatever_the_umask(
    tmp_path: Path, mask: int
) -> None:
    before = os.umask(mask)
    try:
        file = _fill(tmp_path / "state")
    finally:
        os.umask(before)
    assert file.warning == ""
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"state": 0o600, "state-wal": 0o600}
    file.close()


def test_a_file_that_others_could_read_is_tightened_with_a_warning(
    good: Path, tmp_path: Path
) -> None:
    path = tmp_path / "state"
    for ending in ("", "-wal"):
        shutil.copy(good / f"killed{ending}", tmp_path / f"state{ending}")
        (tmp_path / f"state{ending}").chmod(0o644)
    file = StateFile(path, BINDING)
    assert file.warning.startswith(f"{path} had mode 0644, which let others read it")
    assert f"{path}-wal had mode 0644" in file.warning
    assert [stat.S_IMODE(found.stat().st_mode) for found in tmp_path.iterdir()] == [0o600] * 2
    file.close()
    file = StateFile(path, BINDING)
    assert file.warning == ""
    file.close()
