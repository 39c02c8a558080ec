"""A step that is not idempotent is taken again after a lost reply.

A counter in another object is increased, then the object is marked. The shape of
yugabyte-operator#35 and kubernetes#59848. The remedy is to record who was counted, in one write.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that counts the ConfigMaps with the label "app" in the Secret "count"."""
    app = Manager("census")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None or "counted" in (found["metadata"].get("annotations") or {}):
            return
        counter = (await app.client.get("secrets", "count", "default")).to_dict()
        notes: dict[str, Any] = counter["metadata"].setdefault("annotations", {})
        if is_mended:
            notes[f"example.com/{found.name}"] = "1"
            notes["count"] = str(len([name for name in notes if name.startswith("example.com/")]))
        else:
            notes["count"] = str(int(notes.get("count", "0")) + 1)
        await app.client.update(counter)
        patch = {"metadata": {"annotations": {"counted": "yes"}}}
        with contextlib.suppress(NotFoundError, AlreadyExistsError):
            await app.client.patch("configmaps", found.name, patch, found.namespace)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create two."""
    await world.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "count"}})
    for name in ("one", "two"):
        metadata = {"name": name, "labels": {"app": "shop"}}
        await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
