"""A definition is created, updated, or refused in one line that says what to do."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import msgspec
import pytest

from listwatch.client import Client
from listwatch.objects import Object, decode_object
from listwatch.resources import (
    InstallError,
    ObjectMeta,
    ResourceTypeError,
    Rule,
    install,
    resource,
)
from listwatch.runtime.packaging.definitions import definitions_among
from listwatch.testing import APIServer


def site(version: str = "v1", *, size: type = int, **options: Any) -> type:
    spec = msgspec.defstruct("Spec", [("size", size)])
    made = msgspec.defstruct("Site", [("metadata", ObjectMeta), ("spec", spec)])
    return resource("example.com", version, **options)(made)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with APIServer() as server, server.client() as made:
        yield made


async def test_a_definition_is_created_then_updated(client: Client) -> None:
    made = await install(client, site())
    assert made.name == "sites.example.com"
    conversion = {"strategy": "None"}
    await client.patch(
        "crds", made.name, {"metadata": {"labels": {"a": "b"}}, "spec": {"conversion": conversion}}
    )
    both = await install(client, site(), site("v2"))
    assert [one["name"] for one in both["spec"]["versions"]] == ["v2", "v1"]
    assert both.labels == {"a": "b"}
    assert both["spec"]["conversion"] == conversion
    again = await install(client, site(), site("v2"))
    assert again.resource_version == both.resource_version


@pytest.mark.parametrize(
    ("types", "words"),
    [
        (
            [site(kind="Page", plural="sites")],
            "the plural is taken by the kind Site: give Page another plural= or group",
        ),
        (
            [site(scope="Cluster")],
            "the scope is Namespaced and can't become Cluster: delete the definition, and with it",
        ),
        (
            [site("v2")],
            "objects may be stored in v1, which the types lack: run `listwatch migrate sites.exam",
        ),
    ],
)
async def test_what_conflicts_is_one_line_with_the_remedy(
    client: Client, types: Sequence[type], words: str
) -> None:
    await install(client, site())
    with pytest.raises(InstallError) as refused:
        await install(client, *types)
    assert str(refused.value).startswith(f"sites.example.com: {words}")
    assert "\n" not in str(refused.value)


async def test_names_that_the_server_does_not_accept_are_told(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {"type": "NamesAccepted", "status": "False", "message": '"si" is already in use'}

    async def refused(_resource: str, name: str, is_decided: Any, **_: Any) -> Object:
        crd = {"kind": "CustomResourceDefinition", "apiVersion": "v1", "metadata": {"name": name}}
        whole = decode_object(msgspec.json.encode({**crd, "status": {"conditions": [taken]}}))
        assert is_decided(whole)
        return whole

    monkeypatch.setattr(client, "wait_for", refused)
    with pytest.raises(InstallError, match=r'^sites.example.com: "si" is already in use: choose'):
        await install(client, site())


def test_two_kinds_of_one_file_with_one_plural_are_refused() -> None:
    names = {"a": site(), "b": site(kind="Page", plural="sites")}
    with pytest.raises(ResourceTypeError, match="plural is taken by the kind Site: give Page ano"):
        definitions_among(names)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            "self > 'a'",
            "\"self > 'a'\" does not compile: line 1, column 6: found no matching overload",
        ),
        ("self >\n", "'self >\\n' does not compile: line 2, column 1: "),
    ],
)
def test_a_rule_that_does_not_compile_is_shown_with_the_position(rule: str, words: str) -> None:
    with pytest.raises(ResourceTypeError) as refused:
        site(size=Annotated[int, Rule(rule)])  # type: ignore[arg-type] # a hint
    assert str(refused.value).startswith(f"Site: spec.size rule [0]: {words}")
    assert "\n" not in str(refused.value)
