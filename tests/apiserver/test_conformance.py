"""The server behaves like the recorded real one."""

import asyncio

import pytest

from conformance_replay import FOLDER, TOKENS, replay, scenarios
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.access.auth import read_tokens
from listwatch.clock import Clock

pytestmark = pytest.mark.timeout(240)

_CHOSEN = scenarios()


class _OneSecond(Clock):
    """Stand still: managedFields are sorted by time, and were recorded within one second."""

    def time(self) -> float:
        return 1_700_000_000.0


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """Replay all scenarios on one server; each test checks its own."""

    async def run() -> dict[str, str]:
        tokens = read_tokens(TOKENS, "tokens")
        server = EmbeddedAPIServer(
            tokens=tokens, controllers=False, test_api=True, clock=_OneSecond()
        )
        async with server:
            return await asyncio.to_thread(replay, server.url, _CHOSEN)

    return asyncio.run(run())


@pytest.mark.parametrize("name", list(_CHOSEN))
def test_a_recorded_scenario_passes(name: str, results: dict[str, str]) -> None:
    assert not results[name], results[name]


def test_every_file_of_recordings_is_replayed() -> None:
    files = {path.stem for path in (FOLDER / "scenarios").glob("*.yaml")}
    assert {name.partition("/")[0] for name in _CHOSEN} == files
