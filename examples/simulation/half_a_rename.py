"""A rename deletes the old child first, and forgets the new one.

The annotation that names the child is changed between the deletion and the creation. The shape of
casskop#370 (an intermediate state). The remedy is to create whatever is missing.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.runtime import set_owner
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that keeps a Secret of the name that the ConfigMap says."""
    app = Manager("renames")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        wanted = (found.get("data") or {}).get("name", "first")
        now = (found["metadata"].get("annotations") or {}).get("now", "")
        if now == wanted and not is_mended:
            return
        if now and now != wanted:
            with contextlib.suppress(NotFoundError):
                await app.client.delete("secrets", now, found.namespace)
        if now != wanted:
            patch: dict[str, Any] = {"metadata": {"annotations": {"now": wanted}}}
            await app.client.patch("configmaps", found.name, patch, found.namespace)
        secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
        secret["metadata"] = {"name": wanted, "namespace": found.namespace}
        set_owner(secret, found)
        with contextlib.suppress(AlreadyExistsError):
            await app.client.create(secret)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Rename the child."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    parent: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(parent)
    await world.settle()
    await world.change("configmaps", "shop", {"data": {"name": "second"}})
