"""The configurations in the cluster: made, kept, changed and removed."""

import base64
from typing import Any

import pytest

from listwatch import Client
from listwatch.errors import ConflictError, NotFoundError
from listwatch.webhooks import HookOptions
from listwatch.webhooks.certificates import Authority, ServingCertificate, make_certificate
from listwatch.webhooks.hooks import AdmissionHook, Target
from listwatch.webhooks.registration import (
    DEFINITIONS,
    Address,
    Registrar,
    Wanted,
    authorities_of,
    remove_configurations,
)
from webhooks.websites import Website

NOW = 1_700_000_000.0
ADDRESS = Address(namespace="web", service="hooks")
VALIDATING = "validatingwebhookconfigurations"
MUTATING = "mutatingwebhookconfigurations"


def hook(name: str, *, mutating: bool = False) -> AdmissionHook[Any]:
    options = HookOptions(match_conditions={"a": "true"})
    return AdmissionHook(
        Target(Website), lambda _: None, mutating=mutating, options=options, name=name
    )


def wanted(*hooks: AdmissionHook[Any], **options: Any) -> Wanted:
    given: dict[str, Any] = {"conversions": {}, "address": ADDRESS, **options}
    return Wanted(name="sites", hooks=hooks, **given)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_certificate(["a"], NOW).authority


@pytest.fixture(scope="module")
def other() -> ServingCertificate:
    return make_certificate(["b"], NOW)


async def published(client: Client, plan: Wanted, *authorities: Authority) -> int:
    registrar = Registrar(client, plan)
    return await registrar.publish(await registrar.read(), authorities)


async def test_what_is_published_once_is_not_written_again(
    client: Client, authority: Authority
) -> None:
    plan = wanted(hook("check"), hook("complete", mutating=True), excluded=["web"])
    assert await published(client, plan, authority) == 2
    found = await client.get(VALIDATING, "sites")
    assert await published(client, plan, authority) == 0
    (webhook,) = found["webhooks"]
    assert webhook["name"] == "check.websites.example.com"
    assert webhook["clientConfig"]["service"] == {
        "namespace": "web",
        "name": "hooks",
        "path": "/validate/check",
        "port": 443,
    }
    assert authorities_of(webhook["clientConfig"]) == (authority,)


async def test_a_change_of_the_hooks_or_authorities_is_published(
    client: Client, authority: Authority, other: ServingCertificate
) -> None:
    await published(client, wanted(hook("check")), authority)
    both = (authority, other.authority)
    plan = wanted(hook("check"), hook("also"))
    assert await published(client, plan, *both) == 1
    webhooks = (await client.get(VALIDATING, "sites"))["webhooks"]
    assert [one["name"].partition(".")[0] for one in webhooks] == ["check", "also"]
    assert authorities_of(webhooks[0]["clientConfig"]) == both
    registrar = Registrar(client, plan)
    assert (await registrar.read()).bundles(plan) == [both, both]


async def test_a_configuration_without_hooks_is_deleted_if_a_manager_made_it(
    client: Client, authority: Authority
) -> None:
    await published(client, wanted(hook("check")), authority)
    assert await published(client, wanted(hook("complete", mutating=True)), authority) == 2
    with pytest.raises(NotFoundError):
        await client.get(VALIDATING, "sites")


async def test_of_a_configuration_from_a_manifest_only_the_authorities_are_set(
    client: Client, authority: Authority
) -> None:
    plan = wanted(hook("check"))
    manifest = plan.configuration(VALIDATING, None)
    assert manifest is not None
    manifest["metadata"] = {"name": "sites", "labels": {"chart": "sites"}}
    manifest["webhooks"][0]["timeoutSeconds"] = 3
    others = {**manifest["webhooks"][0], "name": "other.hooks.example.com"}
    manifest["webhooks"].append(others)
    await client.create(manifest)
    assert await published(client, plan, authority) == 1
    assert await published(client, plan, authority) == 0
    mine, theirs = (await client.get(VALIDATING, "sites"))["webhooks"]
    assert (mine["timeoutSeconds"], authorities_of(mine["clientConfig"])) == (3, (authority,))
    assert "caBundle" not in theirs["clientConfig"]
    assert await remove_configurations(client, "sites") == 0


async def test_without_registering_nothing_is_created(client: Client, authority: Authority) -> None:
    assert await published(client, wanted(hook("check"), creates=False), authority) == 0


async def test_a_definition_converts_by_the_webhook_and_the_rest_of_it_stays(
    websites: Client, authority: Authority
) -> None:
    client = websites
    name = "websites.example.com"
    plan = wanted(conversions={name: "/convert/websites", "absent.example.com": "/convert/no"})
    before = (await client.get(DEFINITIONS, name)).to_dict()["spec"]
    assert await published(client, plan, authority) == 1
    assert await published(client, plan, authority) == 0
    after = (await client.get(DEFINITIONS, name)).to_dict()["spec"]
    assert after.pop("conversion") == {
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": {
                "service": {
                    "namespace": "web",
                    "name": "hooks",
                    "path": "/convert/websites",
                    "port": 443,
                },
                "caBundle": base64.b64encode(authority.pem).decode(),
            },
            "conversionReviewVersions": ["v1"],
        },
    }
    before.pop("conversion")
    assert after == before
    registrar = Registrar(client, plan)
    assert (await registrar.read()).bundles(plan) == [(authority,)]


async def test_a_bundle_that_changed_after_it_was_read_is_not_overwritten(
    client: Client, authority: Authority, other: ServingCertificate
) -> None:
    plan = wanted(hook("check"))
    await published(client, plan, authority)
    registrar = Registrar(client, plan)
    outdated = await registrar.read()
    await published(client, plan, authority, other.authority)
    with pytest.raises(ConflictError):
        await registrar.publish(outdated, [])
    assert (await registrar.read()).bundles(plan) == [(authority, other.authority)]


def test_a_bundle_that_is_no_certificate_counts_as_empty() -> None:
    assert authorities_of({"caBundle": "AAAA"}) == ()
    assert authorities_of({"caBundle": "?"}) == ()
    assert authorities_of({}) == ()


async def test_removal_leaves_what_others_made(client: Client, authority: Authority) -> None:
    await published(client, wanted(hook("check"), hook("complete", mutating=True)), authority)
    assert await remove_configurations(client, "other") == 0
    assert await remove_configurations(client, "sites") == 2
    assert (await client.list(MUTATING)).items == []
