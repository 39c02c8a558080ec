"""The second child is only created right after the first.

"If the Service exists, all is done". The shape of nifikop#79 (an intermediate state): a crash
between the two creations leaves one. The remedy is to look for each child.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.runtime import set_owner
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that gives every labelled ConfigMap a Service and a Secret."""
    app = Manager("pairs")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app").owns("services")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        place = {"name": found.name, "namespace": found.namespace}
        service: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "metadata": {**place}}
        service["spec"] = {"ports": [{"port": 80}], "selector": {"app": found.name}}
        secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {**place}}
        try:
            set_owner(service, found)
            await app.client.create(service)
        except AlreadyExistsError:
            if not is_mended:
                return
        set_owner(secret, found)
        with contextlib.suppress(AlreadyExistsError, NotFoundError):
            await app.client.create(secret)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create one."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
