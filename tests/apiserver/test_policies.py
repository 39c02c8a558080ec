"""ValidatingAdmissionPolicies and MutatingAdmissionPolicies: what they see, say, and change."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.admission.chain import Mutator, Validator
from listwatch.apiserver.admission.matching import Attributes
from listwatch.apiserver.admission.validating_policies import ValidatingPolicy

GROUP = "/apis/admissionregistration.k8s.io/v1"
MAPS = f"{CORE}/configmaps"
MERGE = {"Content-Type": "application/merge-patch+json"}
ALL_MAPS = {
    "resourceRules": [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["*"],
            "resources": ["configmaps"],
        }
    ]
}
#: What an expression may cost takes about a second; so many elements cost more.
HUNDREDS = "[" + ",".join(["1"] * 300) + "]"


class Noted:
    """Keeps what an audit would say of each request."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []

    def mutator(self) -> Mutator | None:
        return None

    def validator(self) -> Validator:
        return self

    def validate(self, attributes: Attributes) -> None:
        self.seen.append(attributes.annotations)


class Policies:
    """A server, and the policies that a test gives it."""

    def __init__(self, server: EmbeddedAPIServer, client: Client) -> None:
        self.client = client
        self.noted = Noted()
        server.admission.append(self.noted)
        self._number = 0

    async def validate(self, *validations: Any, **parts: Any) -> None:
        """Make a validating policy and a binding; a validation may be an expression alone."""
        spec = {
            "matchConstraints": ALL_MAPS,
            "validations": [
                {"expression": each} if isinstance(each, str) else each for each in validations
            ],
        }
        binding = {"validationActions": ["Deny"]}
        await self._make("validating", spec, binding, parts)

    async def mutate(self, *mutations: Any, **parts: Any) -> None:
        """Make a mutating policy and a binding; what begins with a bracket is a JSON patch."""
        spec = {
            "matchConstraints": {
                "resourceRules": [
                    {**ALL_MAPS["resourceRules"][0], "operations": ["CREATE", "UPDATE"]}
                ]
            },
            "reinvocationPolicy": "Never",
            "mutations": [
                {"patchType": "JSONPatch", "jsonPatch": {"expression": each}}
                if each.startswith("[")
                else {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": each},
                }
                for each in mutations
            ],
        }
        await self._make("mutating", spec, {}, parts)

    async def _make(self, kind: str, spec: Any, binding: Any, parts: Any) -> None:
        self._number += 1
        name = parts.pop("name", f"p{self._number}")
        bound = {"policyName": name, **binding, **parts.pop("binding", {})}
        await self.client.create(f"{GROUP}/{kind}admissionpolicies", name, spec={**spec, **parts})
        await self.client.create(f"{GROUP}/{kind}admissionpolicybindings", f"b-{name}", spec=bound)

    async def refused(self, name: str = "a", *, code: int = 422, **fields: Any) -> str:
        """Try to make a ConfigMap; returns why that is refused."""
        body = {"metadata": {"name": name}, **fields}
        status = await self.client.call("POST", MAPS, body, expect=code)
        assert status["details"]["causes"][0]["message"] in status["message"]
        message: str = status["message"]
        return message.partition(" denied request: ")[2]

    async def made(self, name: str = "a", **fields: Any) -> Any:
        """Make a ConfigMap."""
        return await self.client.create(MAPS, name, **fields)


@pytest.fixture
async def policies() -> AsyncIterator[Policies]:
    async with EmbeddedAPIServer(seed=1) as server, Client(server) as client:
        yield Policies(server, client)


# -- validating ------------------------------------------------------------------------------


async def test_the_first_validation_that_is_not_true_is_told(policies: Policies) -> None:
    await policies.validate(
        "object.metadata.name != 'x'",
        {"expression": "has(object.data)", "message": " no data "},
        {"expression": "false", "message": "never"},
    )
    assert await policies.refused() == "no data"


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("'it is ' + object.metadata.name", "it is a"),
        ("'  '", "plain"),
        ("'two\\nlines'", "plain"),
        ("object.missing + ''", "plain"),
        ("string('x'.matches('x'))", "true"),
    ],
)
async def test_a_message_falls_back_where_its_expression_gives_none(
    policies: Policies, by: str, expected: str
) -> None:
    await policies.validate({"expression": "false", "message": "plain", "messageExpression": by})
    assert await policies.refused() == expected


