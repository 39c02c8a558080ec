"""A password is made anew after a crash, although it is in use.

The password is told to its user first, and kept afterwards. The shape of rabbitmq/cluster-operator
#648 (an intermediate state). The remedy is to keep it first.
"""

import contextlib
import secrets
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.runtime import set_owner
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that makes a Secret with a password, and tells it to the ConfigMap."""
    app = Manager("passwords")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        told = (found["metadata"].get("annotations") or {}).get("told")
        password = secrets.token_hex(8)
        secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
        secret["metadata"] = {"name": found.name, "namespace": found.namespace}
        secret["metadata"]["annotations"] = {"password": password}
        set_owner(secret, found)

        async def tell(password: str) -> None:
            patch = {"metadata": {"annotations": {"told": password}}}
            await app.client.patch("configmaps", found.name, patch, found.namespace)

        if not is_mended and told is None:
            await tell(password)
        with contextlib.suppress(AlreadyExistsError, NotFoundError):
            await app.client.create(secret)
        if is_mended and told is None:
            kept = await app.client.get("secrets", found.name, found.namespace)
            await tell((kept["metadata"].get("annotations") or {})["password"])

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create one; the password told is the one that is kept."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    await world.settle()
    told = await world.client.get("configmaps", "shop", "default")
    kept = await world.client.get("secrets", "shop", "default")
    if (told["metadata"].get("annotations") or {})["told"] != (
        kept["metadata"].get("annotations") or {}
    )["password"]:
        raise AssertionError("the Secret has another password than its user was told")


#: Passwords differ from world to world.
OPTIONS = {"mask": ("secrets: metadata.annotations", "configmaps: metadata.annotations")}
