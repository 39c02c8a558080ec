"""Changes that MutatingAdmissionPolicies make."""

from typing import Any

import pytest

from api_client import CORE
from policy_server import ALL_MAPS, GROUP, MAPS, Policies


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