@pytest.mark.parametrize(
    ("reason", "code"), [("Forbidden", 403), ("Invalid", 422), ("RequestEntityTooLarge", 413)]
)
async def test_a_reason_has_its_code(policies: Policies, reason: str, code: int) -> None:
    await policies.validate({"expression": "false", "reason": reason})
    await policies.refused(code=code)


async def test_a_refused_request_changes_nothing(policies: Policies) -> None:
    await policies.made("a", data={"x": "1"})
    await policies.validate("request.operation == 'CREATE'")
    patch = {"data": {"x": "2"}}
    await policies.client.call("PATCH", f"{MAPS}/a", patch, headers=MERGE, expect=422)
    await policies.client.call("DELETE", f"{MAPS}/a", expect=422)
    kept = await policies.client.call("GET", f"{MAPS}/a", expect=200)
    assert kept["data"] == {"x": "1"}


async def test_a_warning_is_sent_once_and_an_audit_has_every_failure(policies: Policies) -> None:
    twice = {"expression": "false", "message": "odd"}
    actions = {"validationActions": ["Warn", "Audit"]}
    await policies.validate(twice, twice, binding=actions)
    await policies.made()
    (noted,) = policies.noted.seen
    found = json.loads(noted["validation.policy.admission.k8s.io/validation_failure"])
    assert [(each["expressionIndex"], each["message"]) for each in found] == [
        (0, "odd"),
        (1, "odd"),
    ]
    assert found[0]["validationActions"] == ["Warn", "Audit"]
    assert (found[0]["policy"], found[0]["binding"]) == ("p1", "b-p1")


async def test_annotations_of_several_parameters_are_joined(policies: Policies) -> None:
    for name in ("one", "two"):
        await policies.made(name, metadata={"labels": {"p": "1"}}, data={"word": name})
    reference = {
        "selector": {"matchLabels": {"p": "1"}},
        "parameterNotFoundAction": "Deny",
    }
    await policies.validate(
        auditAnnotations=[
            {"key": "word", "valueExpression": "string(params.data.word)"},
            {"key": "none", "valueExpression": "null"},
            {"key": "empty", "valueExpression": "' '"},
        ],
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
        binding={"paramRef": reference},
    )
    await policies.made()
    assert policies.noted.seen == [{"p1/word": "one, two"}]


async def test_an_annotation_that_fails_refuses_even_if_the_binding_only_warns(
    policies: Policies,
) -> None:
    await policies.validate(
        auditAnnotations=[{"key": "x", "valueExpression": "object.missing + ''"}],
        binding={"validationActions": ["Warn"]},
    )
    assert "no such key: missing" in await policies.refused()


# -- parameters ------------------------------------------------------------------------------

OF_MAPS = {"apiVersion": "v1", "kind": "ConfigMap"}


def by_name(name: str, **others: Any) -> dict[str, Any]:
    return {"paramRef": {"name": name, "parameterNotFoundAction": "Deny", **others}}


async def test_a_parameter_is_that_of_the_request_s_namespace_unless_one_is_named(
    policies: Policies,
) -> None:
    await policies.client.create("/api/v1/namespaces", "other")
    elsewhere = "/api/v1/namespaces/other/configmaps"
    await policies.client.create(elsewhere, "limits", data={"word": "other"})
    await policies.made("limits", data={"word": "here"})
    says = {"expression": "false", "messageExpression": "string(params.data.word + params.kind)"}
    await policies.validate(says, paramKind=OF_MAPS, binding=by_name("limits"))
    assert await policies.refused() == "hereConfigMap"
    await policies.client.call("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b-p1")
    named = by_name("limits", namespace="other")
    await policies.validate(says, paramKind=OF_MAPS, binding=named)
    assert await policies.refused() == "otherConfigMap"


async def test_a_cluster_wide_parameter_has_no_namespace(policies: Policies) -> None:
    kind = {"apiVersion": "v1", "kind": "Namespace"}
    await policies.validate(
        "params.metadata.name == 'default'", paramKind=kind, binding=by_name("default")
    )
    await policies.made()
    named = by_name("default", namespace="default")
    await policies.validate("true", paramKind=kind, binding=named)
    assert await policies.refused("b") == (
        "failed to configure binding: paramRef.namespace must not be provided for a "
        "cluster-scoped `paramKind`"
    )


