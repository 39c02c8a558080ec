"""The status says that the work is done before it is.

A hash of the spec is recorded, then the child is changed. The shape of nifikop#49 (an intermediate
state): after a crash in between nobody changes the child. The remedy is the other order.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.runtime import set_owner
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that copies the data of every labelled ConfigMap to a Secret."""
    app = Manager("copier")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        data = found.get("data") or {}
        wanted = data.get("colour", "none")
        if (found["metadata"].get("annotations") or {}).get("applied") == wanted:
            return

        async def record() -> None:
            patch = {"metadata": {"annotations": {"applied": wanted}}}
            await app.client.patch("configmaps", found.name, patch, found.namespace)

        async def work() -> None:
            secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
            secret |= {"metadata": {"name": found.name, "namespace": found.namespace}}
            secret["stringData"] = {"colour": wanted}
            set_owner(secret, found)
            await app.client.apply(secret, field_manager="copier", force=True)

        with contextlib.suppress(NotFoundError, AlreadyExistsError):
            for step in (work, record) if is_mended else (record, work):
                await step()

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Change the colour once."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    await world.settle()
    await world.change("configmaps", "shop", {"data": {"colour": "blue"}})
