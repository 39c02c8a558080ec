"""Validation of policies and their bindings."""

from typing import Any

import pytest

from policy_server import ALL_MAPS, GROUP, Policies

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