async def test_what_has_no_namespace_has_no_parameters_with_one(policies: Policies) -> None:
    nodes = {"resourceRules": [{**ALL_MAPS["resourceRules"][0], "resources": ["nodes"]}]}
    await policies.validate("true", matchConstraints=nodes, paramKind=OF_MAPS, binding=by_name("x"))
    status = await policies.client.call("POST", "/api/v1/nodes", {"metadata": {"name": "n"}})
    assert "cannot use namespaced paramRef in policy binding" in status["message"]
    assert status["message"].startswith('nodes "n" is forbidden: ValidatingAdmissionPolicy')


async def test_what_keeps_a_policy_from_being_applied_can_be_ignored(policies: Policies) -> None:
    await policies.validate(
        "true", paramKind=OF_MAPS, binding=by_name("missing"), failurePolicy="Ignore"
    )
    await policies.validate(
        "true",
        paramKind={"apiVersion": "example.com/v1", "kind": "Missing"},
        binding=by_name("x"),
        failurePolicy="Ignore",
    )
    await policies.validate("object.missing == 1", failurePolicy="Ignore")
    await policies.made()


# -- what applies ----------------------------------------------------------------------------


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


# -- budgets ---------------------------------------------------------------------------------


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


# -- mutating --------------------------------------------------------------------------------


async def test_patches_are_applied_in_their_order_and_seen_by_validations(
    policies: Policies,
) -> None:
    await policies.mutate(
        "Object{metadata: Object.metadata{labels: {'a': '1'}}}",
        "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('x.example/b'), "
        "value: object.metadata.labels.a + '2'}]",
    )
    await policies.validate("object.metadata.labels.size() == 2")
    made = await policies.made()
    assert made["metadata"]["labels"] == {"a": "1", "x.example/b": "12"}


async def test_nobody_owns_what_a_policy_adds(policies: Policies) -> None:
    await policies.mutate("Object{data: {'a': '1'}}")
    made = await policies.made(data={"b": "2"})
    (owner,) = made["metadata"]["managedFields"]
    assert owner["fieldsV1"] == {"f:data": {".": {}, "f:b": {}}}


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (
            (
                "[JSONPatch{op: 'test', path: '/data/a', value: '2'}, "
                "JSONPatch{op: 'add', path: '/data/b', value: 'x'}]"
            ),
            {"a": "1"},
        ),
        (
            (
                "[JSONPatch{op: 'test', path: '/data/a', value: '1'}, "
                "JSONPatch{op: 'remove', path: '/data/a'}]"
            ),
            None,
        ),
        ("[JSONPatch{op: 'move', from: '/data/a', path: '/data/c'}]", {"c": "1"}),
        ("[JSONPatch{op: 'copy', from: '/data/a', path: '/data/c'}]", {"a": "1", "c": "1"}),
        ("[JSONPatch{op: 'replace', path: '/data', value: {'z': 'y'}}]", {"z": "y"}),
        ("[JSONPatch{op: 'add', path: '/data', value: Object.data{q: 'r'}}]", {"q": "r"}),
    ],
)
async def test_a_json_patch_does_what_it_says(
    policies: Policies, patch: str, expected: Any
) -> None:
    await policies.mutate(patch)
    made = await policies.made(data={"a": "1"})
    assert made.get("data") == expected


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("[JSONPatch{op: 'remove', path: '/data/missing'}]", "JSON Patch: "),
        ("[JSONPatch{op: 'add', path: '/data', value: Object.x{a: Object.y{}}}]", "type mismatch"),
        ("Object{spec: Object.other{}}", "type mismatch: unexpected type name"),
        ("Object{nope: 'x'}", "failed to convert patch object to typed object: .nope: field not"),
        ("Object{metadata: Object.metadata{labels: {'a': object.missing}}}", "no such key"),
    ],
)
async def test_a_mutation_that_fails_refuses_unless_that_is_ignored(
    policies: Policies, patch: str, why: str
) -> None:
    await policies.mutate(patch)
    status = await policies.client.call("POST", MAPS, {"metadata": {"name": "a"}}, expect=403)
    assert status["reason"] == "Invalid"
    assert status["message"].startswith("policy 'p1' with binding 'b-p1' denied request: ")
    assert why in status["message"]
    await policies.client.merge(
        f"{GROUP}/mutatingadmissionpolicies/p1", {"spec": {"failurePolicy": "Ignore"}}
    )
    await policies.made()


