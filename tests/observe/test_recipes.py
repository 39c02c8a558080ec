"""The recipes of docs/observe.md, run unchanged."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import components
from listwatch.client.client import Client
from listwatch.client.kubeconfig import load_config
from listwatch.testing.waiting import eventually
from processes import api_server

PAGE = (Path(__file__).parents[2] / "docs/observe.md").read_text(encoding="utf-8")


def _recipe(title: str) -> tuple[str, str, list[str]]:
    """Return the script's name, the script, and the command that follows it."""
    text = PAGE[PAGE.index(f"### {title}") :]
    script = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    command = re.search(r"```console\n\$ (.*?)```", text, re.DOTALL)
    assert script is not None
    assert command is not None
    name = re.search(r"^# (\S+)", script[1], re.MULTILINE)
    assert name is not None
    words = shlex.split(command[1].replace("\\\n", " "))
    assert words[0] == "listwatch"
    return name[1], script[1], words[1:]


@asynccontextmanager
async def _observing(title: str, directory: Path, kubeconfig: Path) -> AsyncIterator[None]:
    name, script, words = _recipe(title)
    file = directory / name
    file.write_text(script)
    file.chmod(0o755)
    kubectl = components.find("kubectl")
    search = os.environ["PATH"]
    if kubectl is not None:
        search = f"{Path(kubectl).parent}{os.pathsep}{search}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "listwatch.cli", *words,
        cwd=directory,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": search},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        _, complaints = await process.communicate()
        assert process.returncode == 0, complaints.decode()
        assert b"error" not in complaints


def _lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines()) if path.exists() else []


def _service(name: str, address: str) -> dict[str, Any]:
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterIP": address, "ports": [{"port": 80}]},
    }


async def test_the_hosts_file_is_right_also_after_a_restart(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    title = "A hosts file of all services"
    with api_server(tmp_path) as kubeconfig:
        async with Client.from_config(load_config(kubeconfig)) as client:
            await client.delete("services", "kubernetes")
            for name, address in (("web", "10.3.0.1"), ("db", "10.3.0.2")):
                await client.create(_service(name, address))
            async with _observing(title, tmp_path, kubeconfig):
                await eventually(lambda: len(_lines(hosts)) == 2, seconds=45)
                await client.create(_service("mail", "10.3.0.3"))
                await eventually(lambda: len(_lines(hosts)) == 3, seconds=45)
            await client.delete("services", "web")
            async with _observing(title, tmp_path, kubeconfig):
                await eventually(lambda: len(_lines(hosts)) == 2, seconds=45)
    assert _lines(hosts) == ["10.3.0.2 db.default", "10.3.0.3 mail.default"]


@pytest.mark.needs("kubectl")
async def test_every_new_namespace_gets_its_label(tmp_path: Path) -> None:
    with api_server(tmp_path) as kubeconfig:
        async with (
            Client.from_config(load_config(kubeconfig)) as client,
            _observing("A label for every new namespace", tmp_path, kubeconfig),
        ):
            body = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "new"}}
            await client.create(body)

            async def all_labelled() -> list[str]:
                found = (await client.list("namespaces")).items
                assert all(obj.labels.get("team") == "unknown" for obj in found)
                return [obj.name for obj in found]

            assert "new" in await eventually(all_labelled, seconds=45)


async def test_a_crash_loop_gets_one_ticket(tmp_path: Path) -> None:
    tickets = tmp_path / "tickets"

    def pod(name: str, reason: str, count: int) -> dict[str, Any]:
        waiting = {"waiting": {"reason": reason}} if reason else {"running": {}}
        return {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
            "status": {
                "containerStatuses": [
                    {
                        "name": "c",
                        "image": "i",
                        "imageID": "i",
                        "ready": False,
                        "restartCount": count,
                        "state": waiting,
                    }
                ]
            },
        }

    with api_server(tmp_path) as kubeconfig:
        async with (
            Client.from_config(load_config(kubeconfig)) as client,
            _observing("A ticket for each crash loop", tmp_path, kubeconfig),
        ):
            for name in ("good", "bad"):
                await client.create(pod(name, "", 0))
            for count in range(1, 4):
                for name, reason in (("good", ""), ("bad", "CrashLoopBackOff")):
                    await client.update(pod(name, reason, count), subresource="status")
                await eventually((tmp_path / "open.default.bad").exists, seconds=45)
            await client.update(pod("bad", "", 9), subresource="status")
            await eventually(lambda: not (tmp_path / "open.default.bad").exists(), seconds=45)
    assert _lines(tickets) == ["pod bad in default crashes"]
