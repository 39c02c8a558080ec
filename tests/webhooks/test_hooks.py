"""One hook: what its function gets, and what becomes of what it does."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from listwatch.errors import ConfigError
from listwatch.resources import ObjectMeta, check
from listwatch.webhooks import AdmissionRequest, Denied, HookOptions, Problem
from listwatch.webhooks.hooks import AdmissionHook, Target
from webhooks.websites import Port, Website, WebsiteSpec, asked, manifest, operations


def hook(
    function: Callable[[AdmissionRequest[Any]], Any],
    resource: Any = Website,
    *,
    mutating: bool = False,
    name: str = "check",
    **options: Any,
) -> AdmissionHook[Any]:
    made = HookOptions(**options)
    target: Target[Any] = Target(resource, made.subresource)
    return AdmissionHook(target, function, mutating=mutating, options=made, name=name)


async def answer(made: AdmissionHook[Any], request: dict[str, Any]) -> Any:
    try:
        return (await made.answer(request)).response
    finally:
        made.close()


async def test_a_function_gets_the_typed_objects_the_user_and_the_options() -> None:
    got: list[Any] = []

    async def check_it(request: AdmissionRequest[Website]) -> None:
        assert request.old is not None
        got.append((request.obj.spec.size, request.old.spec.size, request.operation))
        got.append((request.user.name, request.user.groups, request.dry_run, request.uid))
        got.append((request.name, request.namespace, str(request.resource), str(request.kind)))
        got.append(request.options["fieldManager"])

    request = asked(
        manifest(size=2),
        manifest(size=1),
        "UPDATE",
        dryRun=True,
        options={"fieldManager": "kubectl"},
    )
    assert await answer(hook(check_it), request) == {"allowed": True}
    assert got == [
        (2, 1, "UPDATE"),
        ("jane", ("editors",), True, "u1"),
        ("shop", "default", "example.com/v1/websites", "Website.example.com"),
        "kubectl",
    ]


async def test_a_plain_function_runs_in_a_thread_of_its_own() -> None:
    threads = []
    made = hook(lambda _: threads.append(threading.current_thread().name))
    await answer(made, asked(manifest()))
    assert threads == ["webhook-check_0"]


async def test_of_a_deletion_the_object_is_the_one_to_be_deleted() -> None:
    got: list[Any] = []
    made = hook(lambda request: got.append((request.obj.spec.size, request.old)))
    await answer(made, asked(None, manifest(size=3), "DELETE"))
    assert got == [(3, Website(ObjectMeta(name="shop", namespace="default"), WebsiteSpec(size=3)))]


async def test_a_new_object_without_a_name_is_decoded() -> None:
    got: list[Any] = []
    obj = manifest(size=4)
    obj["metadata"] = {"generateName": "shop-"}
    made = hook(lambda request: got.append((request.obj.metadata.generate_name, request.name)))
    await answer(made, asked(obj))
    assert got == [("shop-", "")]


async def test_objects_of_a_resource_named_by_text_are_dicts() -> None:
    got: list[Any] = []
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    await answer(hook(lambda request: got.append(request.obj), "v1/pods"), asked(pod))
    assert got == [pod]


async def test_problems_deny_with_the_fields_as_causes() -> None:
    def refuse(request: AdmissionRequest[Website]) -> None:
        request.warn("soon forbidden")
        request.annotate("seen", "yes")
        raise Denied(Problem("spec.host", "must be public"), Problem("spec.size", "too big", "X"))

    done = await hook(refuse).answer(asked(manifest()))
    assert done.denied
    assert done.response == {
        "allowed": False,
        "warnings": ["soon forbidden"],
        "auditAnnotations": {"seen": "yes"},
        "status": {
            "status": "Failure",
            "code": 422,
            "reason": "Invalid",
            "message": 'Website.example.com "shop" is invalid: [spec.host: must be public, '
            "spec.size: too big]",
            "details": {
                "name": "shop",
                "group": "example.com",
                "kind": "Website",
                "causes": [
                    {
                        "field": "spec.host",
                        "message": "must be public",
                        "reason": "FieldValueInvalid",
                    },
                    {"field": "spec.size", "message": "too big", "reason": "X"},
                ],
            },
        },
    }


@pytest.mark.parametrize(
    ("denied", "code", "reason"),
    [
        (Denied("frozen"), 403, "Forbidden"),
        (Denied("frozen", code=409), 409, "Conflict"),
        (Denied("frozen", code=418), 418, ""),
    ],
)
async def test_text_denies_with_a_code(denied: Denied, code: int, reason: str) -> None:
    def refuse(_: AdmissionRequest[Website]) -> None:
        raise denied

    status = (await answer(hook(refuse), asked(manifest())))["status"]
    assert status == {"status": "Failure", "code": code, "reason": reason, "message": "frozen"}


async def test_problems_that_are_returned_deny_and_none_of_them_allow() -> None:
    def find(request: AdmissionRequest[Website]) -> list[Problem]:
        return check(request.obj, request.old)

    assert (await answer(hook(find), asked(manifest())))["allowed"]
    refused = await answer(hook(find), asked(manifest(name="Shop")))
    assert refused["status"]["details"]["causes"][0]["field"] == "metadata.name"


async def test_an_object_that_does_not_fit_the_type_is_denied_with_the_field() -> None:
    refused = await answer(hook(lambda request: request.obj), asked(manifest(size="big")))
    assert refused["status"]["code"] == 422
    assert "$.spec.size" in refused["status"]["message"]


async def test_a_validating_function_that_returns_something_else_fails() -> None:
    with pytest.raises(TypeError, match="webhook check returned bool: return None or problems"):
        await answer(hook(lambda _: True), asked(manifest()))


async def test_a_plain_function_that_finds_no_next_item_fails_at_once() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await answer(hook(lambda _: next(iter(()))), asked(manifest()))


async def test_a_change_in_place_becomes_the_smallest_patch_and_unknown_fields_stay() -> None:
    obj = manifest(host="a", unknown={"x": 1}, ports=[{"name": "web", "port": 1, "newer": "y"}])

    def change(request: AdmissionRequest[Website]) -> None:
        request.obj.metadata.labels["team"] = "shop"
        request.obj.spec.ports[0].port = 80

    response = await answer(hook(change, mutating=True), asked(obj))
    assert operations(response) == [
        {"op": "add", "path": "/metadata/labels", "value": {"team": "shop"}},
        {"op": "replace", "path": "/spec/ports/0/port", "value": 80},
    ]


async def test_a_returned_object_is_the_changed_one() -> None:
    async def change(request: AdmissionRequest[Website]) -> Website:
        request.obj.spec.ports = [Port("web", 80)]
        return request.obj

    response = await answer(hook(change, mutating=True), asked(manifest()))
    assert operations(response) == [
        {"op": "add", "path": "/spec/ports", "value": [{"name": "web", "port": 80}]}
    ]


async def test_no_change_sends_no_patch() -> None:
    response = await answer(hook(lambda _: None, mutating=True), asked(manifest()))
    assert response == {"allowed": True}


async def test_a_dict_is_changed_like_an_object() -> None:
    def change(request: AdmissionRequest[dict[str, Any]]) -> dict[str, Any]:
        return {**request.obj, "metadata": {"name": "a", "labels": {"b": "c"}}}

    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    response = await answer(hook(change, "v1/pods", mutating=True), asked(pod))
    assert operations(response) == [{"op": "add", "path": "/metadata/labels", "value": {"b": "c"}}]


async def test_a_mutating_function_that_returns_something_else_fails() -> None:
    with pytest.raises(TypeError, match="returned dict: return None or a Website"):
        await answer(hook(lambda _: {}, mutating=True), asked(manifest()))


@pytest.mark.parametrize(
    ("effects", "called", "declared"),
    [("None", 1, "None"), ("NoneOnDryRun", 1, "NoneOnDryRun"), ("Some", 0, "NoneOnDryRun")],
)
async def test_a_hook_with_side_effects_is_not_called_for_a_dry_run(
    effects: Any, called: int, declared: str
) -> None:
    calls: list[bool] = []
    made = hook(lambda request: calls.append(request.dry_run), side_effects=effects)
    assert (await made.answer(asked(manifest(), dryRun=True))).response == {"allowed": True}
    await answer(made, asked(manifest()))
    assert calls == [True] * called + [False]
    assert made.manifest({})["sideEffects"] == declared


def test_the_entry_of_a_configuration_has_every_field() -> None:
    made = hook(
        lambda _: None,
        mutating=True,
        operations=("DELETE",),
        subresource="status",
        namespace_selector={"matchLabels": {"a": "b"}},
        object_selector={"matchLabels": {"c": "d"}},
        match_conditions={"named": "object.metadata.name != ''"},
        failure_policy="Ignore",
        timeout=3,
        match_policy="Exact",
        reinvoke=True,
    )
    assert made.manifest({"url": "https://here/mutate/check"}, ["own"]) == {
        "name": "check.websites.example.com",
        "clientConfig": {"url": "https://here/mutate/check"},
        "rules": [
            {
                "operations": ["DELETE"],
                "scope": "*",
                "apiGroups": ["example.com"],
                "apiVersions": ["v1"],
                "resources": ["websites/status"],
            }
        ],
        "namespaceSelector": {
            "matchLabels": {"a": "b"},
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["own"]}
            ],
        },
        "objectSelector": {"matchLabels": {"c": "d"}},
        "failurePolicy": "Ignore",
        "matchPolicy": "Exact",
        "sideEffects": "None",
        "timeoutSeconds": 3,
        "admissionReviewVersions": ["v1"],
        "matchConditions": [{"name": "named", "expression": "object.metadata.name != ''"}],
        "reinvocationPolicy": "IfNeeded",
    }


class NotAResource:
    pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"operations": ("READ",)}, "operations .* are not among CONNECT, CREATE, DELETE, UPDATE"),
        ({"operations": ()}, "are not among"),
        ({"timeout": 31}, "timeout 31 is not a whole number from 1 to 30"),
        ({"timeout": 2.5}, "timeout 2.5 is not a whole number"),
        ({"timeout": 5.0}, "timeout 5.0 is not a whole number"),
        ({"failure_policy": "Pass"}, "'Pass' is none of Fail, Ignore"),
        ({"side_effects": "Few"}, "'Few' is none of None, NoneOnDryRun, Some"),
        (
            {"match_conditions": {"mine": "object.a == "}},
            "condition 'mine': line 1, column 13: Syntax error",
        ),
        ({"match_conditions": {"mine": "1"}}, "'mine': must evaluate to bool but got int"),
        ({"reinvoke": True}, "only a mutating webhook can be invoked again"),
        ({"concurrency": 0}, "concurrency 0 is less than 1"),
        ({"name": "Check_It"}, "can't have this name: .*; give name="),
        ({"object_selector": {"matchLabels": {"a b": "c"}}}, "webhook check: .*a b"),
        ({"subresource": "scale"}, 'by text, as "example.com/v1/websites"'),
        ({"resource": "pods"}, "'pods' names no resource: write version/plural"),
        ({"resource": "apps/deployments/v1"}, "names no resource"),
        ({"resource": NotAResource}, "NotAResource is no resource"),
    ],
)
def test_an_invalid_option_is_one_clear_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        hook(lambda _: None, options.pop("resource", Website), **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("resource", "named"),
    [
        ("v1/pods", "check.pods.core"),
        ("apps/v1/deployments", "check.deployments.apps"),
        ("*/*/*", "check.all.all"),
    ],
)
def test_a_configuration_names_a_hook_by_function_and_resource(resource: str, named: str) -> None:
    assert hook(lambda _: None, resource).full_name == named


def test_a_denial_needs_a_reason_and_the_code_of_a_refusal() -> None:
    with pytest.raises(ValueError, match="Denied needs a reason"):
        Denied()
    with pytest.raises(ValueError, match="code 200 is no refusal"):
        Denied("yes", code=200)
