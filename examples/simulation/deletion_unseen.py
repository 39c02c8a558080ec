"""Something is freed when a deletion is seen, and nobody sees it.

The object is deleted while the process is down. The shape of cassandra-operator#398 and
zookeeper-operator#453 (an unobserved state). The remedy is a finalizer or, as here, an owner.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.runtime import set_owner
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that keeps a Secret for every labelled ConfigMap."""
    app = Manager("leases")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        namespace, _, name = key.partition("/")
        found = maps.get(key)
        if found is None:
            with contextlib.suppress(NotFoundError):
                await app.client.delete("secrets", name, namespace)
            return
        secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
        secret["metadata"] = {"name": name, "namespace": namespace}
        if is_mended:
            set_owner(secret, found)
        with contextlib.suppress(AlreadyExistsError):
            await app.client.create(secret)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create one, and delete it soon."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    await world.sleep(0.5)
    await world.delete("configmaps", "shop")
