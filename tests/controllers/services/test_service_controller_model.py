"""The service controller, compared with a simple model after any sequence of steps."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from controllers.service_cluster import World, node, service
from listwatch.controllers.services.provider import RetryAfterError
from listwatch.errors import ConflictError, InternalServerError

NAMES = ("a", "b", "c")
TYPES = ("LoadBalancer", "ClusterIP", "LoadBalancer")

# The weights let most steps have an effect.
STEPS: dict[str, tuple[int, Sequence[Any], Sequence[Any]]] = {
    "create": (8, NAMES, TYPES),
    "type": (3, NAMES, TYPES),
    "touch": (3, NAMES, ["None", "ClientIP"]),
    "delete": (4, NAMES, [None]),
    "vanish": (2, NAMES, [None]),
    "node": (2, ["n1", "n2", "n3"], [None]),
    "provider": (2, [None], ["well", "well", "raises", "waits", "hangs"]),
    "server": (2, [None], ["well", "well", "fails", "conflicts"]),
    "watch": (1, [None], ["reset", "end"]),
    "wait": (8, [None], [0.0, 0.0, 0.01, 3.0, 3.0, 100.0, 400.0]),
}


def make_story(chance: random.Random) -> list[tuple[str, Any, Any]]:
    kinds = chance.choices(list(STEPS), [weight for weight, *_ in STEPS.values()], k=40)
    return [(kind, *map(chance.choice, STEPS[kind][1:])) for kind in kinds]


class Story:
    def __init__(self, world: World) -> None:
        self.world = world
        self.lives = 0

    def exists(self, name: str) -> bool:
        found = self.world.services.objects.get(f"default/{name}")
        return found is not None and found.meta.deletion_timestamp is None

    async def step(self, kind: str, what: Any, value: Any) -> None:
        world = self.world
        if kind == "create":
            if f"default/{what}" not in world.services.objects:
                self.lives += 1
                world.services.add(service(what, value, uid=f"{what}-{self.lives}"))
        elif kind in {"type", "touch"}:
            if self.exists(what):
                field = "type" if kind == "type" else "sessionAffinity"
                world.change(what, **{field: value})
        elif kind == "delete":
            if self.exists(what):
                world.delete(what)
        elif kind == "vanish":
            if f"default/{what}" in world.services.objects:
                world.services.delete(f"default/{what}")
        elif kind == "node":
            if what in world.nodes.objects:
                world.nodes.delete(what)
            else:
                world.nodes.add(node(what))
        elif kind == "provider":
            world.provider.before = lambda _call, _service: self.provide(value)
        elif kind == "server":
            errors = {"well": None, "fails": InternalServerError("no")}
            world.broken = errors.get(value, ConflictError("changed"))
        elif kind == "watch":
            source = world.services
            source.reset_watch() if value == "reset" else source.end_watches()
        else:
            await world.clock.advance(value)

    @staticmethod
    def provide(value: str) -> Any:
        if value == "raises":
            raise RuntimeError("no luck")
        if value == "waits":
            raise RetryAfterError("not yet", 7)
        return asyncio.Event().wait() if value == "hangs" else None


@given(st.integers(0, 2**32))
@example(464)  # the status was written after the service ceased to be a load balancer
@example(1724)  # the worker and the node loop both wanted a retry
async def test_at_the_end_everybody_has_what_is_due_and_no_more(seed: int) -> None:
    async with World() as world:
        teller = Story(world)
        for step in make_story(random.Random(seed)):
            await teller.step(*step)
        world.provider.before = lambda _call, _service: None
        world.broken = None
        world.nodes.add(node("last"))
        await world.clock.advance(1500)

        services = {obj.name: world.get(obj.name) for obj in world.services.objects.values()}
        wanting = {s.uid for s in services.values() if s.spec.type == "LoadBalancer"}
        assert not any(s.is_deleted for s in services.values())
        assert world.provider.balancers.keys() == wanting
        names = sorted(obj.name for obj in world.nodes.objects.values())
        for one in services.values():
            due = one.uid in wanting
            assert one.has_finalizer is due
            assert bool(one.status.ingress) is due
            if due:
                assert one.status == world.provider.balancers[one.uid]
                assert world.provider.nodes[one.uid] == names
        statistics = world.controller.statistics()
        assert (statistics.retrying, statistics.queue.depth) == (0, 0)
        assert statistics.services == len(wanting)
        calls, patches = len(world.provider.calls), world.patches
        await world.clock.advance(1000)
        assert (len(world.provider.calls), world.patches) == (calls, patches), "it is never at rest"
