"""A process's private directory, removed by a later process if its owner was killed."""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_logger = logging.getLogger(__name__)

# Locked while the owner lives: the kernel releases the lock however the owner ends.
_OWNER: Final = "owner"


@contextmanager
def private_directory(prefix: str) -> Iterator[Path]:
    """Create a directory that is removed at the end; remove those whose owners are dead.

    Args:
        prefix: prefix of its name; all directories with that prefix count as ours.
    """
    _remove_leftovers(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        directory = Path(name)
        new = directory / f"{_OWNER}.new"
        with new.open("w") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            # Name it only once it is locked: no other process may consider us dead.
            new.replace(directory / _OWNER)
            yield directory


def _remove_leftovers(prefix: str) -> None:
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
                continue
            with (directory / _OWNER).open() as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory)
        except (FileNotFoundError, BlockingIOError):
            continue  # already removed, not ours, or in use
        except OSError as error:
            _logger.warning(
                "cannot remove %s, left behind by a killed program: %s", directory, error
            )
