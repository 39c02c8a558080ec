"""What the start of a server loads: modules that no first request needs would slow every start."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

_PROGRAM = """
import asyncio, json, sys, urllib.request
from listwatch.apiserver.command import apiserver_command
from listwatch.apiserver import EmbeddedAPIServer

async def main():
    async with EmbeddedAPIServer() as server:
        server.kubeconfig()
        loaded = set(sys.modules)
        url = server.url + "/api/v1/namespaces"
        with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
            assert len(json.load(answer)["items"]) == 4
    print(json.dumps([sorted(loaded), sorted(sys.modules)]))

asyncio.run(main())
"""
#: Packages, and modules of this project, with all that is in them.
_UNUSED = (
    "aiohttp.web",
    "concurrent.futures.process",
    "google",
    "lark",
    "prometheus_client",
    "re2",
    "rich",
    "sqlite3",
    "trustme",
    "yaml",
    "zoneinfo",
    "listwatch.apiserver.control",
    "listwatch.apiserver.http.protobuf",
    "listwatch.apiserver.kinds.admission_policies",
    "listwatch.apiserver.kinds.autoscaling",
    "listwatch.apiserver.kinds.container_rules",
    "listwatch.apiserver.kinds.jobs",
    "listwatch.apiserver.kinds.networking",
    "listwatch.apiserver.kinds.nodes",
    "listwatch.apiserver.kinds.pods",
    "listwatch.apiserver.kinds.volumes",
    "listwatch.apiserver.kinds.workloads",
    "listwatch.apiserver.replica",
    "listwatch.apiserver.storage.journal",
    "listwatch.apiserver.workloads.loop",
    "listwatch.cel.parser",
    "listwatch.client",
    "listwatch.runtime",
    "listwatch.testing",
)


@cache
def _loaded() -> tuple[frozenset[str], frozenset[str]]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        # Measuring coverage loads modules of its own.
        env={name: value for name, value in os.environ.items() if "COVERAGE" not in name},
        capture_output=True,
        text=True,
        check=True,
    )
    started, answered = json.loads(done.stdout)
    return frozenset(started), frozenset(answered)


@pytest.mark.parametrize("name", _UNUSED)
def test_a_server_starts_without(name: str) -> None:
    started, _ = _loaded()
    assert [each for each in started if each == name or each.startswith(f"{name}.")] == []


def test_a_first_list_loads_nothing_more() -> None:
    started, answered = _loaded()
    late = {name for name in answered - started if name.startswith("listwatch")}
    assert late == set()
