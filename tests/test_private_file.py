"""New files are created with mode 0600; an existing file keeps its mode."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from listwatch.private_file import PrivateFileError, create_private, tighten


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277, 0o777])
def test_a_new_file_is_its_owners_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    with _umask(mask):
        assert create_private(tmp_path / "new")
    assert _mode(tmp_path / "new") == 0o600


def test_an_existing_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_text("words")
    path.chmod(0o644)
    assert not create_private(path)
    assert (path.read_text(), _mode(path)) == ("words", 0o644)


def test_a_dangling_link_makes_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert create_private(tmp_path / "link")
    assert _mode(tmp_path / "target") == 0o600
    assert not create_private(tmp_path / "link")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_file_is_named(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "odd")
    with pytest.raises(PrivateFileError, match="is not a regular file; name another"):
        create_private(tmp_path / "odd")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("new-x")])
def test_what_is_no_file_beside_it_is_named_before_the_file_is_made(
    tmp_path: Path, make: object
) -> None:
    assert callable(make)
    make(tmp_path / "new-journal")
    with pytest.raises(PrivateFileError, match="new-journal is not a regular file; move it away"):
        create_private(tmp_path / "new", ["-wal", "-journal"])
    assert not (tmp_path / "new").exists()


def test_tightening_names_each_file_that_others_could_read(tmp_path: Path) -> None:
    path, beside = tmp_path / "old", tmp_path / "old-wal"
    empty = tmp_path / "old-shm"
    for file, mode, text in ((path, 0o664, "x"), (beside, 0o604, "x"), (empty, 0o644, "")):
        file.write_text(text)
        file.chmod(mode)
    warning = tighten(path, ("-wal", "-shm"))
    assert warning == (
        f"{path} had mode 0664, which let others read it; the mode is now 0600; "
        f"{beside} had mode 0604, which let others read it; the mode is now 0600"
    )
    assert [_mode(file) for file in (path, beside, empty)] == [0o600] * 3
    assert tighten(path, ("-wal", "-shm")) == ""


def test_a_mode_that_cannot_be_changed_is_an_error_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old"
    path.touch()
    path.chmod(0o644)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    with pytest.raises(PrivateFileError, match=r"mode 0644.*not permitted.*your own file"):
        tighten(path)
