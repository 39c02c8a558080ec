import copy
import json
import time
from datetime import datetime
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.client.client import Client
from listwatch.errors import ConflictError, NotFoundError
from listwatch.objects import Object
from listwatch.runtime.writing import (
    Outcome,
    OwnershipError,
    apply,
    create_or_update,
    finalize,
    is_owned_by,
    merge_patch,
    owner_reference,
    set_condition,
    set_owner,
    update_status,
)

CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "x", "namespace": "default"},
}
FINALIZER = "example.com/test"


def owner(**meta: Any) -> Object:
    metadata = {"name": "own", "namespace": "default", "uid": "u-1", **meta}
    return Object.from_dict({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})


def test_an_owner_is_set_once_however_often() -> None:
    obj: dict[str, Any] = copy.deepcopy(CONFIG_MAP)
    set_owner(obj, owner())
    set_owner(obj, owner())
    assert obj["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "name": "own",
            "uid": "u-1",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert is_owned_by(Object.from_dict(obj), owner())


def test_a_second_controller_is_refused_but_a_plain_owner_is_not() -> None:
    obj: dict[str, Any] = copy.deepcopy(CONFIG_MAP)
    set_owner(obj, owner())
    other = owner(uid="u-2", name="other")
    with pytest.raises(OwnershipError, match="ConfigMap x is controlled by Secret own already"):
        set_owner(obj, other)
    set_owner(obj, other, controller=False)
    assert [ref["uid"] for ref in obj["metadata"]["ownerReferences"]] == ["u-1", "u-2"]


def test_an_owner_in_another_namespace_is_refused() -> None:
    with pytest.raises(OwnershipError, match="Secret other/own can't own ConfigMap x"):
        set_owner(copy.deepcopy(CONFIG_MAP), owner(namespace="other"))


def test_a_namespaced_owner_of_a_cluster_scoped_object_is_refused() -> None:
    node = {"kind": "Node", "metadata": {"name": "n"}}
    with pytest.raises(OwnershipError, match="in no namespace"):
        set_owner(node, owner())


def test_an_owner_without_uid_is_refused() -> None:
    with pytest.raises(OwnershipError, match="has no uid"):
        owner_reference(owner(uid=""))


async def test_create_or_update_creates_then_changes_then_leaves_alone(client: Client) -> None:
    def want(value: str) -> Any:
        return lambda obj: obj.__setitem__("data", {"a": value})

    outcomes = []
    for value in ("1", "2", "2"):
        written = await create_or_update(client, CONFIG_MAP, want(value))
        outcomes.append((written.outcome, written.obj["data"]["a"]))
    assert outcomes == [(Outcome.CREATED, "1"), (Outcome.UPDATED, "2"), (Outcome.UNCHANGED, "2")]


async def test_create_or_update_tries_again_after_a_conflict(client: Client) -> None:
    await client.create(CONFIG_MAP)
    calls = 0

    def mutate(obj: dict[str, Any]) -> None:
        nonlocal calls
        calls += 1
        if calls <= 2:  # the object read is out of date by the time of the write
            obj["metadata"]["resourceVersion"] = "1"
        obj["data"] = {"a": "1"}

    written = await create_or_update(client, CONFIG_MAP, mutate)
    assert (written.outcome, calls) == (Outcome.UPDATED, 3)


async def test_create_or_update_gives_up_after_several_conflicts(client: Client) -> None:
    await client.create(CONFIG_MAP)
    with pytest.raises(ConflictError):
        await create_or_update(
            client,
            CONFIG_MAP,
            lambda obj: obj["metadata"].__setitem__("resourceVersion", "1"),
        )


async def test_apply_owns_its_fields_and_drops_what_it_names_no_longer(client: Client) -> None:
    await apply(client, {**CONFIG_MAP, "data": {"a": "1", "b": "2"}}, field_manager="me")
    applied = await apply(client, {**CONFIG_MAP, "data": {"a": "1"}}, field_manager="me")
    assert dict(applied["data"]) == {"a": "1"}


async def test_a_status_that_is_so_already_is_not_written(client: Client) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    }
    created = await client.create(deployment)
    status = {"replicas": 2, "readyReplicas": 1}
    written = await update_status(client, created, status)
    assert written is not None
    assert written["status"]["readyReplicas"] == 1
    assert await update_status(client, written, status) is None
    without = await update_status(client, written, {"replicas": 2})
    assert without is not None
    assert "readyReplicas" not in without["status"]
    with pytest.raises(ConflictError):
        await update_status(client, created, {"replicas": 9})


