"""Requests that a webhook or a policy applies to, and match conditions."""

from typing import Any

import pytest

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.access.auth import ADMINISTRATOR
from listwatch.apiserver.admission.expressions import Subject
from listwatch.apiserver.admission.matching import Attributes, Criteria, in_version
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.cluster import StoredCluster
from listwatch.apiserver.storage.registry import WriteContext
from listwatch.apiserver.user import User
from listwatch.cel.admission import (
    MATCH_BUDGET,
    Evaluation,
    ExpressionError,
    MatchConditions,
    OutOfBudgetError,
    Vocabulary,
    compile_as,
)
from listwatch.cel.types import BOOL, STRING
from listwatch.errors import NotFoundError

SERVER = EmbeddedAPIServer(seed=1)
CLUSTER = StoredCluster(SERVER.store, SERVER.table)


def resource(group: str, version: str, name: str) -> APIResource:
    found = SERVER.table.get(group, version, name)
    assert found is not None
    return found


CONFIG_MAPS = resource("", "v1", "configmaps")
DEPLOYMENTS = resource("apps", "v1", "deployments")
NAMESPACES = resource("", "v1", "namespaces")
NODES = resource("", "v1", "nodes")
EVENTS = resource("", "v1", "events")
NEW_EVENTS = resource("events.k8s.io", "v1", "events")


def attributes(of: APIResource = CONFIG_MAPS, **others: Any) -> Attributes:
    others.setdefault("operation", "CREATE")
    if of.namespaced:
        others.setdefault("namespace", "default")
    others.setdefault("name", "a")
    others.setdefault("user", ADMINISTRATOR)
    return Attributes(resource=of, **others)


def rule(**parts: Any) -> dict[str, Any]:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["configmaps"],
        **parts,
    }


def is_meant(criteria: Criteria, given: Attributes) -> bool:
    return criteria.match(given, CLUSTER) is not None


@pytest.mark.parametrize(
    ("parts", "given", "expected"),
    [
        ({}, {}, True),
        ({"operations": ["UPDATE", "DELETE"]}, {}, False),
        ({"operations": ["*"]}, {"operation": "DELETE"}, True),
        ({"apiGroups": ["apps"]}, {}, False),
        ({"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}, {"of": NODES}, True),
        ({"apiVersions": ["v2"]}, {}, False),
        ({"resources": ["secrets"]}, {}, False),
        ({"resources": ["*"]}, {"of": NAMESPACES, "subresource": "status"}, False),
        ({"resources": ["*/*"]}, {"of": NAMESPACES, "subresource": "status"}, True),
        ({"resources": ["*/*"]}, {}, True),
        ({"resources": ["namespaces/*"]}, {"of": NAMESPACES}, True),
        ({"resources": ["*/status"]}, {"of": NAMESPACES, "subresource": "status"}, True),
        ({"resources": ["*/status"]}, {"of": NAMESPACES}, False),
        ({"scope": "Namespaced"}, {}, True),
        ({"scope": "Cluster"}, {}, False),
        ({"scope": "Cluster", "resources": ["*"]}, {"of": NODES}, True),
        ({"scope": "Cluster", "resources": ["*"]}, {"of": NAMESPACES, "namespace": "a"}, True),
        ({"scope": "Namespaced", "resources": ["*"]}, {"of": NAMESPACES, "namespace": "a"}, False),
        ({"resourceNames": ["a", "b"]}, {}, True),
        ({"resourceNames": ["b"]}, {}, False),
    ],
)
def test_a_rule_means_what_all_its_parts_mean(
    parts: dict[str, Any], given: dict[str, Any], expected: bool
) -> None:
    assert is_meant(Criteria([rule(**parts)]), attributes(**given)) is expected


def test_other_versions_and_groups_are_meant_unless_the_policy_is_exact() -> None:
    rules = [rule(apiGroups=["events.k8s.io"], resources=["events"])]
    assert Criteria(rules).match(attributes(EVENTS), CLUSTER) is NEW_EVENTS
    assert Criteria(rules, equivalent=False).match(attributes(EVENTS), CLUSTER) is None
    assert Criteria(rules).match(attributes(NEW_EVENTS), CLUSTER) is NEW_EVENTS


def test_what_is_excluded_is_not_meant_in_an_equivalent_version_either() -> None:
    excluded = [rule(apiGroups=["events.k8s.io"], resources=["events"])]
    assert not is_meant(Criteria([rule(resources=["*"])], excluded=excluded), attributes(EVENTS))


def test_without_rules_a_binding_means_everything_and_a_webhook_nothing() -> None:
    assert is_meant(Criteria.of_match_resources(None), attributes())
    assert is_meant(Criteria.of_match_resources({"namespaceSelector": {}}), attributes())
    assert not is_meant(Criteria.of_webhook({}), attributes())


SELECTOR = {"matchLabels": {"a": "b"}}


@pytest.mark.parametrize("part", ["obj", "old"])
def test_objects_are_selected_by_their_new_or_their_old_labels(part: str) -> None:
    criteria = Criteria([rule(operations=["*"])], objects=SELECTOR)
    labelled = {"metadata": {"labels": {"a": "b"}}}
    states: dict[str, Any] = {"obj": {"metadata": {}}, "old": {"metadata": {}}, part: labelled}
    assert is_meant(criteria, attributes(operation="UPDATE", **states))
    assert not is_meant(criteria, attributes(operation="UPDATE", obj={"metadata": {}}))


def test_namespaces_are_selected_by_their_labels_and_new_ones_by_those_they_will_have() -> None:
    name = {"matchLabels": {"kubernetes.io/metadata.name": "default"}}
    criteria = Criteria([rule(resources=["*"], operations=["*"])], namespaces=name)
    assert is_meant(criteria, attributes())
    assert not is_meant(criteria, attributes(namespace="kube-system"))
    assert is_meant(criteria, attributes(NODES))
    given = {"metadata": {"labels": name["matchLabels"]}}
    assert is_meant(criteria, attributes(NAMESPACES, namespace="new", obj=given))
    assert not is_meant(criteria, attributes(NAMESPACES, namespace="new", obj={"metadata": {}}))
    gone = attributes(NAMESPACES, namespace="default", name="default", operation="DELETE")
    assert is_meant(criteria, gone)


def test_a_missing_namespace_counts_only_for_what_is_meant_otherwise() -> None:
    criteria = Criteria([rule()], namespaces=SELECTOR)
    assert not is_meant(criteria, attributes(NODES, namespace="nowhere"))
    with pytest.raises(NotFoundError, match='namespaces "nowhere" not found'):
        criteria.match(attributes(namespace="nowhere"), CLUSTER)


def test_policies_and_webhooks_configure_admission_and_their_like_do_not() -> None:
    group = "admissionregistration.k8s.io"
    hooks = resource(group, "v1", "validatingwebhookconfigurations")
    policies = resource(group, "v1", "mutatingadmissionpolicies")
    assert attributes(hooks).configures_admission
    assert attributes(policies).configures_admission
    assert not attributes().configures_admission


def test_the_kind_of_a_scale_is_its_own() -> None:
    scale = attributes(DEPLOYMENTS, subresource="scale")
    assert scale.kind == ("autoscaling", "v1", "Scale")
    assert attributes(DEPLOYMENTS, subresource="status").kind == ("apps", "v1", "Deployment")


def test_an_object_is_shown_in_the_version_that_is_meant() -> None:
    obj = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "a"},
        "message": "m",
        "involvedObject": {"name": "x"},
    }
    shown = in_version(obj, EVENTS, NEW_EVENTS)
    assert shown is not None
    assert (shown["apiVersion"], shown["note"], shown["regarding"]) == (
        "events.k8s.io/v1",
        "m",
        {"name": "x"},
    )
    assert obj["message"] == "m"
    assert in_version(obj, EVENTS, EVENTS) is obj
    assert in_version(None, EVENTS, NEW_EVENTS) is None


