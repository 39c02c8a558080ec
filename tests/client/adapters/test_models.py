"""Informers deliver other libraries' models, tested with the real libraries."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from listwatch.cache.failures import Failure
from listwatch.cache.handlers import Added, HandlerFuncs
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.objects import ObjectDecodeError
from listwatch.testing.fake_controller_source import FakeControllerSource
from third_party import needed

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def pod(name: str, containers: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}},
        "spec": {"nodeName": "node-1", "containers": containers},
        "status": {"podIP": "10.0.0.1", "startTime": "2026-01-02T03:04:05Z"},
    }


FITS = pod("fits", [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}])
MISFIT = pod("bad", "s3cret")


# Each yields an argument for `decode=`.


@asynccontextmanager
async def pydantic() -> AsyncIterator[Any]:
    library = needed("pydantic")

    def camel(name: str) -> str:
        first, *others = name.split("_")
        return first + "".join("IP" if part == "ip" else part.title() for part in others)

    class Model(library.BaseModel):  # type: ignore[name-defined, misc]  # imported late
        model_config = library.ConfigDict(alias_generator=camel)

    class Metadata(Model):
        name: str

    class Port(Model):
        container_port: int

    class Container(Model):
        ports: list[Port]

    class Spec(Model):
        node_name: str
        containers: list[Container]

    class Status(Model):
        pod_ip: str
        start_time: datetime

    class Pod(Model):
        metadata: Metadata
        spec: Spec
        status: Status

    yield Pod


@asynccontextmanager
async def lightkube_model() -> AsyncIterator[Any]:
    needed("lightkube")
    yield needed("lightkube.models.core_v1").Pod


@asynccontextmanager
async def lightkube_resource() -> AsyncIterator[Any]:
    needed("lightkube")
    yield needed("lightkube.resources.core_v1").Pod


@asynccontextmanager
async def lightkube_from_dict() -> AsyncIterator[Any]:
    needed("lightkube")
    # Older versions decode lazily by default, and find a misfit only when it is read.
    yield partial(needed("lightkube.resources.core_v1").Pod.from_dict, lazy=False)


@asynccontextmanager
async def kubernetes() -> AsyncIterator[Any]:
    client = needed("kubernetes").client
    if hasattr(client.V1Pod, "model_validate_json"):
        yield client.V1Pod
        return
    api_client = client.ApiClient()
    yield lambda value: api_client.deserialize(
        SimpleNamespace(data=json.dumps(value)), client.V1Pod
    )


@asynccontextmanager
async def kubernetes_aio() -> AsyncIterator[Any]:
    yield needed("kubernetes.aio").client.V1Pod


@asynccontextmanager
async def kubernetes_asyncio() -> AsyncIterator[Any]:
    client = needed("kubernetes_asyncio").client
    async with client.ApiClient() as api_client:
        yield lambda value: api_client.deserialize(
            SimpleNamespace(data=json.dumps(value)), client.V1Pod
        )


MAKERS = [
    pydantic,
    lightkube_model,
    lightkube_resource,
    lightkube_from_dict,
    kubernetes,
    kubernetes_aio,
    kubernetes_asyncio,
]


def what_is_read(one: Any) -> tuple[Any, ...]:
    """Read a model whose attributes are in snake or in camel case."""
    snake = hasattr(one.spec, "node_name")
    port = one.spec.containers[0].ports[0]
    return (
        one.metadata.name,
        one.spec.node_name if snake else one.spec.nodeName,
        one.status.pod_ip if snake else one.status.podIP,
        one.status.start_time if snake else one.status.startTime,
        port.container_port if snake else port.containerPort,
    )


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
async def test_lister_handlers_and_changes_speak_in_the_model(
    maker: Callable[[], AbstractAsyncContextManager[Any]],
) -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(MISFIT)
    source.add(FITS)
    failures: list[Failure] = []
    told: list[tuple[Any, ...]] = []

    def on_error(failure: Failure) -> None:
        assert isinstance(failure, Failure)
        failures.append(failure)

    def on_add(obj: Any, _: bool) -> None:
        told.append(what_is_read(obj))

    expected = ("fits", "node-1", "10.0.0.1", STARTED, 80)
    async with (
        maker() as model,
        SharedInformer(source, decode=model, clock=clock, on_error=on_error) as informer,
    ):
        listener = informer.add_handler(HandlerFuncs(on_add))
        await listener.wait_for_sync()
        assert told == [expected]
        assert what_is_read(informer.lister.get("fits", "shop")) == expected
        async with aclosing(informer.changes()) as changes:
            first = await anext(changes)
        assert isinstance(first, Added)
        assert what_is_read(first.obj) == expected
        with pytest.raises(ObjectDecodeError, match="Pod shop/bad does not fit ") as caught:
            informer.lister.get("bad", "shop")
        assert caught.value.key == "shop/bad"
        assert caught.value.__cause__ is not None
    assert listener.statistics().handler.failed == 1
    assert sorted(failure.doing for failure in failures) == ["changes", "handler of added"]
    assert {failure.key for failure in failures} == {"shop/bad"}
    assert not [failure for failure in failures if "s3cret" in str(failure)]


@pytest.mark.parametrize("name", ["kubernetes", "kubernetes_asyncio"])
async def test_a_model_that_is_not_made_of_a_dict_is_refused_with_the_remedy(name: str) -> None:
    model = needed(name).client.V1Pod
    if hasattr(model, "model_validate_json"):
        pytest.skip("these models are pydantic's")
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(FITS)
    async with SharedInformer(source, decode=model, clock=clock) as informer:
        await informer.wait_for_sync()
        with pytest.raises(TypeError, match=r"^V1Pod cannot be built from a dict: .*deserialize"):
            informer.lister.list()
