"""Something outside is made before the finalizer that cleans it up.

The object is deleted in between. The shape of rabbitmq/cluster-operator#758 (an unobserved state).
The remedy is the finalizer first.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.simulation import World

FINALIZER = "example.com/clean-up"


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that keeps a Secret, without an owner, for every labelled ConfigMap."""
    app = Manager("outside")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        place = ("configmaps", found.name)

        async def protect() -> None:
            if FINALIZER not in found.meta.finalizers:
                body: dict[str, Any] = {"metadata": {"finalizers": [FINALIZER]}}
                await app.client.patch(*place, body, found.namespace)

        async def make() -> None:
            secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
            secret["metadata"] = {"name": found.name, "namespace": found.namespace}
            with contextlib.suppress(AlreadyExistsError):
                await app.client.create(secret)

        if not found.meta.deletion_timestamp:
            with contextlib.suppress(NotFoundError):
                for step in (protect, make) if is_mended else (make, protect):
                    await step()
            return
        with contextlib.suppress(NotFoundError):
            await app.client.delete("secrets", found.name, found.namespace)
        with contextlib.suppress(NotFoundError):
            await app.client.patch(*place, {"metadata": {"finalizers": None}}, found.namespace)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create one, and delete it soon."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    parent: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(parent)
    await world.sleep(0.5)
    await world.delete("configmaps", "shop")
