"""A finalizer is removed before the clean-up.

The shape of rabbitmq/cluster-operator#782 (an intermediate state): after a crash between the two,
the object is gone and nobody cleans up. The remedy is the other order.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.simulation import World

FINALIZER = "example.com/clean-up"


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that keeps a Secret, without an owner, for every labelled ConfigMap."""
    app = Manager("cleaner")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        place = ("configmaps", found.name)

        async def release() -> None:
            await app.client.patch(*place, {"metadata": {"finalizers": None}}, found.namespace)

        async def clean_up() -> None:
            with contextlib.suppress(NotFoundError):
                await app.client.delete("secrets", found.name, found.namespace)

        if found.meta.deletion_timestamp:
            with contextlib.suppress(NotFoundError):
                for step in (clean_up, release) if is_mended else (release, clean_up):
                    await step()
            return
        finalizers = {"metadata": {"finalizers": [FINALIZER]}}
        if FINALIZER not in found.meta.finalizers:
            await app.client.patch(*place, finalizers, found.namespace)
        secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
        secret["metadata"] = {"name": found.name, "namespace": found.namespace}
        with contextlib.suppress(AlreadyExistsError):
            await app.client.create(secret)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create one, and delete it."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    await world.settle()
    await world.delete("configmaps", "shop")
