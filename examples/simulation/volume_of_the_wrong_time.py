"""A volume in use is deleted, because the wanted size is an old one.

Volumes beyond the size in the cache are cleaned up. The shape of zookeeper-operator#312 and
cassandra-operator#407 (a stale read). The remedy is to ask the server for the size.
"""

import contextlib
from typing import Any

from listwatch import Manager, NotFoundError
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that deletes the volumes (Secrets) which the size does not need."""
    app = Manager("volumes")
    volumes = app.reconciler("volumes").for_("secrets", label_selector="app")
    volumes.reads("configmaps", label_selector="app")

    @volumes
    async def reconcile(key: str) -> None:
        volume = volumes.get(key)
        owner = volumes.lister("configmaps").find("default/shop")
        if volume is None or owner is None:
            return
        if is_mended:
            owner = await app.client.get("configmaps", "shop", "default")
        size = int((owner.get("data") or {}).get("size", "0"))
        if int(volume.name.rpartition("-")[2]) >= size:
            with contextlib.suppress(NotFoundError):
                await app.client.delete("secrets", volume.name, volume.namespace)

    return app


def volume(number: int) -> dict[str, Any]:
    """Return the volume of a member."""
    metadata = {"name": f"volume-{number}", "labels": {"app": "shop"}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Grow from one to two."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    parent: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(parent | {"data": {"size": "1"}}, volume(0))
    await world.settle()
    await world.change("configmaps", "shop", {"data": {"size": "2"}})
    await world.sleep(1.0)
    await world.create(volume(1))
