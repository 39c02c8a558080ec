"""The server answers the further recordings of a real one as before; known differences are listed.

The list is `differing.txt` beside the recordings. `python tools/recorded.py` replays them all and
rewrites the list, and the table in docs/testing.md.
"""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance_replay import TOKENS, differing, recorded, replay, themes
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.access.auth import read_tokens

pytestmark = pytest.mark.timeout(240)

_TOOL = Path(__file__).parents[2] / "tools" / "recorded.py"
_EVERY = 8
"""`make test` replays one of so many scenarios of a theme; they share a server."""
_HINT = "run `python tools/recorded.py`, which takes them from the list, and commit what it writes"


def _compare(chosen: dict[str, dict[str, Any]]) -> None:
    """Replay scenarios on one server and compare the differences with the list."""

    async def run() -> dict[str, str]:
        tokens = read_tokens(TOKENS, "tokens")
        async with EmbeddedAPIServer(tokens=tokens, controllers=False, test_api=True) as server:
            return await asyncio.to_thread(replay, server.url, chosen, ignore_wording=True)

    found = {name: text for name, text in asyncio.run(run()).items() if text}
    listed = differing() & chosen.keys()
    newly = {name: text for name, text in found.items() if name not in listed}
    assert not newly, "\n".join(f"{name}: {text}" for name, text in newly.items())
    assert not listed - found.keys(), f"answered as recorded by now: {_HINT}"


def test_a_sample_is_answered_as_recorded() -> None:
    chosen: dict[str, dict[str, Any]] = {}
    for theme in themes():
        chosen.update(list(recorded(theme).items())[::_EVERY])
    _compare(chosen)


@pytest.mark.proof
@pytest.mark.parametrize("theme", themes())
def test_all_of_a_theme_is_answered_as_recorded(theme: str) -> None:
    _compare(recorded(theme))


def test_the_list_names_recordings() -> None:
    assert differing() <= {name for theme in themes() for name in recorded(theme)}


def test_the_table_of_the_documentation_is_current() -> None:
    checked = subprocess.run(
        [sys.executable, str(_TOOL), "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
