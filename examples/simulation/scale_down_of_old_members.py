"""A scale-down trusts an old list of members, and removes too many.

It deletes as many members as there are too many in the cache, whichever they are. The shape of
casskop#321 and cass-operator#412 (a stale read). The remedy is to say which member must go.
"""

import contextlib
from typing import Any

from listwatch import AlreadyExistsError, Manager, NotFoundError
from listwatch.runtime import set_owner
from listwatch.simulation import World


def make_app(*, is_mended: bool = False) -> Manager:
    """Return a program that removes the newest member when there are more than wanted."""
    app = Manager("members", reads_own_writes=False)
    maps = app.reconciler("maps").for_("configmaps", label_selector="app").owns("secrets")

    @maps
    async def reconcile(key: str) -> None:
        found = maps.get(key)
        if found is None:
            return
        wanted = int((found.get("data") or {}).get("size", "0"))
        members = sorted(each.name for each in maps.lister("secrets").list())
        for number in range(wanted):
            if f"m-{number}" not in members:
                member: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret"}
                member["metadata"] = {"name": f"m-{number}", "namespace": found.namespace}
                set_owner(member, found)
                with contextlib.suppress(AlreadyExistsError):
                    await app.client.create(member)
        left = int((found["metadata"].get("annotations") or {}).get("left", "0"))
        if len(members) > wanted and (not is_mended or left < len(members) - wanted):
            patch = {"metadata": {"annotations": {"left": str(left + 1)}}}
            if is_mended:
                patch = {"metadata": {"annotations": {"left": str(len(members) - wanted)}}}
            await app.client.patch("configmaps", found.name, patch, found.namespace)
        for name in members[wanted:]:
            with contextlib.suppress(NotFoundError):
                await app.client.delete("secrets", name, found.namespace)

    return app


def make_mended_app() -> Manager:
    """Return the program without the bug."""
    return make_app(is_mended=True)


async def scenario(world: World) -> None:
    """Grow to three, and shrink to two."""
    metadata = {"name": "shop", "labels": {"app": "shop"}}
    parent: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    await world.create(parent | {"data": {"size": "3"}})
    await world.settle()
    await world.change("configmaps", "shop", {"data": {"size": "2"}})
