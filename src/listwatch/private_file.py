"""Files that only their owner can read, for objects and credentials."""

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from listwatch.errors import ListWatchError

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OWNER: Final = stat.S_IRUSR | stat.S_IWUSR
#: Suffixes of the files that SQLite creates next to a database, with the database's mode.
SQLITE_COMPANIONS: Final = ("-wal", "-shm", "-journal")


class PrivateFileError(ListWatchError):
    """A path is unusable as a private file; the message names it and says what to do."""


def create_private(path: Path, companions: Sequence[str] = ()) -> bool:
    """Create an empty file with mode 0600, whatever the umask, unless it exists.

    An existing file is neither opened, because that would release this process's locks on it, nor
    changed: see `tighten`.

    Args:
        path: the file; a symbolic link is followed.
        companions: suffixes of files next to it, which must be regular files if they exist.

    Returns:
        Whether it was created.

    Raises:
        PrivateFileError: the path, or a companion, exists and is not a regular file.
        OSError: the file can't be created or inspected.
    """
    path = Path(os.path.realpath(path))
    for beside in (path.with_name(path.name + ending) for ending in companions):
        # SQLite would block on a FIFO for ever, ignoring signals, and write into a link's target.
        if os.path.lexists(beside) and not stat.S_ISREG(beside.lstat().st_mode):
            raise PrivateFileError(f"{beside} is not a regular file; move it away")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _OWNER)
    except FileExistsError:
        if not stat.S_ISREG(path.stat().st_mode):
            raise PrivateFileError(f"{path} is not a regular file; name another") from None
        return False
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, _OWNER)  # a umask can remove the owner's own permissions
    finally:
        os.close(descriptor)
    return True


@contextmanager
def file_of(content: bytes) -> Iterator[str]:
    """Provide the path of a file with this content, for libraries that read only files.

    On Linux the file is in memory. Elsewhere it is in a private temporary directory, and removed at
    the end of the block.
    """
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("listwatch"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.TemporaryDirectory(prefix="listwatch-") as directory:  # mode 0700
        path = Path(directory, "content")
        create_private(path)
        path.write_bytes(content)
        yield str(path)


def tighten(path: Path, companions: Sequence[str] = ()) -> str:
    """Remove all permissions on a file except the owner's.

    Args:
        path: the file; a symbolic link is followed.
        companions: suffixes of files next to it that are treated alike if they exist.

    Returns:
        One line for the user if others could read something; otherwise an empty string.

    Raises:
        PrivateFileError: the mode can't be changed.
        OSError: a file can't be inspected.
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
            f" ({error.strerror}); use your own file"
        ) from error
    if not status.st_size:
        return ""  # there was nothing to read
    return f"{path} had mode {mode:04o}, which let others read it; the mode is now {private:04o}"
