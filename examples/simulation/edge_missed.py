"""Only a change of state starts the work, and the watch skips that state.

The program remembers in memory what it saw last. The shape of casskop#342 and yugabyte-operator#39
(an unobserved state). The remedy is to compare with what is there, not with what was.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that counts in an annotation how often the generation was rolled out."""
    app = Manager("edges", reads_own_writes=False)
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")
    seen: dict[str, str] = {}

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        wanted = (found.get("data") or {}).get("colour", "none")
        before = (
            (found["metadata"].get("annotations") or {}).get("colour")
            if is_mended
            else seen.get(key)
        )
        seen[key] = wanted
        if before == wanted or (before is None and not is_mended):
            return
        patch: dict[str, Any] = {"metadata": {"annotations": {"colour": wanted}}}
        with contextlib.suppress(NotFoundError, AlreadyExistsError):
            await app.client.patch("configmaps", found.name, patch, found.namespace)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Change the colour twice, at once."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(body | {"data": {"colour": "red"}})
    await world.sleep(2.0)
    await world.change("configmaps", "shop", {"data": {"colour": "blue"}})
