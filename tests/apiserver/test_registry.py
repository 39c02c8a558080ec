"""The registry, between requests and the storage: what a write stores, and when it is refused."""

import random
from typing import Any

import pytest

from listwatch.apiserver.kinds.resources import APIResource, Subresource
from listwatch.apiserver.storage.deletion import DeleteOptions, delete
from listwatch.apiserver.storage.registry import Registry, WriteContext
from listwatch.apiserver.storage.store import Entry, Storage
from listwatch.clock import FakeClock
from listwatch.errors import AlreadyExistsError, ConflictError, NotFoundError, StatusError
from listwatch.schema.facts import facts

Object = dict[str, Any]


def resource(name: str, kind: str, *, namespaced: bool = True, status: bool = False) -> APIResource:
    return APIResource(
        "",
        "v1",
        name,
        kind,
        schema=facts().schema("", "v1", kind),
        namespaced=namespaced,
        subresources=[Subresource("status", kind, "", "v1", ("get", "update"))] if status else [],
    )


NAMESPACES = resource("namespaces", "Namespace", namespaced=False, status=True)
MAPS = resource("configmaps", "ConfigMap")
PODS = resource("pods", "Pod", status=True)
ME = WriteContext(manager="me")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def registry(clock: FakeClock) -> Registry:
    made = Registry(Storage(clock), clock, randomness=random.Random(1))
    made.create(NAMESPACES, "", {"metadata": {"name": "ns"}, "spec": {}}, ME)
    return made


def config_map(**data: str) -> Object:
    return {"metadata": {"name": "a"}, "data": data}


def pod(**spec: Any) -> Object:
    container = {
        "name": "c",
        "image": "i",
        "imagePullPolicy": "Always",
        "terminationMessagePolicy": "File",
    }
    return {
        "metadata": {"name": "a"},
        "spec": {
            "containers": [container],
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "terminationGracePeriodSeconds": 30,
            **spec,
        },
    }


def put(registry: Registry, kind: APIResource, new: Object, context: WriteContext = ME) -> Entry:
    """Replace the object `a` as PUT does."""
    return registry.update(kind, "ns", "a", lambda *_: new, context, is_put=True)[0]


def test_a_new_object_gets_what_only_a_server_writes(registry: Registry) -> None:
    entry = registry.create(MAPS, "ns", config_map(k="v"), ME)
    assert entry is registry.get(MAPS, "ns", "a")
    made = registry.decode(entry)
    metadata = made["metadata"]
    assert metadata["namespace"] == "ns"
    assert metadata["resourceVersion"] == str(entry.revision)
    assert metadata["uid"] == entry.uid
    assert metadata["creationTimestamp"] == registry.now()
    (owner,) = metadata["managedFields"]
    assert (owner["manager"], owner["operation"]) == ("me", "Update")
    assert owner["fieldsV1"] == {"f:data": {".": {}, "f:k": {}}}
    assert made["data"] == {"k": "v"}


def test_times_are_written_from_the_first_second_on() -> None:
    clock = FakeClock(time=0.0)
    registry = Registry(Storage(clock), clock, randomness=random.Random(1))
    assert [registry.now(), registry.now(60)] == ["1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z"]


def test_revisions_grow_with_each_write_and_never_for_one_that_changes_nothing(
    registry: Registry, clock: FakeClock
) -> None:
    first = registry.create(MAPS, "ns", config_map(k="v"), ME)
    clock.set_time(clock.time() + 60)
    assert put(registry, MAPS, config_map(k="v")) is first
    second = put(registry, MAPS, config_map(k="w"))
    assert second.revision == first.revision + 1
    assert registry.decode(second)["metadata"]["uid"] == first.uid


@pytest.mark.parametrize("what", ["create", "update", "delete"])
def test_a_dry_run_answers_and_stores_nothing(registry: Registry, what: str) -> None:
    dry = WriteContext(manager="me", dry_run=True)
    if what == "create":
        assert registry.create(MAPS, "ns", config_map(k="v"), dry).revision == 0
        assert registry.find(MAPS, "ns", "a") is None
        return
    entry = registry.create(MAPS, "ns", config_map(k="v"), ME)
    if what == "update":
        answered = put(registry, MAPS, config_map(k="w"), dry)
        assert registry.decode(answered)["data"] == {"k": "w"}
    else:
        assert delete(registry, MAPS, "ns", "a", DeleteOptions(dry_run=True)).gone
    assert registry.get(MAPS, "ns", "a") is entry


def test_a_namespace_must_be_there_and_stay(registry: Registry) -> None:
    with pytest.raises(NotFoundError, match='namespaces "other" not found'):
        registry.create(MAPS, "other", config_map(), ME)
    delete(registry, NAMESPACES, "", "ns", DeleteOptions())
    with pytest.raises(StatusError, match="is being terminated") as refused:
        registry.create(MAPS, "ns", config_map(), ME)
    assert refused.value.code == 403


def test_a_name_is_given_once(registry: Registry) -> None:
    registry.create(MAPS, "ns", config_map(), ME)
    with pytest.raises(AlreadyExistsError):
        registry.create(MAPS, "ns", config_map(), ME)
    generated = {"metadata": {"generateName": "a-"}}
    names = {registry.create(MAPS, "ns", {"metadata": {**generated["metadata"]}}, ME).name}
    names |= {registry.create(MAPS, "ns", {"metadata": {**generated["metadata"]}}, ME).name}
    assert len(names) == 2
    assert all(name.startswith("a-") and len(name) == 7 for name in names)


