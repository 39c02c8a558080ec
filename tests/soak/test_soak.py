"""A short run of the soak."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.proof
@pytest.mark.timeout(400)
def test_nothing_is_lost_in_a_minute_of_everything() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "soak", "1"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True, text=True, timeout=390, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost, invented, out of order" in done.stdout
