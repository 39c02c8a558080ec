"""A directory that outlives its process, for the next one that does the same work."""

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from listwatch.clock import Clock
from listwatch.controllers.services.provider import ProviderError

#: Seconds to wait for the previous owner of a directory to end.
TAKE_OVER_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1
# Locked while the owner lives; contains its process ID.
_OWNER: Final = "owner"
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class DirectoryError(ProviderError):
    """A directory is unusable as a runtime directory; the message names it and says what to do."""


def default_directory(name: str) -> Path:
    """Return the path of a directory for files that last until the machine restarts.

    It is in /run for root, in $XDG_RUNTIME_DIR for other users, or else in the temporary directory.
    """
    if os.geteuid() == 0:
        return Path("/run/listwatch") / name
    if user := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(user) / "listwatch" / name
    return Path(tempfile.gettempdir()) / f"listwatch-{os.geteuid()}" / name


@asynccontextmanager
async def kept_directory(path: Path, clock: Clock) -> AsyncIterator[Path]:
    """Own a directory, created if necessary, which stays at the end with its files.

    Waits up to `TAKE_OVER_SECONDS` for another owner to end.

    Args:
        path: the directory.
        clock: the time.

    Raises:
        DirectoryError: another process or user has the directory, or it can't be created.
    """
    try:
        _create(path.parent.resolve(), {0, os.geteuid()})
        _create(path, {os.geteuid()})
        descriptor = os.open(path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DirectoryError(
            f"runtime directory {path}: {error.strerror or error}; choose another with "
            "--runtime-directory"
        ) from error
    try:
        await _lock(descriptor, path, clock)
        with contextlib.suppress(OSError):  # a full disk; the number is only for messages
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield path
    finally:
        os.close(descriptor)


def _create(path: Path, owners: Collection[int]) -> None:
    """Create a directory, unless it exists and only its owner can replace files in it."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a directory")
    if status.st_uid not in owners:
        raise PermissionError(errno.EPERM, f"{path} belongs to user {status.st_uid}")
    if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        raise PermissionError(errno.EPERM, f"others can write to {path}")


async def _lock(descriptor: int, path: Path, clock: Clock) -> None:
    give_up_at = clock.now() + TAKE_OVER_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.now() >= give_up_at:
                owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
                raise DirectoryError(
                    f"runtime directory {path} is in use by process {owner}: stop that process, or "
                    "choose another directory with --runtime-directory"
                ) from None
        else:
            return
        await clock.sleep(_POLL_SECONDS)