async def test_what_can_only_be_set_as_a_whole_is_not_applied(policies: Policies) -> None:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    await policies.mutate(
        "Object{spec: Object.spec{containers: [Object.spec.containers{name: 'c', args: ['x']}]}}",
        matchConstraints={"resourceRules": [rule]},
    )
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    status = await policies.client.call("POST", f"{CORE}/pods", pod, expect=403)
    assert status["message"].endswith(
        "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or "
        "structs: .spec.containers[0].args"
    )


async def test_a_result_that_can_not_be_decoded_is_the_server_s_error(policies: Policies) -> None:
    await policies.mutate("[JSONPatch{op: 'add', path: '/data', value: 7}]")
    status = await policies.client.call("POST", MAPS, {"metadata": {"name": "a"}}, expect=500)
    assert status["reason"] == "InternalError"


async def test_a_policy_runs_again_if_a_later_one_changed_the_object(policies: Policies) -> None:
    counted = (
        "Object{data: {'n': string(has(object.data) && 'n' in object.data ? "
        "int(object.data.n) + 1 : 1)}}"
    )
    await policies.mutate(counted, reinvocationPolicy="IfNeeded", name="a")
    await policies.mutate("Object{data: {'late': 'x'}}", name="b")
    made = await policies.made()
    assert made["data"] == {"n": "2", "late": "x"}


async def test_a_policy_that_changes_nothing_makes_none_run_again(policies: Policies) -> None:
    counted = (
        "Object{data: {'n': string(has(object.data) && 'n' in object.data ? "
        "int(object.data.n) + 1 : 1)}}"
    )
    await policies.mutate(counted, reinvocationPolicy="IfNeeded", name="a")
    await policies.mutate("Object{}", name="b")
    made = await policies.made()
    assert made["data"] == {"n": "1"}


async def test_a_scale_can_be_changed(policies: Policies) -> None:
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    container = {"name": "c", "image": "i"}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    await policies.client.create(deployments, "d", spec=spec)
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["deployments/scale"],
    }
    await policies.mutate(
        "Object{spec: Object.spec{replicas: object.spec.replicas > 3 ? 3 : object.spec.replicas}}",
        matchConstraints={"resourceRules": [rule]},
    )
    scale = await policies.client.merge(f"{deployments}/d/scale", {"spec": {"replicas": 9}})
    assert scale["spec"] == {"replicas": 3}


async def test_an_object_is_changed_in_the_version_that_the_policy_means(
    policies: Policies,
) -> None:
    rule = {**ALL_MAPS["resourceRules"][0], "apiGroups": ["events.k8s.io"], "resources": ["events"]}
    await policies.mutate(
        "Object{note: 'changed'}",
        matchConstraints={"resourceRules": [{**rule, "operations": ["CREATE"]}]},
    )
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"name": "x", "namespace": "default"},
        "message": "m",
    }
    made = await policies.client.call("POST", f"{CORE}/events", event, expect=201)
    assert (made["message"], made["apiVersion"]) == ("changed", "v1")


# -- what is refused of a policy -------------------------------------------------------------

RULES = ALL_MAPS["resourceRules"][0]


def with_rule(**parts: Any) -> dict[str, Any]:
    return {"matchConstraints": {"resourceRules": [{**RULES, **parts}]}}


