"""ValidatingAdmissionPolicies: refusals, warnings, audit annotations and parameters."""

import json
from typing import Any

import pytest

from policy_server import ALL_MAPS, GROUP, MAPS, MERGE, OF_MAPS, Policies


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
