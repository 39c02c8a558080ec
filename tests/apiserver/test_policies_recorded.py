"""Policies act as on the recorded real server."""

import asyncio
import json
from typing import Any, NamedTuple

import pytest

from conformance_replay import TOKENS, replay, scenarios
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.access.auth import read_tokens
from listwatch.apiserver.http.request_log import RecordedRequest

pytestmark = pytest.mark.timeout(120)

_CHOSEN = scenarios(folder="policies")
_AUDITED = [name for name, each in _CHOSEN.items() if "audit" in each.get("requires", ())]


def _without_waiting(scenario: dict[str, Any]) -> dict[str, Any]:
    """Remove the pauses that a real server's caches need."""
    return {**scenario, "steps": [step for step in scenario["steps"] if "sleep" not in step]}


class _Replayed(NamedTuple):
    differences: dict[str, str]
    requests: list[RecordedRequest]


@pytest.fixture(scope="module")
def replayed() -> _Replayed:
    """Replay all scenarios on one server; each test checks its own."""

    async def run() -> _Replayed:
        server = EmbeddedAPIServer(
            tokens=read_tokens(TOKENS, "tokens"), controllers=False, test_api=True
        )
        chosen = {name: _without_waiting(each) for name, each in _CHOSEN.items()}
        async with server:
            server.record_requests()
            differences = await asyncio.to_thread(replay, server.url, chosen)
            return _Replayed(differences, server.requests)

    return asyncio.run(run())


@pytest.mark.parametrize("name", list(_CHOSEN))
def test_a_recorded_scenario_passes(name: str, replayed: _Replayed) -> None:
    assert not replayed.differences[name], replayed.differences[name]


@pytest.mark.parametrize("name", _AUDITED)
def test_the_audit_of_a_recorded_scenario_is_the_same(name: str, replayed: _Replayed) -> None:
    steps = _CHOSEN[name]["steps"]
    recorded = json.dumps([step["expect"]["audit"] for step in steps if step.get("audit")])
    found: dict[str, list[dict[str, str]]] = {}
    for each in replayed.requests:
        if each.verb == "create" and each.resource == "configmaps" and "dryRun" not in each.query:
            found.setdefault(each.namespace, []).append(dict(each.annotations))
    # Each scenario has its own namespace; its random suffix is that of all names in it.
    matching = [
        namespace
        for namespace, annotations in found.items()
        if annotations == json.loads(recorded.replace("${id}", namespace.removeprefix("ns-")))
    ]
    assert len(matching) == 1, recorded


def test_all_recordings_are_replayed() -> None:
    assert (len(_CHOSEN), len(_AUDITED)) == (42, 5)