@pytest.mark.parametrize(
    ("parts", "field", "message"),
    [
        (
            {"failurePolicy": "Maybe"},
            "spec.failurePolicy",
            'Unsupported value: "Maybe": supported values: "Fail", "Ignore"',
        ),
        ({"matchConstraints": None}, "spec.matchConstraints", "Required value"),
        ({"matchConstraints": {}}, "spec.matchConstraints.resourceRules", "Required value"),
        (
            with_rule(operations=["*", "CREATE"]),
            "spec.matchConstraints.resourceRules[0].operations",
            "if '*' is present, must not specify other operations",
        ),
        (
            with_rule(operations=["READ"]),
            "spec.matchConstraints.resourceRules[0].operations[0]",
            'supported values: "*", "CONNECT", "CREATE", "DELETE", "UPDATE"',
        ),
        (
            with_rule(apiGroups=[]),
            "spec.matchConstraints.resourceRules[0].apiGroups",
            "Required value",
        ),
        (
            with_rule(apiVersions=[""]),
            "spec.matchConstraints.resourceRules[0].apiVersions[0]",
            "Required value",
        ),
        (
            with_rule(resources=["*", "pods"]),
            "spec.matchConstraints.resourceRules[0].resources",
            "if '*' is present, must not specify other resources without subresources",
        ),
        (
            with_rule(resources=["*/*", "pods"]),
            "spec.matchConstraints.resourceRules[0].resources",
            "if '*/*' is present, must not specify other resources",
        ),
        (
            with_rule(resources=["pods/*", "pods/status"]),
            "spec.matchConstraints.resourceRules[0].resources[1]",
            "if 'pods/*' is present, must not specify pods/status",
        ),
        (
            with_rule(scope="Some"),
            "spec.matchConstraints.resourceRules[0].scope",
            "Unsupported value",
        ),
        (
            with_rule(resourceNames=["a", "a"]),
            "spec.matchConstraints.resourceRules[0].resourceNames[1]",
            'Duplicate value: "a"',
        ),
        (
            with_rule(resourceNames=["a/b"]),
            "spec.matchConstraints.resourceRules[0].resourceNames[0]",
            "may not contain '/'",
        ),
        (
            {"validations": []},
            "spec.validations",
            "validations or auditAnnotations must contain at least one item",
        ),
        (
            {"validations": [{"expression": " "}]},
            "spec.validations[0].expression",
            "Required value: expression is not specified",
        ),
        (
            {"validations": [{"expression": "1 +"}]},
            "spec.validations[0].expression",
            'Invalid value: "1 +": compilation failed: ERROR: <input>:1:',
        ),
        (
            {"validations": [{"expression": "1"}]},
            "spec.validations[0].expression",
            "must evaluate to bool but got int",
        ),
        (
            {"validations": [{"expression": "object.spec.ready"}]},
            "spec.validations[0].expression",
            "must evaluate to bool but got dyn",
        ),
        (
            {"validations": [{"expression": "params.x == 1"}]},
            "spec.validations[0].expression",
            "undeclared reference to 'params'",
        ),
        (
            {"validations": [{"expression": "request.uid == ''"}]},
            "spec.validations[0].expression",
            "undefined field 'uid'",
        ),
        (
            {"validations": [{"expression": "Object{} == null"}]},
            "spec.validations[0].expression",
            "undeclared reference to 'Object'",
        ),
        (
            {"validations": [{"expression": "true", "message": "a\nb"}]},
            "spec.validations[0].message",
            "must not contain line breaks",
        ),
        (
            {"validations": [{"expression": "true", "reason": "Unauthorized"}]},
            "spec.validations[0].reason",
            'supported values: "Forbidden", "Invalid", "RequestEntityTooLarge"',
        ),
        (
            {"validations": [{"expression": "true", "messageExpression": "object.x"}]},
            "spec.validations[0].messageExpression",
            "must evaluate to string but got dyn",
        ),
        (
            {
                "validations": [
                    {
                        "expression": "true",
                        "messageExpression": "authorizer.path('/').check('get').reason()",
                    }
                ]
            },
            "spec.validations[0].messageExpression",
            "undeclared reference to 'authorizer'",
        ),
        (
            {"validations": [{"expression": "int('x') > 1"}]},
            "spec.validations[0].expression",
            "Internal error: program instantiation failed",
        ),
        (
            {"variables": [{"name": "a-b", "expression": "1"}]},
            "spec.variables[0].name",
            "name is not a valid CEL identifier",
        ),
        (
            {
                "variables": [
                    {"name": "a", "expression": "variables.b"},
                    {"name": "b", "expression": "1"},
                ]
            },
            "spec.variables[0].expression",
            "undefined field 'b'",
        ),
        (
            {"matchConditions": [{"name": "a", "expression": "variables.a"}]},
            "spec.matchConditions[0].expression",
            "undeclared reference to 'variables'",
        ),
        (
            {"matchConditions": [{"name": "a", "expression": "true"}] * 2},
            "spec.matchConditions[1].name",
            'Duplicate value: "a"',
        ),
        (
            {"matchConditions": [{"expression": "true"}]},
            "spec.matchConditions[0].name",
            "Required value",
        ),
        (
            {"matchConditions": [{"name": str(n), "expression": "true"} for n in range(65)]},
            "spec.matchConditions",
            "Too many: 65: must have at most 64 items",
        ),
        (
            {"auditAnnotations": [{"key": "a", "valueExpression": "1"}]},
            "spec.auditAnnotations[0].valueExpression",
            "must evaluate to one of [string null_type] but got int",
        ),
        (
            {"auditAnnotations": [{"key": "a", "valueExpression": "'x'"}] * 2},
            "spec.auditAnnotations[1].key",
            'Duplicate value: "a"',
        ),
        (
            {"auditAnnotations": [{"key": "a b", "valueExpression": "'x'"}]},
            "spec.auditAnnotations[0].key",
            'Invalid value: "p/a b"',
        ),
        (
            {"paramKind": {"apiVersion": "a/b/c", "kind": "K"}},
            "spec.paramKind.apiVersion",
            "unexpected GroupVersion string: a/b/c",
        ),
        ({"paramKind": {"apiVersion": "v1"}}, "spec.paramKind.kind", "Required value"),
    ],
)
async def test_a_wrong_policy_is_refused(
    policies: Policies, parts: Any, field: str, message: str
) -> None:
    spec = {"matchConstraints": ALL_MAPS, "validations": [{"expression": "true"}], **parts}
    body = {"metadata": {"name": "p"}, "spec": spec}
    path = f"{GROUP}/validatingadmissionpolicies?dryRun=All"
    status = await policies.client.call("POST", path, body, expect=422)
    found = [each for each in status["details"]["causes"] if each["field"] == field]
    assert [each for each in found if message in each["message"]], status["details"]["causes"]


