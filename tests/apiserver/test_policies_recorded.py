"""Policies act as a real server was recorded to let them act."""

import asyncio

import pytest

from conformance_replay import TOKENS, replay, scenarios
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.access.auth import read_tokens

pytestmark = pytest.mark.timeout(120)

_CHOSEN = scenarios(folder="policies")


def _without_waiting(scenario: dict[str, object]) -> dict[str, object]:
    """Return a scenario without the pauses that a real server's caches need."""
    steps = scenario["steps"]
    assert isinstance(steps, list)
    kept = [step for step in steps if "sleep" not in step]
    return {**scenario, "steps": kept}


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """Replay all scenarios at once on one server; each test then looks at its own."""

    async def run() -> dict[str, str]:
        server = EmbeddedAPIServer(
            tokens=read_tokens(TOKENS, "tokens"), controllers=False, test_api=True
        )
        chosen = {name: _without_waiting(each) for name, each in _CHOSEN.items()}
        async with server:
            return await asyncio.to_thread(replay, server.url, chosen)

    return asyncio.run(run())


@pytest.mark.parametrize("name", list(_CHOSEN))
def test_a_recorded_scenario_passes(name: str, results: dict[str, str]) -> None:
    assert not results[name], results[name]


def test_all_recordings_are_replayed() -> None:
    assert len(_CHOSEN) == 42
