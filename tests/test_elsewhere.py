"""Library, client, runtime, testing and the API server need nothing that only Linux has."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from listwatch.controllers.services.command import service_controller_command
from listwatch.observe.command import observe_command

#: What other platforms lack, as statements that take it away.
TAKEN_AWAY = {
    "pidfd": "import os, signal; del os.pidfd_open, signal.pidfd_send_signal",
    "resource": "sys.modules['resource'] = None",
    "fcntl": "sys.modules['fcntl'] = None",
    "accounts": "sys.modules['pwd'] = sys.modules['grp'] = None; import os; del os.getuid",
    "memory files": "import os; del os.memfd_create",
    "owners of files": "import os; del os.fchmod, os.fchown",
    "process groups": "import os; del os.killpg, os.setsid, os.tcgetpgrp",
    "SIGHUP": "import signal; del signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2",
    "signals of the loop": "import asyncio; asyncio.SelectorEventLoop.add_signal_handler ="
    " asyncio.AbstractEventLoop.add_signal_handler",
    "options of TCP": "import socket; [delattr(socket, name) for name in dir(socket)"
    " if name.startswith('TCP_KEEP') or name in ('TCP_USER_TIMEOUT', 'SO_REUSEPORT')]",
    "CLOCK_BOOTTIME": "import time; del time.CLOCK_BOOTTIME",
    "fork": "import os; del os.fork, os.register_at_fork",
}
PROGRAM = """
import asyncio

import listwatch.cache, listwatch.cel, listwatch.client, listwatch.resources, listwatch.workqueue
import listwatch.testing
from listwatch import Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.client import load_config
from listwatch.runtime import Manager, apply
from listwatch.sync import connect


async def main():
    async with EmbeddedAPIServer() as server:
        path = Path(sys.argv[1])
        path.write_text(server.kubeconfig())
        app = Manager("elsewhere", config=load_config(path), leader_election="elsewhere")
        maps = app.reconciler("maps").for_("configmaps", label_selector="here")
        seen = asyncio.Event()

        @maps
        async def reconcile(key):
            if maps.get(key) is not None:
                seen.set()

        async with app:
            meta = {"name": "a", "namespace": "default", "labels": {"here": ""}}
            obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
            async with Client.from_config(load_config(path)) as client:
                await apply(client, obj, field_manager="elsewhere")
            await asyncio.wait_for(seen.wait(), 30)
        await asyncio.to_thread(read, path)


def read(path):
    with connect(load_config(path)) as cluster:
        print(cluster.get("configmaps", "a", "default").key)


asyncio.run(main())
"""


def _run(taken: str, directory: Path) -> str:
    program = f"import sys\nfrom pathlib import Path\n{taken}\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(directory / "kubeconfig")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.proof
@pytest.mark.parametrize("name", TAKEN_AWAY)
def test_a_controller_runs_without(name: str, tmp_path: Path) -> None:
    assert _run(TAKEN_AWAY[name], tmp_path) == "default/a\n"


def test_a_controller_runs_without_any_of_them(tmp_path: Path) -> None:
    assert _run("\n".join(TAKEN_AWAY.values()), tmp_path) == "default/a\n"


def test_commands_that_need_a_platform_say_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    done = CliRunner().invoke(service_controller_command, [])
    assert (done.exit_code, done.output) == (
        1,
        "Error: listwatch service-controller runs on Linux alone\n",
    )
    monkeypatch.delattr(os, "killpg")
    done = CliRunner().invoke(observe_command, ["pods"])
    assert done.exit_code == 1
    assert done.output == (
        "Error: listwatch observe runs on Linux and macOS: it ends commands by process group\n"
    )
