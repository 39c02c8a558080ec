"""Which policies apply to a request, and the limits of their cost."""

import subprocess
import sys
from typing import Any

import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.admission.validating_policies import ValidatingPolicy
from policy_server import ALL_MAPS, GROUP, Policies

#: Three nested loops over so many elements exceed the cost limit of an expression.
HUNDREDS = "[" + ",".join(["1"] * 300) + "]"


async def test_a_policy_for_another_version_sees_the_object_in_that_version(
    policies: Policies,
) -> None:
    rule = {**ALL_MAPS["resourceRules"][0], "apiGroups": ["events.k8s.io"], "resources": ["events"]}
    await policies.validate(
        "object.note == 'm' && object.kind == 'Event' && object.apiVersion == 'events.k8s.io/v1'",
        "request.resource.group == 'events.k8s.io' && request.requestResource.group == ''",
        {"expression": "object.regarding.name != 'x'", "message": "x"},
        matchConstraints={"resourceRules": [rule]},
    )
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"name": "x", "namespace": "default"},
        "message": "m",
    }
    status = await policies.client.call("POST", f"{CORE}/events", event, expect=422)
    assert status["message"].endswith("denied request: x")


async def test_exact_policies_mean_only_their_version(policies: Policies) -> None:
    rule = {**ALL_MAPS["resourceRules"][0], "apiGroups": ["events.k8s.io"], "resources": ["events"]}
    await policies.validate(
        "false", matchConstraints={"resourceRules": [rule], "matchPolicy": "Exact"}
    )
    event = {"metadata": {"name": "e"}, "involvedObject": {"name": "x", "namespace": "default"}}
    await policies.client.call("POST", f"{CORE}/events", event, expect=201)


async def test_a_changed_policy_counts_at_once_and_an_unbound_one_never(policies: Policies) -> None:
    await policies.validate("false")
    await policies.refused()
    path = f"{GROUP}/validatingadmissionpolicies/p1"
    spec = {"spec": {"validations": [{"expression": "true"}]}}
    await policies.client.merge(path, spec)
    await policies.made("b")
    await policies.client.merge(path, {"spec": {"validations": [{"expression": "false"}]}})
    await policies.client.call("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b-p1")
    await policies.made("c")


async def test_policies_are_compiled_once_for_many_requests(
    policies: Policies, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    compile_policy = ValidatingPolicy.__init__

    def counted(self: ValidatingPolicy, obj: Any) -> None:
        nonlocal made
        made += 1
        compile_policy(self, obj)

    monkeypatch.setattr(ValidatingPolicy, "__init__", counted)
    await policies.validate("true")
    for name in "abc":
        await policies.made(name)
    await policies.validate("true")
    await policies.made("d")
    assert made == 2


async def test_policies_never_judge_policies_or_reviews(policies: Policies) -> None:
    everything = {
        "apiGroups": ["*"],
        "apiVersions": ["*"],
        "operations": ["*"],
        "resources": ["*/*"],
    }
    await policies.validate("false", matchConstraints={"resourceRules": [everything]})
    await policies.refused()
    review = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    await policies.client.call("POST", path, review, expect=201)
    path = f"{GROUP}/validatingadmissionpolicybindings/b-p1"
    await policies.client.call("DELETE", path, expect=200)
    await policies.made()


async def test_an_expression_that_costs_too_much_is_stopped(policies: Policies) -> None:
    await policies.validate(
        f"{HUNDREDS}.all(a, {HUNDREDS}.all(b, {HUNDREDS}.all(c, a + b + c > 0)))"
    )
    said = await policies.refused()
    assert said.endswith("resulted in error: operation cancelled: actual cost limit exceeded")


async def test_all_expressions_of_a_policy_have_one_budget(policies: Policies) -> None:
    asked = "authorizer.path('/a').check('get').allowed()"
    await policies.validate(*[asked] * 28)
    await policies.made("a")
    await policies.validate(*[asked] * 29)
    assert await policies.refused("b") == (
        "validation failed due to running out of cost budget, no further validation rules will "
        "be run"
    )


async def test_a_policy_that_older_versions_stored_half_harms_nobody() -> None:
    async with EmbeddedAPIServer(controllers=False) as server, Client(server) as client:
        policies = Policies(server, client)
        await policies.validate("false", name="good")
        for kind in ("mutating", "validating"):
            for what, name in (("policies", "half"), ("policybindings", "half")):
                resource = server.table.get(GROUP.split("/")[2], "v1", f"{kind}admission{what}")
                assert resource is not None
                metadata = {"name": name, "uid": f"{kind}-{what}"}
                server.registry.store_as_is(resource, {"metadata": metadata})
        assert await policies.refused() == "failed expression: false"


def test_a_server_without_policies_never_loads_the_parser_of_expressions() -> None:
    program = (
        "import asyncio, sys\n"
        "from listwatch.apiserver import EmbeddedAPIServer\n"
        "async def main():\n"
        "    async with EmbeddedAPIServer(): pass\n"
        "asyncio.run(main())\n"
        "assert 'lark' not in sys.modules and 'listwatch.cel.program' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
