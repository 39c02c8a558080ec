"""A former leader writes on, because it does not notice that it lost the lease.

The work is a task of its own, which nobody stops, with a client that does not look at the lease.
The shape of several reports of two leaders; the remedy is `app.client`, which refuses such writes.
"""

import asyncio
import contextlib
from typing import Any

from listwatch import Manager, NotFoundError
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that copies the colour of every labelled ConfigMap in two steps."""
    app = Manager("colours", leader_election="colours")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        client = app.client if is_mended else app.unfenced_client
        colour = (found.get("data") or {}).get("colour", "none")

        async def work() -> None:
            for name in ("first", "second"):
                patch: dict[str, Any] = {"metadata": {"annotations": {name: colour}}}
                with contextlib.suppress(NotFoundError):
                    await client.patch("configmaps", found.name, patch, found.namespace)

        await asyncio.create_task(work())

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Change the colour once; two replicas run."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(body | {"data": {"colour": "red"}})
    await world.settle()
    await world.change("configmaps", "shop", {"data": {"colour": "blue"}})


OPTIONS = {"replicas": 2}