@pytest.mark.parametrize(
    ("parts", "field", "message"),
    [
        ({"reinvocationPolicy": None}, "spec.reinvocationPolicy", "Required value"),
        ({"reinvocationPolicy": "Often"}, "spec.reinvocationPolicy", "Unsupported value"),
        ({"mutations": []}, "spec.mutations", "mutations must contain at least one item"),
        ({"mutations": [{}]}, "spec.mutations[0].patchType", "Required value"),
        (
            {"mutations": [{"patchType": "Merge"}]},
            "spec.mutations[0].patchType",
            'supported values: "ApplyConfiguration", "JSONPatch"',
        ),
        (
            {"mutations": [{"patchType": "JSONPatch"}]},
            "spec.mutations[0].jsonPatch",
            "must be specified when patchType is JSONPatch",
        ),
        (
            {
                "mutations": [
                    {
                        "patchType": "JSONPatch",
                        "jsonPatch": {"expression": "[]"},
                        "applyConfiguration": {"expression": "Object{}"},
                    }
                ]
            },
            "spec.mutations[0].applyConfiguration",
            '"{applyConfiguration}": must not be specified when patchType is JSONPatch',
        ),
        (
            {"mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[1]"}}]},
            "spec.mutations[0].jsonPatch.expression",
            "must evaluate to list(JSONPatch) but got list(int)",
        ),
        (
            {
                "mutations": [
                    {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{nope: 1}]"}}
                ]
            },
            "spec.mutations[0].jsonPatch.expression",
            "undefined field 'nope'",
        ),
        (
            {
                "mutations": [
                    {
                        "patchType": "ApplyConfiguration",
                        "applyConfiguration": {"expression": "Object.spec{}"},
                    }
                ]
            },
            "spec.mutations[0].applyConfiguration.expression",
            "must evaluate to Object but got Object.spec",
        ),
        (
            with_rule(operations=["DELETE"]),
            "spec.matchConstraints.resourceRules.operations",
            'Unsupported value: "DELETE": supported values: "*", "CONNECT", "CREATE", "UPDATE"',
        ),
    ],
)
async def test_a_wrong_mutating_policy_is_refused(
    policies: Policies, parts: Any, field: str, message: str
) -> None:
    mutation = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{}"}}
    spec = {
        **with_rule(operations=["CREATE"]),
        "reinvocationPolicy": "Never",
        "mutations": [mutation],
        **parts,
    }
    body = {"metadata": {"name": "p"}, "spec": spec}
    path = f"{GROUP}/mutatingadmissionpolicies?dryRun=All"
    status = await policies.client.call("POST", path, body, expect=422)
    found = [each for each in status["details"]["causes"] if each["field"] == field]
    assert [each for each in found if message in each["message"]], status["details"]["causes"]


async def test_a_binding_of_a_mutating_policy_needs_no_actions(policies: Policies) -> None:
    path = f"{GROUP}/mutatingadmissionpolicybindings"
    await policies.client.create(path, "b", spec={"policyName": "p"})
    body = {"metadata": {"name": "c"}, "spec": {"policyName": ""}}
    status = await policies.client.call("POST", path, body, expect=422)
    assert status["details"]["causes"] == [
        {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.policyName"}
    ]


# -- types -----------------------------------------------------------------------------------

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
    """Return the status of a policy, once its controller has seen that generation."""
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
    # a StatefulSet can't be paused; a Deployment can
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