# -- match conditions ------------------------------------------------------------------------


def subject(**given: Any) -> Subject:
    given.setdefault("obj", {"metadata": {"name": "a"}, "data": {"x": "y"}})
    return Subject(attributes(**given), CONFIG_MAPS, CLUSTER, SERVER.access.answer)


def holds(*expressions: str, fails: bool = True, **given: Any) -> bool:
    conditions = [{"name": str(i), "expression": each} for i, each in enumerate(expressions)]
    return MatchConditions(conditions, fails=fails).hold(subject(**given).variables)


@pytest.mark.parametrize(
    "expression",
    [
        "object.metadata.name == 'a'",
        "oldObject == null",
        "!has(oldObject.metadata)",
        "request.operation == 'CREATE' && request.kind.kind == 'ConfigMap'",
        "request.resource.resource == 'configmaps' && !has(request.subResource)",
        "request.userInfo.username == 'kubernetes-admin'",
        "'system:masters' in request.userInfo.groups && !has(request.userInfo.uid)",
        "request.namespace == 'default' && !request.dryRun",
        "namespaceObject.metadata.name == 'default'",
        "namespaceObject.metadata.labels['kubernetes.io/metadata.name'] == 'default'",
        "dyn(namespaceObject.metadata.creationTimestamp).endsWith('Z')",
        "!has(namespaceObject.metadata.UID)",
        "namespaceObject.status.phase == 'Active'",
        "authorizer.group('').resource('pods').namespace('x').check('create').allowed()",
        "authorizer.requestResource.check('delete').allowed()",
        "authorizer.path('/healthz').check('get').allowed()",
    ],
)
def test_a_condition_speaks_of_the_request(expression: str) -> None:
    assert holds(expression)
    assert not holds(f"!({expression})")


