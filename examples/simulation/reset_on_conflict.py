"""A retry starts from the old object with a new version.

After a conflict the version is read anew and the old content sent with it. The shape of
cassandra-operator#402's relatives (a lost update). The remedy is to change the newest object.
"""

from typing import Any

from listwatch import ConflictError, Manager
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that keeps the number of keys in an annotation."""
    app = Manager("counter", reads_own_writes=False)
    maps = app.reconciler("maps").for_("configmaps", label_selector="app")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        count = str(len(found.get("data") or {}))
        if (found["metadata"].get("annotations") or {}).get("count") == count:
            return
        whole: dict[str, Any] = found.to_dict()
        whole["metadata"].setdefault("annotations", {})["count"] = count
        try:
            await app.client.update(whole)
        except ConflictError:
            if is_mended:
                raise
            newest = await app.client.get("configmaps", found.name, found.namespace)
            whole["metadata"]["resourceVersion"] = newest.meta.resource_version
            await app.client.update(whole)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Add a key twice."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    parent: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(parent)
    for number in range(2):
        await world.sleep(2.0)
        await world.change("configmaps", "shop", {"data": {f"key-{number}": "1"}})
