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
from resources.shapes import SHAPES

GROUPS = 6


def kind_of(number: int) -> Any:
    """Return a resource whose spec has a field of every sixth shape."""
    hints = list(SHAPES.values())[number::GROUPS]
    fields = [(f"value{at}", hint) for at, hint in enumerate(hints)]
    spec = msgspec.defstruct("Spec", fields, module=__name__)
    whole = [("metadata", ObjectMeta), ("spec", spec)]
    made = msgspec.defstruct("Widget", whole, module=__name__)
    return resource("example.com", "v1", kind=f"Widget{number}")(made)


KINDS = [kind_of(number) for number in range(GROUPS)]


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
        for cls in KINDS:
            await client.create(definition(cls))
        return stack, client

    with asyncio.Runner() as runner:
        stack, client = runner.run(start())
        yield World(runner, client)
        runner.run(stack.aclose())


@cache
def values(number: int) -> st.SearchStrategy[dict[str, Any]]:
    return manifests(KINDS[number])


@given(data=st.data(), number=st.integers(0, GROUPS - 1))
def test_random_values_come_back_equal(data: st.DataObject, number: int, world: World) -> None:
    cls = KINDS[number]
    manifest = data.draw(values(number))
    # A server completes what has no class, such as a pod template.
    apply_schema_defaults(manifest["spec"], build(custom_resource_of(cls).schema).fields["spec"])
    sent, back = world.there_and_back(msgspec.convert(manifest, cls, strict=False))
    assert back.spec == sent.spec