def test_the_authorizer_answers_for_the_user_of_the_request() -> None:
    closed = EmbeddedAPIServer(tokens={"t": User("alice")}, seed=1)
    given = attributes(user=User("alice"), obj={"metadata": {}})
    variables = Subject(given, CONFIG_MAPS, CLUSTER, closed.access.answer).variables
    question = "authorizer.requestResource.check('create').allowed()"
    condition = MatchConditions([{"name": "x", "expression": question}], fails=True)
    assert not condition.hold(variables)
    roles, bindings = (
        resource("rbac.authorization.k8s.io", "v1", f"clusterrole{end}")
        for end in ("s", "bindings")
    )
    role = {
        "metadata": {"name": "r"},
        "rules": [{"verbs": ["create"], "apiGroups": [""], "resources": ["configmaps"]}],
    }
    binding = {
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": roles.group, "kind": "ClusterRole", "name": "r"},
        "subjects": [
            {"kind": "ServiceAccount", "name": "s", "namespace": "n"},
            {"kind": "User", "apiGroup": roles.group, "name": "alice"},
        ],
    }
    closed.registry.create(roles, "", role, WriteContext())
    closed.registry.create(bindings, "", binding, WriteContext())
    assert condition.hold(variables)
    account = (
        "authorizer.serviceAccount('n', 's').group('').resource('configmaps').check('{}').allowed()"
    )
    for verb, allowed in (("create", True), ("delete", False)):
        found = MatchConditions([{"name": "x", "expression": account.format(verb)}], fails=True)
        assert found.hold(variables) is allowed


def test_an_error_counts_only_if_no_condition_is_false() -> None:
    wrong = "object.missing == 1"
    assert not holds(wrong, "false")
    assert not holds("false", wrong)
    with pytest.raises(ExpressionError) as caught:
        holds("true", wrong)
    assert str(caught.value) == f"expression '{wrong}' resulted in error: no such key: missing"


def test_errors_are_forgiven_as_no_match_where_they_do_not_count() -> None:
    assert not holds("true", "object.missing == 1", fails=False)
    assert not holds("1 +", fails=False)


def test_a_condition_that_does_not_compile_is_an_error_of_each_request() -> None:
    with pytest.raises(ExpressionError, match="compilation error: must evaluate to bool but got"):
        holds("'a'")


DEAR = "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, a + b > 0))"
AUTHORIZED = "authorizer.path('/a').check('get').allowed()"


def test_all_conditions_together_have_one_budget() -> None:
    each = 350_000
    within = MATCH_BUDGET // each
    assert holds(*[AUTHORIZED] * within)
    with pytest.raises(ExpressionError, match="running out of cost budget"):
        holds(*[AUTHORIZED] * (within + 1))
    assert not holds(*[AUTHORIZED] * (within + 1), fails=False)


# -- variables -------------------------------------------------------------------------------


def test_a_variable_is_evaluated_once_and_only_when_it_is_read() -> None:
    vocabulary = Vocabulary()
    vocabulary.compose(
        [
            {"name": "dear", "expression": DEAR},
            {"name": "wrong", "expression": "object.missing"},
            {"name": "both", "expression": "variables.dear ? 'yes' : 'no'"},
        ]
    )
    evaluation = Evaluation(subject().variables, vocabulary, 10_000)
    once = compile_as("variables.both == 'yes'", vocabulary.environment(), BOOL)
    assert evaluation.run(once) is True
    spent = 10_000 - evaluation.remaining
    assert spent > 500
    assert evaluation.run(once) is True
    assert 10_000 - evaluation.remaining < spent + 20


def test_the_error_of_a_variable_names_it_and_may_be_decided_otherwise() -> None:
    vocabulary = Vocabulary()
    vocabulary.compose([{"name": "wrong", "expression": "object.missing == 1"}])
    evaluation = Evaluation(subject().variables, vocabulary)
    assert evaluation.run(compile_as("variables.wrong || true", vocabulary.environment())) is True
    with pytest.raises(ExpressionError) as caught:
        evaluation.run(compile_as("variables.wrong", vocabulary.environment()))
    assert str(caught.value) == (
        "expression 'variables.wrong' resulted in error: composited variable \"wrong\" fails to "
        "evaluate: no such key: missing"
    )


def test_a_variable_has_the_type_of_its_expression_and_knows_only_those_before_it() -> None:
    vocabulary = Vocabulary()
    vocabulary.compose(
        [
            {"name": "early", "expression": "variables.late"},
            {"name": "late", "expression": "1 + 1"},
        ]
    )
    assert "undefined field 'late'" in vocabulary.variables["early"].error
    found = compile_as("variables.late", vocabulary.environment(), STRING)
    assert found.error == "must evaluate to string but got int"


def test_variables_are_paid_from_the_budget_of_those_who_read_them() -> None:
    vocabulary = Vocabulary()
    vocabulary.compose([{"name": "dear", "expression": DEAR}])
    evaluation = Evaluation(subject().variables, vocabulary, 100)
    with pytest.raises(OutOfBudgetError):
        evaluation.run(compile_as("variables.dear || true", vocabulary.environment()))
