"""Random values of types of every shape survive: type, JSON, server, type."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.client import Client
from listwatch.resources import ObjectMeta, custom_resource_of, definition, resource
from listwatch.schema.structural import apply_schema_defaults, build
from listwatch.testing import APIServer, manifests
from resources.shapes import SHAPES, spec_of

NAMES = list(SHAPES)
KINDS: dict[str, Any] = {
    name: resource("example.com", "v1", kind=f"Widget{number}")(
        msgspec.defstruct(
            "Widget", [("metadata", ObjectMeta), ("spec", spec_of(hint))], module=__name__
        )
    )
    for number, (name, hint) in enumerate(SHAPES.items())
}


class World:
    """A server that has all types, for tests that are no coroutines."""

    def __init__(self, runner: asyncio.Runner, client: Client) -> None:
        self._runner = runner
        self._client = client
        self._count = 0

    def there_and_back(self, obj: Any) -> tuple[Any, Any]:
        """Return an object as it was sent, and as the server has it."""
        self._count += 1
        obj.metadata.name = f"w{self._count}"
        return obj, self._runner.run(self._client.create(obj))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    async def start() -> tuple[AsyncExitStack, Client]:
        stack = AsyncExitStack()
        server = await stack.enter_async_context(APIServer())
        client = await stack.enter_async_context(server.client())
        for cls in KINDS.values():
            await client.create(definition(cls))
        return stack, client

    with asyncio.Runner() as runner:
        stack, client = runner.run(start())
        yield World(runner, client)
        runner.run(stack.aclose())


@cache
def values(name: str) -> st.SearchStrategy[dict[str, Any]]:
    return manifests(KINDS[name])


def check_one(name: str, data: st.DataObject, world: World) -> None:
    cls = KINDS[name]
    manifest = data.draw(values(name))
    # A server completes what has no class, such as a pod template.
    apply_schema_defaults(manifest["spec"], build(custom_resource_of(cls).schema).fields["spec"])
    sent, back = world.there_and_back(msgspec.convert(manifest, cls, strict=False))
    assert back.spec == sent.spec


@given(data=st.data(), name=st.sampled_from(NAMES))
def test_a_random_value_of_any_type_comes_back_equal(
    data: st.DataObject, name: str, world: World
) -> None:
    check_one(name, data, world)


@pytest.mark.proof
@given(data=st.data())
@pytest.mark.parametrize("name", NAMES)
def test_random_values_of_each_type_come_back_equal(
    name: str, data: st.DataObject, world: World
) -> None:
    check_one(name, data, world)