@pytest.mark.parametrize("field", ["resourceVersion", "uid"])
def test_what_a_put_names_is_a_condition(registry: Registry, field: str) -> None:
    registry.create(MAPS, "ns", config_map(k="v"), ME)
    stale = config_map(k="w")
    stale["metadata"][field] = "1"
    with pytest.raises(ConflictError):
        put(registry, MAPS, stale)
    assert registry.decode(registry.get(MAPS, "ns", "a"))["data"] == {"k": "v"}


def test_an_update_of_nothing_creates_nothing(registry: Registry) -> None:
    with pytest.raises(NotFoundError):
        put(registry, MAPS, config_map())


def test_each_path_writes_its_own_half_of_an_object(registry: Registry) -> None:
    def produce(old: Object | None, _: Entry | None) -> Object:
        assert old is not None
        old["spec"]["activeDeadlineSeconds"] = 5
        old["status"]["message"] = "hello"
        return old

    registry.create(PODS, "ns", pod(), ME)
    status = WriteContext(manager="kubelet", subresource="status")
    entry, _ = registry.update(PODS, "ns", "a", produce, status, is_put=True)
    by_status = registry.decode(entry)
    assert "activeDeadlineSeconds" not in by_status["spec"]
    assert by_status["status"].pop("message") == "hello"
    by_status["status"]["reason"] = "Lost"
    by_status["spec"]["activeDeadlineSeconds"] = 3
    by_put = registry.decode(put(registry, PODS, by_status))
    assert by_put["spec"]["activeDeadlineSeconds"] == 3
    assert by_put["status"]["message"] == "hello"
    assert "reason" not in by_put["status"]


def test_finalizers_hold_what_is_deleted_until_the_last_is_gone(registry: Registry) -> None:
    held = config_map(k="v")
    held["metadata"]["finalizers"] = ["example.com/x"]
    registry.create(MAPS, "ns", held, ME)
    assert not delete(registry, MAPS, "ns", "a", DeleteOptions()).gone
    waiting = registry.decode(registry.get(MAPS, "ns", "a"))
    assert waiting["metadata"]["deletionTimestamp"] == registry.now()
    waiting["metadata"]["finalizers"] = []
    put(registry, MAPS, waiting)
    assert registry.find(MAPS, "ns", "a") is None


@pytest.mark.parametrize(
    ("node", "asked", "grace"), [("", None, 0), ("n", None, 30), ("n", 5, 5), ("n", -3, 1)]
)
def test_a_pod_on_a_node_gets_its_time_and_another_goes_at_once(
    registry: Registry, node: str, asked: int | None, grace: int
) -> None:
    registry.create(PODS, "ns", pod(**({"nodeName": node} if node else {})), ME)
    deletion = delete(registry, PODS, "ns", "a", DeleteOptions(grace_period=asked))
    assert deletion.gone is (grace == 0)
    if grace:
        metadata = registry.decode(registry.get(PODS, "ns", "a"))["metadata"]
        assert metadata["deletionGracePeriodSeconds"] == grace
        assert metadata["deletionTimestamp"] == registry.now(grace)
        assert delete(registry, PODS, "ns", "a", DeleteOptions(grace_period=0)).gone


def test_a_delete_may_name_the_object_that_it_is_for(registry: Registry) -> None:
    entry = registry.create(MAPS, "ns", config_map(), ME)
    for wrong in (DeleteOptions(uid="other"), DeleteOptions(resource_version="1")):
        with pytest.raises(ConflictError, match="precondition"):
            delete(registry, MAPS, "ns", "a", wrong)
    right = DeleteOptions(uid=entry.uid, resource_version=str(entry.revision))
    assert delete(registry, MAPS, "ns", "a", right).gone


def test_what_a_guard_forbids_is_not_stored(registry: Registry) -> None:
    def forbid(_: APIResource, new: Object, old: Object | None) -> None:
        raise PermissionError(f"{new['metadata']['name']} after {old and old['data']}")

    forbidden = WriteContext(manager="me", guard=forbid)
    with pytest.raises(PermissionError, match="a after None"):
        registry.create(MAPS, "ns", config_map(k="v"), forbidden)
    assert registry.find(MAPS, "ns", "a") is None
    entry = registry.create(MAPS, "ns", config_map(k="v"), ME)
    with pytest.raises(PermissionError, match=r"a after \{'k': 'v'\}"):
        put(registry, MAPS, config_map(k="w"), forbidden)
    assert registry.get(MAPS, "ns", "a") is entry


def test_a_pod_is_bound_once(registry: Registry) -> None:
    entry = registry.create(PODS, "ns", pod(), ME)
    registry.bind(PODS, entry, "n", dry_run=True)
    registry.bind(PODS, registry.get(PODS, "ns", "a"), "n")
    bound = registry.get(PODS, "ns", "a")
    made = registry.decode(bound)
    assert made["spec"]["nodeName"] == "n"
    assert [each["type"] for each in made["status"]["conditions"]] == ["PodScheduled"]
    with pytest.raises(ConflictError, match='already assigned to node "n"'):
        registry.bind(PODS, bound, "m")
