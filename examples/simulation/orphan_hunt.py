"""A child in use is deleted, because its parent is not in the cache yet.

Two caches, one of which lags: "no parent, so an orphan". The shape of zookeeper-operator#312 and
cassandra-operator#402 (a stale read). The remedy is to ask the server before a deletion.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that deletes Secrets whose ConfigMap is gone."""
    app = Manager("hunter")
    children = app.reconciler("children").for_("secrets", label_selector="app")
    children.reads("configmaps", label_selector="app")

    @children
    async def reconcile(key: str) -> None:
        child = children.get(key)
        if child is None or children.lister("configmaps").find(key) is not None:
            return
        if is_mended:
            with contextlib.suppress(NotFoundError):
                await app.client.get("configmaps", child.name, child.namespace)
                return
        with contextlib.suppress(NotFoundError, AlreadyExistsError):
            await app.client.delete("secrets", child.name, child.namespace, uid=child.uid)

    return app


def labelled(kind: str) -> dict[str, Any]:
    """Return an object of the shop."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create a parent, and then its child."""
    await world.create(labelled("Secret") | {"metadata": {"name": "other"}})
    await world.create(labelled("ConfigMap"))
    await world.sleep(1.0)
    await world.create(labelled("Secret"))
    await world.sleep(1.0)
    await world.change("secrets", "other", {"metadata": {"labels": {"app": "other"}}})
