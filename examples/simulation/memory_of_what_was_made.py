"""What was made is only remembered in memory.

After a restart it is made again. The shape of yugabyte-operator#36 (an intermediate state). The
remedy is to look on the server.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager
from listwatch.runtime import set_owner
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that makes one backup (a Secret) of each ConfigMap."""
    app = Manager("backups")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")
    made: set[str] = set()

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None or key in made:
            return
        backup: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
        name = {"name": f"{found.name}-1"} if is_mended else {"generateName": f"{found.name}-"}
        backup["metadata"] = {"namespace": found.namespace, **name}
        set_owner(backup, found)
        with contextlib.suppress(AlreadyExistsError):
            await app.client.create(backup)
        made.add(key)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create one."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    parent: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(parent)
