"""Programs and scenarios to simulate: one that reads a stale cache, and the same one mended."""

import contextlib
from typing import TYPE_CHECKING, Any

from listwatch.errors import AlreadyExistsError
from listwatch.runtime import Manager, set_owner

if TYPE_CHECKING:
    from listwatch.simulation import World


def config_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that gives every ConfigMap called "app…" a child."""
    app = Manager("parents", health_port=None)
    parents = app.reconciler("parents").for_("configmaps").owns("secrets")

    @parents
    async def reconcile(key: str) -> None:
        parent = parents.get(key)
        if parent is None or not parent.name.startswith("app"):
            return
        secrets = parents.lister("secrets").list()
        owners = [owner.uid for each in secrets for owner in each.meta.owner_references]
        if parent.uid in owners:
            return
        child: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {}}
        name = {"name": parent.name} if is_mended else {"generateName": f"{parent.name}-"}
        child["metadata"] = {"namespace": parent.namespace, **name}
        set_owner(child, parent)
        with contextlib.suppress(AlreadyExistsError):
            await app.client.create(child)

    return app


def make_mended_app() -> Manager:
    return make_app(is_mended=True)


async def one_parent(world: "World") -> None:
    await world.create(config_map("app"))
    await world.settle()
    await world.change("configmaps", "app", {"data": {"a": "1"}})
    await world.settle()
