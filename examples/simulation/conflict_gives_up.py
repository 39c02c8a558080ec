"""A conflict ends the work, and nobody starts it again.

Every refusal counts as final. The shape of many reports (kubernetes#129795 among them). The remedy
is to let the exception pass: the key is tried again.
"""

from typing import Any

from listwatch import ConflictError, Manager
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that copies the colour of a ConfigMap to its annotation."""
    app = Manager("colours")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        whole: dict[str, Any] = found.to_dict()
        notes = whole["metadata"].setdefault("annotations", {})
        colour = (found.get("data") or {}).get("colour", "none")
        if notes.get("colour") == colour:
            return
        notes["colour"] = colour
        try:
            await app.client.update(whole)
        except ConflictError:
            if is_mended:
                raise

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Change the colour once."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    parent: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(parent | {"data": {"colour": "red"}})
    await world.settle()
    await world.change("configmaps", "shop", {"data": {"colour": "blue"}})
