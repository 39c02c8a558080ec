"""aiohttp is loaded only for requests that the package's own transport does not send."""

import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from listwatch.apiserver.server import EmbeddedAPIServer

#: Prints, for each step, whether aiohttp is loaded afterwards, and the step's result.
PROGRAM = """
import asyncio, json, sys
from listwatch import Client, SharedInformer
from listwatch.client.config import Config
from listwatch.client.kubeconfig import load_config

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}}
told = []

def tell(step, result):
    told.append([step, result, "aiohttp" in sys.modules])

async def main():
    async with Client.from_config(load_config(sys.argv[1])) as client:
        tell("discover", (await client.discovery.find("cm")).plural)
        tell("list", len((await client.list("namespaces")).items) > 0)
        tell("get", (await client.get("namespaces", "default")).name)
        async with SharedInformer(client.list_watch("namespaces")) as informer:
            await informer.wait_for_sync()
            tell("watch", "default" in {obj.name for obj in informer.lister.list()})
        tell("create", (await client.create(CONFIG_MAP, namespace="default")).name)
        tell("get it", (await client.get("cm", "made", "default")).name)

asyncio.run(main())
print(json.dumps(told))
"""


async def run(program: str, *arguments: str) -> Any:
    """Run a Python program in a new process and return the JSON that it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.skipif(
    find_spec("httptools") is None,
    reason="without httptools aiohttp reads too: pip install httptools",
)
async def test_a_program_that_only_reads_never_loads_aiohttp(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    async with EmbeddedAPIServer() as server:
        kubeconfig.write_text(server.kubeconfig())
        told = await run(PROGRAM, str(kubeconfig))
    assert told == [
        ["discover", "configmaps", False],
        ["list", True, False],
        ["get", "default", False],
        ["watch", True, False],
        ["create", "made", True],
        ["get it", "made", True],
    ]


async def test_without_httptools_everything_is_read_by_aiohttp(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    async with EmbeddedAPIServer() as server:
        kubeconfig.write_text(server.kubeconfig())
        without = "import sys; sys.modules['httptools'] = None\n"
        told = await run(without + PROGRAM, str(kubeconfig))
    assert [(step, result) for step, result, _ in told] == [
        ("discover", "configmaps"),
        ("list", True),
        ("get", "default"),
        ("watch", True),
        ("create", "made"),
        ("get it", "made"),
    ]
    assert all(is_loaded for *_, is_loaded in told)


@pytest.mark.parametrize(
    "module",
    [
        "listwatch.sync",
        "listwatch.cli",
        "listwatch.client.oidc",
        "listwatch.client.adapters.threaded",
        "listwatch.runtime.manager",
    ],
)
async def test_what_programs_begin_with_does_not_load_aiohttp(module: str) -> None:
    program = f"import json, sys, {module}; print(json.dumps('aiohttp' in sys.modules))"
    assert await run(program) is False
