"""`check` finds, without a server, exactly what a server refuses, in its order and words."""

import asyncio
import copy
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.client import Client
from listwatch.errors import InvalidError
from listwatch.resources import (
    ListMap,
    ObjectMeta,
    Quantity,
    Rule,
    check_manifest,
    definition,
    resource,
    rules,
)
from listwatch.testing import APIServer


class Port(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(max_length=5)]
    port: Annotated[int, msgspec.Meta(ge=1, le=99)] = 1


@rules(Rule("self.low <= self.high", message="low must not exceed high", field_path=".low"))
class Range(msgspec.Struct):
    low: int = 1
    high: int = 9


class Spec(msgspec.Struct):
    host: Annotated[
        str,
        msgspec.Meta(pattern="^[a-z]*$", max_length=9),
        Rule("self == oldSelf", message="is immutable"),
    ]
    tier: Literal["gold", "silver"] = "silver"
    size: Annotated[int, Rule("self != 13", reason="FieldValueForbidden")] = 0
    memory: Quantity | None = None
    scaling: Range = msgspec.field(default_factory=Range)
    ports: Annotated[list[Port], ListMap("name"), msgspec.Meta(max_length=2)] = []
    labels: dict[str, int] = {}


@resource("example.com", "v1", rules=[Rule("self.spec.size < 100", message="too big")])
class Shop(msgspec.Struct):
    metadata: ObjectMeta
    spec: Spec


DEFINITION = definition(Shop)
SCALARS = st.sampled_from(
    [None, True, 0, 1, 13, 100, 1.5, "", "a", "B", "gold", "1Gi", "abcdefghij"]
)
PORT = st.fixed_dictionaries({}, optional={"name": SCALARS, "port": SCALARS}) | SCALARS
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "host": st.sampled_from(["a", "b"]) | SCALARS,
        "tier": SCALARS,
        "size": SCALARS,
        "memory": SCALARS,
        "scaling": st.fixed_dictionaries({}, optional={"low": SCALARS, "high": SCALARS}) | SCALARS,
        "ports": st.lists(PORT, max_size=3) | SCALARS,
        "labels": st.dictionaries(st.sampled_from("xy"), SCALARS) | SCALARS,
    },
)


class World:
    """A server with the type, for tests that are no coroutines."""

    def __init__(self, runner: asyncio.Runner, client: Client) -> None:
        self._runner = runner
        self._client = client
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"s{self._count}"

    def refusals(self, obj: dict[str, Any]) -> list[tuple[str, str, str]]:
        """Create an object, or update it; return the causes of the refusal."""
        is_new = "resourceVersion" not in obj["metadata"]
        verb = self._client.create if is_new else self._client.update
        try:
            stored = self._runner.run(verb(copy.deepcopy(obj)))
        except InvalidError as error:
            causes = error.details["causes"]
            return [(one["field"], one["message"], one["reason"]) for one in causes]
        obj["metadata"]["resourceVersion"] = stored.resource_version
        return []


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    async def start() -> tuple[AsyncExitStack, Client]:
        stack = AsyncExitStack()
        server = await stack.enter_async_context(APIServer())
        client = await stack.enter_async_context(server.client())
        await client.create(DEFINITION)
        return stack, client

    with asyncio.Runner() as runner:
        stack, client = runner.run(start())
        yield World(runner, client)
        runner.run(stack.aclose())


def shop(name: str, spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "example.com/v1", "kind": "Shop", "metadata": metadata, "spec": spec}


def found(obj: dict[str, Any], old: dict[str, Any] | None = None) -> list[tuple[str, str, str]]:
    return [(one.field, one.message, one.reason) for one in check_manifest(DEFINITION, obj, old)]


@given(spec=SPECS)
def test_a_new_object_has_the_problems_of_the_server(spec: dict[str, Any], world: World) -> None:
    obj = shop(world.name(), spec)
    assert found(obj) == world.refusals(obj)


@given(before=SPECS, after=SPECS)
def test_an_update_has_the_problems_of_the_server(
    before: dict[str, Any], after: dict[str, Any], world: World
) -> None:
    old = shop(world.name(), {"host": "a", **before})
    if found(old):
        old["spec"] = {"host": "a"}
    assert world.refusals(old) == []
    new = {**old, "spec": after}
    assert found(new, old) == world.refusals(new)
