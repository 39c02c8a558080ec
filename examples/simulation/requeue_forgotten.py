"""A program waits for a child, and is not woken by it.

It looks once and returns. The shape of kubernetes#59848's relatives (an unobserved state). The
remedy is to watch what one waits for.
"""

import contextlib
from typing import Any

from listwatch import Manager, NotFoundError
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that marks a ConfigMap once the Secret of its name exists."""
    app = Manager("waiters")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")
    if is_mended:
        _ = maps.watches("secrets", lambda secret, *_: [f"{secret.namespace}/{secret.name}"])
    else:
        _ = maps.reads("secrets")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None or maps.lister("secrets").find(key) is None:
            return
        if "ready" in (found["metadata"].get("annotations") or {}):
            return
        patch: dict[str, Any] = {"metadata": {"annotations": {"ready": "yes"}}}
        with contextlib.suppress(NotFoundError):
            await app.client.patch("configmaps", found.name, patch, found.namespace)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create the child, and then the parent."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    parent: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shop"}})
    await world.create(parent)
