"""An update overwrites what somebody else has written meanwhile.

A whole object from the cache is sent without its version. The shape of casskop#316 (a stale read).
The remedy is the version, or a patch of the fields that are one's own.
"""

import contextlib
from typing import Any

from listwatch import Manager, NotFoundError
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that counts the keys of every ConfigMap with the label "app"."""
    app = Manager("counter", reads_own_writes=False)
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        count = str(len(found.get("data") or {}))
        if (found["metadata"].get("annotations") or {}).get("count") == count:
            return
        patch: dict[str, Any] = {"metadata": {"annotations": {"count": count}}}
        if is_mended:
            with contextlib.suppress(NotFoundError):
                await app.client.patch("configmaps", found.name, patch, found.namespace)
            return
        whole = found.to_dict()
        whole["metadata"].pop("resourceVersion")
        whole["metadata"].setdefault("annotations", {})["count"] = count
        with contextlib.suppress(NotFoundError):
            await app.client.update(whole)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Add a key three times."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    for number in range(3):
        await world.sleep(2.0)
        await world.change("configmaps", "shop", {"data": {f"key-{number}": "1"}})
