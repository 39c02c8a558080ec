"""Models of other clients name their resource, and are read and written as resource types are."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from listwatch.client import Client
from listwatch.objects.resource_types import name_of_resource
from listwatch.runtime import Manager, apply, finalize, owner_reference, update_status
from listwatch.testing import APIServer, eventually
from third_party import needed

WEB = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx"}]},
        },
    },
}


def lightkube_deployment() -> Any:
    needed("lightkube")
    return needed("lightkube.resources.apps_v1").Deployment


def kubernetes_deployment() -> Any:
    model = needed("kubernetes").client.V1Deployment
    if not hasattr(model, "model_validate_json"):
        pytest.skip("models of kubernetes can be created from JSON from 37 on")
    return model


MODELS = pytest.mark.parametrize("find", [lightkube_deployment, kubernetes_deployment])


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with APIServer() as server, server.client() as made:
        yield made


@MODELS
def test_a_model_names_its_resource(find: Any) -> None:
    assert name_of_resource(find()) == "deployments.v1.apps"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("V1Pod", "pods.v1."),
        ("V1Endpoints", "endpoints.v1."),
        ("V1NetworkPolicy", "networkpolicies.v1.networking.k8s.io"),
        ("CoreV1Event", "events.v1."),
        ("EventsV1Event", "events.v1.events.k8s.io"),
        ("V1APIService", "apiservices.v1.apiregistration.k8s.io"),
    ],
)
def test_a_model_of_kubernetes_is_found_by_its_class(model: str, name: str) -> None:
    kubernetes_deployment()
    assert name_of_resource(getattr(needed("kubernetes").client, model)) == name


def test_a_model_of_no_resource_is_refused() -> None:
    kubernetes_deployment()
    with pytest.raises(TypeError, match="V1PodSpec is no resource"):
        name_of_resource(needed("kubernetes").client.V1PodSpec)


@MODELS
async def test_the_verbs_take_a_model(find: Any, client: Client) -> None:
    model = find()
    await client.create(WEB)
    read = await client.get(model, "web", "default")
    assert isinstance(read, model)
    assert read.spec.replicas == 1

    def grow(deployment: Any) -> None:
        deployment.spec.replicas = 2

    grown = await client.update_existing(model, "web", grow, "default")
    assert isinstance(grown, model)
    assert (await client.get("deployments", "web", "default"))["spec"]["replicas"] == 2
    assert owner_reference(grown)["name"] == "web"

    async def clean_up(gone: Any) -> None:
        raise AssertionError(gone)

    held = await finalize(client, grown, "example.com/f", clean_up)
    assert held is not None
    assert held.metadata.finalizers == ["example.com/f"]
    written = await update_status(client, held, {"observedGeneration": 7})
    assert isinstance(written, model)
    stored = await client.get("deployments", "web", "default")
    assert stored["status"]["observedGeneration"] == 7
    assert stored["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx"


@MODELS
async def test_a_reconciler_reads_a_model(find: Any, client: Client) -> None:
    model = find()
    app = Manager("web", config=client.config, health_port=None)
    deployments = app.reconciler(model)
    seen: list[Any] = []

    @deployments
    async def reconcile(key: str) -> None:
        seen.append(deployments.get(key))

    async with app:
        applied = await apply(client, WEB, field_manager="me")
        assert applied.name == "web"
        await eventually(lambda: seen)
    assert isinstance(seen[0], model)
    assert seen[0].spec.replicas == 1
