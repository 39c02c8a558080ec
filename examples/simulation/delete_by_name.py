"""A child is deleted by name, and it is the child of the next object.

The parent was deleted and created again under its name. The shape of zookeeper-operator#314 and
kubernetes#59848 (a stale read). The remedy is to delete the uid that one has seen.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, ConflictError, Manager, NotFoundError
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that deletes Secrets which the annotation "expired" marks."""
    app = Manager("expiry", reads_own_writes=False)
    items = app.reconciler("items").for_("secrets", label_selector="app")

    @items
    async def reconcile(key: str) -> None:
        item = items.get(key)
        if item is None or "expired" not in (item["metadata"].get("annotations") or {}):
            return
        uid: Any = item.uid if is_mended else ""
        with contextlib.suppress(NotFoundError, ConflictError, AlreadyExistsError):
            await app.client.delete("secrets", item.name, item.namespace, uid=uid)

    return app


def item(value: str, **annotations: str) -> dict[str, Any]:
    """Return an item."""
    metadata = {"name": "shop", "labels": {"app": value}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Let an item expire, and create the next one of its name."""
    await world.create(item("one", expired="yes"))
    await world.sleep(3.0)
    await world.delete("secrets", "shop")
    await world.create(item("two"))
    await world.sleep(3.0)
    await world.change("secrets", "shop", {"metadata": {"annotations": {"used": "yes"}}})
