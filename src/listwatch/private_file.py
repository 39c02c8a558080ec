"""Files that only their owner can read, for objects and credentials."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from listwatch.errors import ListWatchError

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OWNER: Final = stat.S_IRUSR | stat.S_IWUSR
#: What SQLite writes beside a database. It gives a new one the database's mode.
SQLITE_COMPANIONS: Final = ("-wal", "-shm", "-journal")


class PrivateFileError(ListWatchError):
    """A path that can't be used as a private file; the message names it and the remedy."""


def create_private(path: Path, companions: Sequence[str] = ()) -> bool:
    """Create an empty file with mode 0600, whatever the umask, unless there is one.

    An existing file is neither opened, which would end this process's locks on it, nor changed:
    see `tighten`.

    Args:
        path: the file; a symbolic link is followed.
        companions: endings of files beside it, which must be regular files where they exist.

    Returns:
        Whether it was created.

    Raises:
        PrivateFileError: the path, or a companion, exists and is not a regular file.
        OSError: the file can't be created or looked at.
    """
    path = Path(os.path.realpath(path))
    for beside in (path.with_name(path.name + ending) for ending in companions):
        # SQLite would wait at a FIFO for ever, deaf to signals, and write into what a link names.
        if os.path.lexists(beside) and not stat.S_ISREG(beside.lstat().st_mode):
            raise PrivateFileError(f"{beside} is not a regular file; move it away")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, _OWNER)
    except FileExistsError:
        if not stat.S_ISREG(path.stat().st_mode):
            raise PrivateFileError(f"{path} is not a regular file; name another") from None
        return False
    try:
        os.fchmod(descriptor, _OWNER)  # a umask can take the owner's own rights
    finally:
        os.close(descriptor)
    return True


def tighten(path: Path, companions: Sequence[str] = ()) -> str:
    """Take the rights of everybody but the owner away from a file.

    Args:
        path: the file; a symbolic link is followed.
        companions: endings of files beside it that are treated alike where they exist.

    Returns:
        One line for the user when others could read something; else an empty string.

    Raises:
        PrivateFileError: the mode can't be changed.
        OSError: a file can't be looked at.
    """
    path = Path(os.path.realpath(path))
    beside = [path.with_name(path.name + ending) for ending in companions]
    files = [path, *(file for file in beside if file.exists())]
    return "; ".join(words for file in files if (words := _tighten(file)))


def _tighten(path: Path) -> str:
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    private = mode & ~_OTHERS
    if mode == private:
        return ""
    try:
        path.chmod(private)
    except OSError as error:
        raise PrivateFileError(
            f"{path} has mode {mode:04o}, which lets others read it, and the mode can't be changed"
            f" ({error.strerror}); use a file of your own"
        ) from error
    if not status.st_size:
        return ""  # there was nothing to read
    return f"{path} had mode {mode:04o}, which let others read it; the mode is now {private:04o}"
