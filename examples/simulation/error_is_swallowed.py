"""An error is logged and forgotten.

Any failure of the server counts as done. The shape of nifikop#79. The remedy is to raise it.
"""

from typing import Any

from listwatch import AlreadyExistsError, ListWatchError, Manager
from listwatch.runtime import set_owner
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that gives every labelled ConfigMap a Secret."""
    app = Manager("forgetful")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
        secret["metadata"] = {"name": found.name, "namespace": found.namespace}
        set_owner(secret, found)
        try:
            await app.client.create(secret)
        except AlreadyExistsError:
            return
        except ListWatchError:
            if is_mended:
                raise

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create one."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    parent: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(parent)
