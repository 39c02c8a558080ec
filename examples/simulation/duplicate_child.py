"""A child is created twice, because the cache does not show the first yet.

"If there is none, create one" with a generated name. The shape of kubernetes#129795 and
datastax/cass-operator#412 (a stale read). The remedy is a name that a retry uses again.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager
from listwatch.runtime import set_owner
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that gives every ConfigMap with the label "app" a Secret."""
    app = Manager("parents", reads_own_writes=False)
    parents = app.reconciler("parents").for_("configmaps", label_selector="app").owns("secrets")

    @parents
    async def reconcile(key: str) -> None:
        parent = parents.get(key)
        if parent is None:
            return
        children = parents.lister("secrets").list()
        if parent.uid in [owner.uid for each in children for owner in each.meta.owner_references]:
            return
        child: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
        name = {"name": parent.name} if is_mended else {"generateName": f"{parent.name}-"}
        child["metadata"] = {"namespace": parent.namespace, **name}
        set_owner(child, parent)
        with contextlib.suppress(AlreadyExistsError):
            await app.client.create(child)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create a parent, and change it at once."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    await world.sleep(3.0)
    await world.change("configmaps", "shop", {"data": {"colour": "blue"}})
