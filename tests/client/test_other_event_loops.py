"""Other event loops than asyncio's, whose transports and sockets are of other classes."""

import asyncio
import sys

import pytest

from listwatch import Client, SharedInformer
from listwatch.client.config import Config, ExecConfig
from listwatch.testing import APIServer

uvloop = pytest.importorskip("uvloop")

PLUGIN = """
print('{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", '
      '"status": {"token": "t"}}')
"""


def config_map(name: str) -> dict[str, object]:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}}


async def story(config: Config) -> list[str]:
    """Return the changes that an informer delivers while the client writes."""
    async with Client(config) as client:
        informer = SharedInformer(client.list_watch("configmaps", "default"))
        async with informer:
            await informer.wait_for_sync()
            changes = informer.changes()
            await client.create(config_map("a"))
            told = [await anext(changes)]
            assert (await client.get("cm", "a")).name == "a"
            await client.delete("cm", "a")
            told.append(await anext(changes))
            return [f"{type(change).__name__} {change.key}" for change in told]


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_an_informer_and_writes_work_under_uvloop(tls: bool) -> None:
    with APIServer(tls=tls) as server:
        told = uvloop.run(asyncio.wait_for(story(server.config), 30))
    assert told == ["Added default/a", "Deleted default/a"]


def test_a_credential_plugin_runs_under_uvloop() -> None:
    async def token(config: Config) -> int:
        async with Client(config) as client:
            return len((await client.list("namespaces")).items)

    with APIServer() as server:
        plugin = ExecConfig(command=sys.executable, args=("-c", PLUGIN), interactive_mode="Never")
        assert uvloop.run(token(Config(server=server.url, exec=plugin))) > 0
