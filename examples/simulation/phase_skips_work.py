"""A phase that is set before the work lets the work be skipped.

"If the phase is Creating, somebody is at it". The shape of casskop#370 (an intermediate state):
after a crash nobody is. The remedy is to look for the child, not for the phase.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.runtime import set_owner
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that gives every labelled ConfigMap a Secret."""
    app = Manager("phases")
    maps = app.reconciler("maps").for_("configmaps", label_selector="app").owns("secrets")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        phase = (found["metadata"].get("annotations") or {}).get("phase", "")

        async def enter(name: str) -> None:
            patch = {"metadata": {"annotations": {"phase": name}}}
            await app.client.patch("configmaps", found.name, patch, found.namespace)

        if phase == "Ready" or (phase == "Creating" and not is_mended):
            return
        await enter("Creating")
        secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
        secret["metadata"] = {"name": found.name, "namespace": found.namespace}
        set_owner(secret, found)
        with contextlib.suppress(AlreadyExistsError, NotFoundError):
            await app.client.create(secret)
        await enter("Ready")

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Create one."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
