"""A status is computed from one's own last status, and flips.

The side is switched in one write, and the colour for which it was switched is recorded in the
next. A recent kind (an intermediate state): after a crash in between it is switched back. The
remedy is one write for both.
"""

import contextlib
from typing import Any

from listwatch import Manager, NotFoundError
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that switches between two sides with each new colour."""
    app = Manager("sides")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        notes = found["metadata"].get("annotations") or {}
        colour = (found.get("data") or {}).get("colour", "none")
        if notes.get("colour") == colour:
            return
        side: dict[str, Any] = {"side": "right" if notes.get("side") == "left" else "left"}
        for new in [side | {"colour": colour}] if is_mended else [side, {"colour": colour}]:
            body = {"metadata": {"annotations": new}}
            with contextlib.suppress(NotFoundError):
                await app.client.patch("configmaps", found.name, body, found.namespace)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Change the colour twice."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(body | {"data": {"colour": "red"}})
    await world.settle()
    await world.change("configmaps", "shop", {"data": {"colour": "blue"}})
    await world.settle()
    await world.change("configmaps", "shop", {"data": {"colour": "red"}})
