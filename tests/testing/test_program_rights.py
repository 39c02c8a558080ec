"""Programs under test with the rights of their manifests, and the record of what they ask for."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from listwatch.client.client import Client
from listwatch.errors import ConfigError, ForbiddenError
from listwatch.runtime.packaging.rights import rights_of, rights_on
from listwatch.testing import APIServer
from sampling import sampled

_ACCOUNT = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": "web", "namespace": "home"},
}
_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "a", "namespace": "default"},
}


async def _refused(server: APIServer) -> str:
    async with Client(server.config) as program, server.client() as test:
        await test.create(_MAP)
        for action in (
            program.list("configmaps", "default"),
            program.list("secrets"),
            program.patch("configmaps", "a", {"data": {}}, "default"),
        ):
            with pytest.raises(ForbiddenError):
                await action
        assert program.config.namespace == "home"
    return server.missing_rights


async def test_a_missing_right_is_told_with_the_rule_and_the_declaration_to_add() -> None:
    async with APIServer(rbac=[_ACCOUNT]) as server:
        assert await _refused(server) == (
            "the program asked for rights that rbac= does not grant:\n"
            "  list configmaps in default\n"
            "  patch configmaps in default\n"
            "  list secrets\n"
            "add to the rules of its role:\n"
            "  - apiGroups:\n"
            "    - ''\n"
            "    resources:\n"
            "    - secrets\n"
            "    verbs:\n"
            "    - list\n"
            "  - apiGroups:\n"
            "    - ''\n"
            "    resources:\n"
            "    - configmaps\n"
            "    verbs:\n"
            "    - list\n"
            "    - patch\n"
            "or declare in the program, for `listwatch rbac`:\n"
            '  .writes("configmaps", "patch")'
        )
        server.record_rights()
        assert server.missing_rights == ""


def test_a_server_in_a_process_of_its_own_checks_the_same_rights() -> None:
    with APIServer(rbac=[_ACCOUNT], subprocess=True) as server:
        assert "list secrets" in asyncio.run(_refused(server))


@pytest.mark.parametrize(
    ("rbac", "more", "words"),
    [
        ([], {}, r"rbac=: it must have one ServiceAccount, that of the program, but has none"),
        ([_ACCOUNT, {**_ACCOUNT, "metadata": {"name": "b"}}], {}, "but has web, b"),
        ([_ACCOUNT], {"tokens": "t,u,1"}, "either rbac= or tokens=, not both"),
        ("/no/such.yaml", {}, "can't be read"),
        ("/no/such.py", {}, "no such file"),
    ],
)
def test_roles_that_can_not_be_used_are_told(rbac: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        APIServer(rbac=rbac, **more)


_PROGRAM = """
from listwatch import Manager

def make_app(**options):
    app = Manager("web", **{"leader_election": "web"} | options)
    maps = app.reconciler("maps").for_("configmaps")
    maps.writes("configmaps", "patch")

    @maps
    async def reconcile(key):
        obj = maps.get(key)
        if obj is not None and obj.name == "a":
            await app.client.patch("configmaps", "a", {"data": {"seen": "yes"}}, "default")
            await app.client.delete("configmaps", "b", "default")
    return app
"""
_TESTS = """
import asyncio
from pathlib import Path
import pytest
from listwatch.runtime import load_app
from listwatch.testing import eventually

FILE = Path(__file__).parent / "program.py"
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}

async def check(apiserver, client):
    await client.create(MAP)
    await client.list("secrets")
    async with load_app(FILE, config=apiserver.config) as app:
        async def seen():
            # the deletion that follows was answered, whatever the answer
            found = app.reconcilers[0].statistics()
            return (await client.get("configmaps", "a")).to_dict().get("data") and found.errors
        await eventually(seen)

@pytest.mark.apiserver(rbac=FILE)
async def test_with_roles(apiserver, client):
    await check(apiserver, client)

@pytest.mark.apiserver(rbac=FILE)
async def test_that_fails_itself(apiserver, client):
    await check(apiserver, client)
    raise RuntimeError("its own")

async def test_without(apiserver, client):
    await check(apiserver, client)
"""
_SIMULATION = """
from pathlib import Path
import pytest

async def scenario(world):
    await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    await world.client.list("secrets")
    await world.settle()

@pytest.mark.simulation(worlds=3)
def test_simulated(simulate):
    simulate(str(Path(__file__).parent / "program.py"), scenario)
"""


@pytest.mark.parametrize("options", sampled(["--record-rbac", "--record-rbac -n 2"], every=2))
def test_a_test_fails_for_a_missing_right_and_the_record_has_what_was_asked_for(
    options: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    (tmp_path / "test_it.py").write_text(_TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    shown = _run_pytest(tmp_path, *options.split())
    assert "2 failed, 1 passed" in shown, shown
    assert shown.count(f"rights that {tmp_path}/program.py does not grant") == 2
    assert shown.count('.writes("configmaps", "delete")') == 2
    assert "RuntimeError: its own" in shown
    assert "--record-rbac: the roles of web are in " in shown
    roles = {
        obj["kind"]: rights_of(obj.get("rules", ()))
        for obj in yaml.safe_load_all((tmp_path / "recorded-rbac.yaml").read_text())
    }
    assert roles["ClusterRole"] >= rights_on("configmaps", ["list", "watch", "patch", "delete"])
    assert not roles["ClusterRole"] & rights_on("secrets", ["list"])
    lease = rights_on("leases.coordination.k8s.io", ["get", "update"])
    assert {right._replace(name="web") for right in lease} <= roles["Role"]


def _run_pytest(directory: Path, *options: str) -> str:
    done = subprocess.run(
        # The summary at the end would repeat the message, as far as the terminal is wide.
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rN", *options],
        cwd=directory,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.proof
def test_what_simulated_programs_ask_for_is_recorded_too(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    (tmp_path / "test_it.py").write_text(_SIMULATION)
    shown = _run_pytest(tmp_path, "--record-rbac=roles.yaml")
    assert f"the roles of web are in {tmp_path}/roles.yaml" in shown, shown
    objects = list(yaml.safe_load_all((tmp_path / "roles.yaml").read_text()))
    (role,) = [obj for obj in objects if obj["kind"] == "ClusterRole"]
    rights = rights_of(role["rules"])
    assert rights >= rights_on("configmaps", ["list", "watch", "patch", "delete"])
    assert not rights & rights_on("secrets", ["list"])
