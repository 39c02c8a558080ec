"""Replay recorded scenarios with webhooks, using the recordings' runner and scripted server."""

import asyncio
import gzip
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance_replay import FOLDER, TOKENS
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.access.auth import read_tokens
from listwatch.apiserver.http.request_log import RecordedRequest

_FEATURES = ("rbac", "impersonation")
#: Number of concurrent runners, each with its own webhook server.
_RUNNERS = 4
_INDEX = re.compile(r"_index_\d+$")


def scenarios(theme: str) -> dict[str, dict[str, Any]]:
    """Return the scenarios of `conversion` or `webhooks`, by `file/id`."""
    found = {}
    for path in sorted((FOLDER / theme).glob("*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        for scenario in document["scenarios"]:
            found[f"{path.name.removesuffix('.json.gz')}/{scenario['id']}"] = scenario
    return found


def replay(chosen: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Replay scenarios on a new server and return the differences by name."""
    return asyncio.run(_replay(chosen))


async def _replay(chosen: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    tokens = read_tokens(TOKENS.replace(",1,", ",uid-admin,"), "tokens")
    server = EmbeddedAPIServer(tokens=tokens, controllers=False, test_api=True)
    names = list(chosen)
    async with server:
        server.record_requests()
        with tempfile.TemporaryDirectory() as folder:
            parts = [names[number::_RUNNERS] for number in range(_RUNNERS)]
            paths = [Path(folder, f"{number}.yaml") for number in range(_RUNNERS)]
            for path, part in zip(paths, parts, strict=True):
                # JSON is YAML, and much faster to write.
                kept = [_without_audit(chosen[name]) for name in part]
                path.write_text(json.dumps({"scenarios": kept}))
            runs = zip(paths, parts, strict=True)
            found = await asyncio.gather(*(_run(server.url, *each, chosen) for each in runs))
    unlike = {
        name: "audited otherwise"
        for name, scenario in chosen.items()
        if not _audited(scenario, server.requests)
    }
    return unlike | {name: text for part in found for name, text in part.items()}


def _without_audit(scenario: dict[str, Any]) -> dict[str, Any]:
    """Remove audit annotations from a scenario: the runner can't read an audit log."""
    needs = [each for each in scenario.get("requires", ()) if each != "audit"]
    return {
        **scenario,
        "requires": needs,
        "steps": [{key: step[key] for key in step if key != "audit"} for step in scenario["steps"]],
    }


def _audited(scenario: dict[str, Any], requests: Sequence[RecordedRequest]) -> bool:
    """Return True if the audit annotations match the recorded ones."""
    steps = [step for step in scenario["steps"] if step.get("audit")]
    wanted = json.dumps([step["expect"]["audit"] for step in steps])
    found: dict[str, list[dict[str, str]]] = {}
    for each in requests:
        if each.verb == "create" and each.resource == "configmaps" and "dryRun" not in each.query:
            # The index of a mutating webhook depends on the other scenarios' webhooks.
            noted = {_INDEX.sub("_index_0", key): text for key, text in each.annotations.items()}
            found.setdefault(each.namespace, []).append(noted)
    # Each scenario has its own namespace; its random suffix is that of all names in it.
    return not steps or any(
        annotations == json.loads(wanted.replace("${id}", namespace.removeprefix("ns-")))
        for namespace, annotations in found.items()
    )


async def _run(
    url: str, path: Path, names: list[str], chosen: Mapping[str, dict[str, Any]]
) -> dict[str, str]:
    arguments = [path, "--base-url", url, "--token", "admin-token", "--user2-token", "alice-token"]
    for feature in _FEATURES:
        arguments += ["--have", feature]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(FOLDER / "hooks.py"),
        *map(str, arguments),
        "--json",
        "--ignore",
        "wording",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    output, _ = await process.communicate()
    report, _ = json.JSONDecoder().raw_decode(output.decode())
    results = [each for each in report["results"] if each["result"] != "skipped"]
    by_id = {chosen[name]["id"]: name for name in names}
    return {
        by_id[each["id"].partition("/")[2]]: json.dumps(each["diffs"][:3])
        for each in results
        if each["result"] == "failed"
    }
