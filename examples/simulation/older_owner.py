"""A child is found by its label, and belongs to an older owner.

The older owner is deleted, its child goes with it, and the next owner has taken it for its own. The
shape of cloud-on-k8s#5249 (a stale read). The remedy is to look at the owner's uid.
"""

import contextlib
from typing import Any

from listwatch import Manager, NotFoundError
from listwatch.runtime import set_owner
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that gives every labelled ConfigMap a Secret, once."""
    app = Manager("owners")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")
    _ = maps.owns("secrets") if is_mended else maps.reads("secrets")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        child = maps.lister("secrets").find(key)
        if child is not None and not is_mended:
            return
        secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
        secret["metadata"] = {"name": found.name, "namespace": found.namespace}
        set_owner(secret, found)
        if child is not None and found.uid in [o.uid for o in child.meta.owner_references]:
            return
        with contextlib.suppress(NotFoundError):
            live = await app.client.get("configmaps", found.name, found.namespace)
            if not is_mended or live.uid == found.uid:
                await app.client.create(secret)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Delete a parent, and create it again."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    parent = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(parent)
    await world.settle()
    await world.delete("configmaps", "shop")
    await world.sleep(3.0)
    await world.create(parent)
