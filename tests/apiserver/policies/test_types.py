"""A policy's expressions are type-checked, and its status shows the mismatches."""

import asyncio
from typing import Any

from api_client import Client
from listwatch.apiserver import EmbeddedAPIServer
from policy_server import GROUP, OF_MAPS, Policies

OF_DEPLOYMENTS = {
    "resourceRules": [
        {
            "apiGroups": ["apps"],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["deployments", "statefulsets"],
        }
    ]
}


async def status_of(client: Client, name: str = "p1", generation: int = 1) -> Any:
    """Return the status of a policy once its controller has observed the generation."""
    for _ in range(100):
        found = await client.call("GET", f"{GROUP}/validatingadmissionpolicies/{name}")
        if found.get("status", {}).get("observedGeneration") == generation:
            return found["status"]
        await asyncio.sleep(0)
    raise AssertionError("the controller has not looked at the policy")


async def test_the_status_tells_which_expressions_do_not_fit_the_types(policies: Policies) -> None:
    await policies.validate(
        "object.spec.replicas <= 3 && object.metadata.labels['a'] == 'b'",
        "object.spec.template.spec.containers.all(c, c.image.startsWith('a'))",
        {"expression": "object.spec.paused", "messageExpression": "string(object.spec.paused)"}
        | {"expression": "object.spec.paused == true"},
        "oldObject.spec.replicas == 'x' || variables.containers.size() > params.data",
        variables=[{"name": "containers", "expression": "object.spec.template.spec.containers"}],
        paramKind=OF_MAPS,
        matchConstraints=OF_DEPLOYMENTS,
    )
    found = (await status_of(policies.client))["typeChecking"]["expressionWarnings"]
    assert [each["fieldRef"] for each in found] == [
        "spec.validations[2].expression",
        "spec.validations[2].messageExpression",
        "spec.validations[3].expression",
    ]
    # only a Deployment can be paused
    assert found[0]["warning"] == (
        "apps/v1, Kind=StatefulSet: ERROR: <input>:1:12: undefined field 'paused'\n"
        " | object.spec.paused == true\n"
        " | ...........^\n"
    )
    assert found[2]["warning"].count("found no matching overload for '_==_'") == 2
    assert found[2]["warning"].count("found no matching overload for '_>_'") == 2


async def test_a_policy_without_problems_says_so_for_each_generation(policies: Policies) -> None:
    await policies.validate("object.spec.replicas > 1", matchConstraints=OF_DEPLOYMENTS)
    assert await status_of(policies.client) == {"observedGeneration": 1, "typeChecking": {}}
    path = f"{GROUP}/validatingadmissionpolicies/p1"
    wrong = {"spec": {"validations": [{"expression": "object.replicas > 1"}]}}
    await policies.client.merge(path, wrong)
    status = await status_of(policies.client, generation=2)
    assert len(status["typeChecking"]["expressionWarnings"]) == 1


async def test_types_that_refer_to_themselves_and_wildcards_are_no_trouble(
    policies: Policies,
) -> None:
    rule = {
        "apiGroups": ["apiextensions.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["customresourcedefinitions"],
    }
    everything = {**rule, "apiGroups": ["*"], "resources": ["*"]}
    deep = "object.spec.versions.all(v, v.schema.openAPIV3Schema.items.items.items.type == 'x')"
    await policies.validate(
        f"{deep} || true", "true", matchConstraints={"resourceRules": [rule, everything]}
    )
    await status_of(policies.client)


async def test_without_controllers_nobody_checks_types() -> None:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        policies = Policies(server, client)
        await policies.validate("object.nope == 1", matchConstraints=OF_DEPLOYMENTS)
        for _ in range(10):
            found = await client.call("GET", f"{GROUP}/validatingadmissionpolicies/p1")
        assert found["status"] == {}
