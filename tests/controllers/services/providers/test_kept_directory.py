"""A runtime directory belongs to one process of one user at a time."""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from listwatch.clock import FakeClock
from listwatch.controllers.services.providers.kept_directory import (
    TAKE_OVER_SECONDS,
    DirectoryError,
    default_directory,
    kept_directory,
)


async def test_it_stays_with_its_files(tmp_path: Path) -> None:
    path = tmp_path / "listwatch" / "haproxy"
    async with kept_directory(path, FakeClock()) as directory:
        assert directory == path
        (path / "file").write_text("kept")
        assert [p.stat().st_mode & 0o777 for p in (path.parent, path, path / "owner")] == [
            0o700,
            0o700,
            0o600,
        ]
    async with kept_directory(path, FakeClock()):
        assert (path / "file").read_text() == "kept"


async def test_the_next_waits_for_the_end_of_the_previous(tmp_path: Path) -> None:
    clock = FakeClock()
    path = tmp_path / "haproxy"
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        await first.enter_async_context(kept_directory(path, clock))
        waiting = asyncio.create_task(second.enter_async_context(kept_directory(path, clock)))
        await clock.advance(TAKE_OVER_SECONDS / 2)
        assert not waiting.done()
        await first.aclose()
        await clock.advance(1)
        assert await waiting == path


async def test_who_has_it_is_told_if_it_does_not_end(tmp_path: Path) -> None:
    clock = FakeClock()
    path = tmp_path / "haproxy"
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        await first.enter_async_context(kept_directory(path, clock))
        waiting = asyncio.create_task(second.enter_async_context(kept_directory(path, clock)))
        await clock.advance(TAKE_OVER_SECONDS + 1)
        with pytest.raises(DirectoryError, match=rf"in use by process {os.getpid()}: stop that"):
            await waiting


async def _refusal(path: Path) -> str:
    with pytest.raises(DirectoryError) as caught:
        async with kept_directory(path, FakeClock()):
            pass
    assert str(caught.value).endswith("; choose another with --runtime-directory")
    return str(caught.value)


async def test_others_must_not_be_able_to_replace_files(tmp_path: Path) -> None:
    path = tmp_path / "haproxy"
    path.mkdir()
    path.chmod(0o777)
    assert "others can write to" in await _refusal(path)
    path.chmod(0o700)
    path.parent.chmod(0o777)
    assert f"others can write to {tmp_path}" in await _refusal(path)
    path.parent.chmod(0o1777)  # like /tmp: only owners replace files
    async with kept_directory(path, FakeClock()):
        pass


async def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "haproxy"
    path.mkdir()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert f"belongs to user {owner}" in await _refusal(path)


async def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real")
    assert "is not a directory" in await _refusal(link)
    file = tmp_path / "file"
    file.touch()
    assert "is not a directory" in await _refusal(file)
    assert "No such file or directory" in await _refusal(tmp_path / "a" / "b" / "c")


def test_the_default_is_in_a_place_that_does_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_directory("x") == Path("/run/listwatch/x")
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1234")
    assert default_directory("x") == Path("/run/user/1234/listwatch/x")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_directory("x").parent.name == "listwatch-1234"