JSON = st.recursive(
    st.integers(2, 5) | st.text("ab", max_size=2) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=12,
)


def merged(value: Any, patch: Any) -> Any:
    """Merge as RFC 7386, section 2, says."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), change)
    return result


@given(
    st.dictionaries(st.sampled_from("abcd"), JSON), st.dictionaries(st.sampled_from("abcd"), JSON)
)
def test_a_merge_patch_makes_the_new_of_the_old_and_is_empty_for_no_change(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    patch = merge_patch(old, new)
    assert json.dumps(merged(old, patch), sort_keys=True) == json.dumps(new, sort_keys=True)
    assert merge_patch(new, new) == {}


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    conditions: list[dict[str, Any]] = [{"type": "Other", "status": "True"}]

    def ready(status: Literal["True", "False"], reason: str, now: str) -> bool:
        return set_condition(conditions, "Ready", status, reason, now=now, observed_generation=2)

    assert ready("False", "Starting", "t1")
    assert not ready("False", "Starting", "t2")
    assert ready("False", "Waiting", "t3")
    assert conditions[1]["lastTransitionTime"] == "t1"
    assert ready("True", "Done", "t4")
    assert conditions == [
        {"type": "Other", "status": "True"},
        {
            "type": "Ready",
            "status": "True",
            "reason": "Done",
            "message": "",
            "observedGeneration": 2,
            "lastTransitionTime": "t4",
        },
    ]


def test_a_condition_without_a_time_has_the_current_one() -> None:
    conditions: list[dict[str, Any]] = []
    before = time.time()
    assert set_condition(conditions, "Ready", "True", "Done")
    at = datetime.fromisoformat(conditions[0]["lastTransitionTime"]).timestamp()
    assert int(before) <= at <= time.time()


async def test_a_finalizer_is_added_once_cleans_up_and_goes_without_touching_another(
    client: Client,
) -> None:
    cleaned: list[str] = []

    async def clean_up(obj: Object) -> None:
        cleaned.append(obj.name)

    meta = {**CONFIG_MAP["metadata"], "finalizers": ["example.com/other"]}  # type: ignore[dict-item] # a mapping
    obj = await client.create({**CONFIG_MAP, "metadata": meta})
    for _ in range(2):
        kept = await finalize(client, obj, FINALIZER, clean_up)
        assert kept is not None
        obj = await client.get("configmaps", "x", "default")
        assert obj.resource_version == kept.resource_version
        assert obj.meta.finalizers == ("example.com/other", FINALIZER)
    await client.delete("configmaps", "x", "default")
    obj = await client.get("configmaps", "x", "default")
    assert await finalize(client, obj, FINALIZER, clean_up) is None
    obj = await client.get("configmaps", "x", "default")
    assert obj.meta.finalizers == ("example.com/other",)
    assert await finalize(client, obj, FINALIZER, clean_up) is None
    assert cleaned == ["x"]


async def test_a_finalizer_stays_when_the_clean_up_fails(client: Client) -> None:
    async def fail(_: Object) -> None:
        raise NotFoundError("the other side is away")

    obj = await client.create(CONFIG_MAP)
    assert await finalize(client, obj, FINALIZER, fail) is not None
    await client.delete("configmaps", "x", "default")
    obj = await client.get("configmaps", "x", "default")
    with pytest.raises(NotFoundError, match="other side"):
        await finalize(client, obj, FINALIZER, fail)
    assert (await client.get("configmaps", "x", "default")).meta.finalizers == (FINALIZER,)


async def test_a_finalizer_is_not_written_over_a_change_that_was_not_seen(client: Client) -> None:
    async def clean_up(_: Object) -> None:
        raise AssertionError

    old = await client.create(CONFIG_MAP)
    await client.patch("configmaps", "x", {"metadata": {"finalizers": ["a.b/c"]}}, "default")
    with pytest.raises(ConflictError):
        await finalize(client, old, FINALIZER, clean_up)
    assert (await client.get("configmaps", "x", "default")).meta.finalizers == ("a.b/c",)


@pytest.mark.parametrize("name", ["widgets", "exa mple.com/x", "example.com/"])
async def test_a_name_that_is_no_finalizer_is_refused(client: Client, name: str) -> None:
    async def clean_up(_: Object) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="is not a finalizer such as"):
        await finalize(client, owner(), name, clean_up)
