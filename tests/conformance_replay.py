"""Replay recorded scenarios on a server, many at a time."""

import argparse
import fnmatch
import gc
import gzip
import importlib.util
import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent / "data" / "conformance"
RECORDED = FOLDER / "recorded"
DIFFERING = RECORDED / "differing.txt"
FEATURES = (
    "anonymous",
    "audit",
    "rbac",
    "impersonation",
    "reviews",
    "protobuf",
    "validation",
    "crd-validation",
    "apply-core",
    "garbage-collection",
    "pod-grace",
    "binding",
    "legacy-watch",
    "no-namespace-controller",
)
TOKENS = 'admin-token,admin,1,"system:masters"\nalice-token,alice,alice-uid,"devs,staff"\n'


def runner_module() -> ModuleType:
    """Load the recordings' runner, a script outside any package."""
    spec = importlib.util.spec_from_file_location("conformance_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scenarios(pattern: str = "*", folder: str = "scenarios") -> dict[str, dict[str, Any]]:
    """Return the scenarios of a folder whose `file/id` matches, by that name."""
    found = {}
    for path in sorted((FOLDER / folder).glob("*.yaml")):
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        document = yaml.load(path.read_bytes(), loader)  # noqa: S506 - a safe loader, in C
        for scenario in document["scenarios"]:
            name = f"{path.stem}/{scenario['id']}"
            if fnmatch.fnmatch(name, pattern):
                found[name] = scenario
    return found


def recorded(theme: str) -> dict[str, dict[str, Any]]:
    """Return the further scenarios of a theme, by `theme/id`."""
    document = json.loads(gzip.decompress((RECORDED / f"{theme}.json.gz").read_bytes()))
    return {f"{theme}/{scenario['id']}": scenario for scenario in document["scenarios"]}


def themes() -> list[str]:
    """Return the themes of the further scenarios, in order."""
    return sorted(path.name.removesuffix(".json.gz") for path in RECORDED.glob("*.json.gz"))


def differing() -> set[str]:
    """Return the names of further scenarios with known differences."""
    return set(DIFFERING.read_text().split())


def replay(
    url: str,
    chosen: dict[str, dict[str, Any]],
    *,
    workers: int = 24,
    ignore_wording: bool = False,
) -> dict[str, str]:
    """Replay scenarios on a server; return the differences of each, "" if there are none.

    With `ignore_wording`, the words of messages may differ.
    """
    module = runner_module()
    options = argparse.Namespace(
        base_url=url,
        token="admin-token",
        user2_token="alice-token",
        ca=None,
        insecure=False,
        have=list(FEATURES),
        skip=None,
        etcd=None,
        compact_url=f"{url}/-/compact",
        compact_cmd=None,
        var=None,
        time_scale=3.0,
        keep_going=False,
        debug=False,
        classes=True,
        ignore=["wording"] if ignore_wording else [],
    )

    def run(item: tuple[str, dict[str, Any]]) -> tuple[str, str]:
        name, scenario = item
        try:
            differences = module.Runner(options).scenario(scenario)[0]
        except module.Skip as skipped:
            return name, f"left out for want of {skipped}"
        return name, "\n".join(json.dumps(each) for each in differences)

    # Start with the long ones, so that none runs alone at the end.
    ordered = sorted(chosen.items(), key=lambda item: "timeoutSeconds" not in str(item[1]))
    # A compaction breaks other scenarios, so scenarios that compact come last.
    compacting = [item for item in ordered if "'action': 'compact'" in str(item[1])]
    others = [item for item in ordered if item not in compacting]
    with warnings.catch_warnings():
        # The runner leaves its sockets to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        with ThreadPoolExecutor(workers) as pool:
            results = dict(pool.map(run, others)) | dict(pool.map(run, compacting))
        gc.collect()
    return results
