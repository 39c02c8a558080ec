"""Messages of `make` when it can't continue."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: An interpreter whose version is too old, as far as make can see.
OLD = """#!/bin/sh
[ "$1" = -V ] && echo "Python 3.10.13"
"""


def _make(python: str, tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["make", "test", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("there", [True, False])
def test_an_old_or_missing_python_is_one_clear_line(tmp_path: Path, *, there: bool) -> None:
    python = tmp_path / "python3.10"
    if there:
        python.write_text(OLD, encoding="utf-8")
        python.chmod(0o755)
    done = _make(str(python), tmp_path)
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        f"listwatch needs Python 3.11 or newer, and '{python}' is "
        f"{'Python 3.10.13' if there else 'not here'}; try: make PYTHON=python3.13 test"
    )
    assert not (tmp_path / "venv").exists()
