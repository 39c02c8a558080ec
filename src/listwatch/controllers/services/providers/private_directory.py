"""A directory of one process, which a later one removes where its owner was killed."""

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

# Locked as long as the owner lives: the kernel lets go of it however that ends.
_OWNER: Final = "owner"


@contextmanager
def private_directory(prefix: str) -> Iterator[Path]:
    """Make a directory that is gone at the end; remove those whose owners are dead.

    Args:
        prefix: how its name begins; all directories of that prefix are taken for ours.
    """
    _remove_leftovers(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        directory = Path(name)
        new = directory / f"{_OWNER}.new"
        with new.open("w") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            # It has its name only once it is locked, so that nobody takes us for dead.
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
            continue  # removed by somebody else meanwhile, not one of ours, or in use
        except OSError as error:
            _logger.warning(
                "cannot remove %s, left behind by a killed program: %s", directory, error
            )
