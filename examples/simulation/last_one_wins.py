"""Two objects share a child, and each deletes it with itself.

The child is found by its name, whoever made it. The shape of cloud-on-k8s#5274 (a stale read). The
remedy is an owner each, without a deletion of one's own.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that keeps one Secret for all labelled ConfigMaps."""
    app = Manager("shared", reads_own_writes=False)
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        del key
        names = [each.name for each in maps.lister("configmaps").list()]
        if is_mended:
            listed = await app.client.list("configmaps", "default", label_selector="app")
            names = [each.name for each in listed.items]
        if not names:
            with contextlib.suppress(NotFoundError):
                await app.client.delete("secrets", "shared", "default")
            return
        secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
        secret["metadata"] = {"name": "shared", "namespace": "default"}
        with contextlib.suppress(AlreadyExistsError):
            await app.client.create(secret)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Replace one by another."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    parent: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(parent)
    await world.settle()
    await world.change("secrets", "shared", {"metadata": {"annotations": {"used": "yes"}}})
    await world.delete("configmaps", "shop")
    await world.create(parent | {"metadata": {**metadata, "name": "next"}})
