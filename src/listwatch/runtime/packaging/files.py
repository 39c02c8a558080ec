"""Writes generated files, and tells them from those of others."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from listwatch.errors import ConfigError

_HEADER: Final = re.compile(r"# Made by `listwatch manifests`: ([0-9a-f]{16})\n")


def write_generated(
    directory: Path, texts: Mapping[str, str], *, force: bool = False
) -> list[Path]:
    """Write files, each with a header, and delete earlier ones that are no longer made.

    Args:
        directory: made if it is missing.
        texts: by path below the directory.
        force: overwrite files of others, and files that were changed by hand.

    Returns:
        The written files.

    Raises:
        ConfigError: a file would be overwritten that was not made this way, or was changed since;
            then nothing is written.
        OSError: a file can't be written.
    """
    files = {directory / name: _with_header(text) for name, text in texts.items()}
    if not force:
        foreign = [path for path in files if path.exists() and not is_generated(path)]
        if foreign:
            raise ConfigError(
                f"{foreign[0]} was not made by `listwatch manifests`, or was changed since: "
                "nothing was written; move it away, or overwrite with --force"
            )
    folders = {path.parent for path in files}
    stale = {path for folder in folders for path in folder.glob("*.yaml") if is_generated(path)}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in sorted(stale - files.keys()):
        path.unlink()
    return list(files)


def is_generated(path: Path) -> bool:
    """Return whether a file has been generated and is unchanged."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    found = _HEADER.match(text)
    return found is not None and found[1] == _digest(text[found.end() :])


def _with_header(text: str) -> str:
    return f"# Made by `listwatch manifests`: {_digest(text)}\n{text}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
