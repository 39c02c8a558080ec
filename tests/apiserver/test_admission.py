"""Admission of pods by other objects: priority classes, limits, quotas and disruption budgets."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.admission.budgets import spend
from listwatch.apiserver.admission.plugins import added
from listwatch.apiserver.kinds.pod_templates import default_pod_spec
from listwatch.errors import StatusError

PODS = f"{CORE}/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer() as server, Client(server) as client:
        yield client


def pod(name: str, resources: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": resources or {}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


async def test_a_pod_has_the_priority_of_its_class(client: Client) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    given = {"metadata": {"name": "p"}, "value": 77, "preemptionPolicy": "Never"}
    await client.call("POST", classes, given, expect=201)
    made = await client.call("POST", PODS, pod("a", priorityClassName="p"), expect=201)
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (77, "Never")
    await client.call("POST", PODS, pod("b", priorityClassName="p", priority=5), expect=403)
    await client.call("POST", PODS, pod("b", priority=5), expect=403)
    refused = await client.call("POST", PODS, pod("b", priorityClassName="nope"), expect=403)
    assert refused["message"].endswith("no PriorityClass with name nope was found")


async def test_pods_without_a_class_have_the_one_that_is_the_default(client: Client) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    given = {"metadata": {"name": "p"}, "value": 7, "globalDefault": True}
    await client.call("POST", classes, given, expect=201)
    made = await client.call("POST", PODS, pod("a"), expect=201)
    assert (made["spec"]["priorityClassName"], made["spec"]["priority"]) == ("p", 7)


async def test_a_pod_has_the_overhead_of_its_runtime_class(client: Client) -> None:
    await client.call("POST", PODS, pod("a", runtimeClassName="r"), expect=403)
    given = {
        "metadata": {"name": "r"},
        "handler": "h",
        "overhead": {"podFixed": {"cpu": "1"}},
        "scheduling": {"nodeSelector": {"a": "b"}},
    }
    await client.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", given, expect=201)
    made = await client.call("POST", PODS, pod("a", runtimeClassName="r"), expect=201)
    assert made["spec"]["overhead"] == {"cpu": "1"}
    assert made["spec"]["nodeSelector"] == {"a": "b"}
    other = pod("b", runtimeClassName="r", nodeSelector={"a": "c"})
    await client.call("POST", PODS, other, expect=403)
    await client.call("POST", PODS, pod("b", overhead={"cpu": "1"}), expect=403)


async def limit(client: Client, **item: Any) -> None:
    given = {"metadata": {"name": "l"}, "spec": {"limits": [item]}}
    await client.call("POST", f"{CORE}/limitranges", given, expect=201)


async def test_limits_are_given_to_containers_that_have_none(client: Client) -> None:
    await limit(client, type="Container", default={"cpu": "2"}, defaultRequest={"cpu": "1"})
    made = await client.call("POST", PODS, pod("a"), expect=201)
    resources = made["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}
    assert made["status"]["qosClass"] == "Burstable"
    assert made["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    )


@pytest.mark.parametrize(
    ("kind", "resources", "why"),
    [
        ("Container", {"limits": {"cpu": "3"}}, "maximum cpu usage per Container is 2"),
        ("Container", {"limits": {"cpu": "500m"}}, "minimum cpu usage per Container is 1"),
        ("Pod", {}, "No request is specified"),
    ],
)
async def test_what_is_beyond_the_limits_is_forbidden(
    client: Client, kind: str, resources: dict[str, Any], why: str
) -> None:
    await limit(client, type=kind, max={"cpu": "2"}, min={"cpu": "1"})
    refused = await client.call("POST", PODS, pod("a", resources), expect=403)
    assert why in refused["message"]
    await client.call("POST", PODS, pod("a", {"limits": {"cpu": "1500m"}}), expect=201)


async def test_a_claim_keeps_to_the_limits_of_claims(client: Client) -> None:
    await limit(client, type="PersistentVolumeClaim", min={"storage": "2Gi"})
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "c"}, "spec": spec}
    await client.call("POST", f"{CORE}/persistentvolumeclaims", claim, expect=403)


async def quota(client: Client, **hard: str) -> None:
    amounts = {key.replace("_", "/").replace("__", "."): value for key, value in hard.items()}
    given = {"metadata": {"name": "q"}, "spec": {"hard": amounts}}
    path = f"{CORE}/resourcequotas"
    await client.call("POST", path, given, expect=201)
    status = {"status": {"hard": amounts, "used": dict.fromkeys(amounts, "0")}}
    await client.call("PATCH", f"{path}/q/status", status, headers=MERGE, expect=200)


async def used(client: Client) -> Any:
    found = await client.call("GET", f"{CORE}/resourcequotas/q", expect=200)
    return found["status"]["used"]


async def test_a_quota_counts_what_is_made_and_forbids_more(client: Client) -> None:
    await quota(client, count_configmaps="1")
    path = f"{CORE}/configmaps"
    await client.call("POST", f"{path}?dryRun=All", {"metadata": {"name": "a"}}, expect=201)
    assert await used(client) == {"count/configmaps": "0"}
    await client.call("POST", path, {"metadata": {"name": "a"}}, expect=201)
    assert await used(client) == {"count/configmaps": "1"}
    refused = await client.call("POST", path, {"metadata": {"name": "b"}}, expect=403)
    assert "exceeded quota: q, requested: count/configmaps=1" in refused["message"]


async def test_a_quota_of_cpu_asks_every_container_for_its_share(client: Client) -> None:
    await quota(client, cpu="1")
    refused = await client.call("POST", PODS, pod("a"), expect=403)
    assert refused["message"].endswith("failed quota: q: must specify cpu for: c")
    share = {"requests": {"cpu": "600m"}}
    await client.call("POST", PODS, pod("a", share), expect=201)
    await client.call("POST", PODS, pod("b", share), expect=403)
    assert await used(client) == {"cpu": "600m"}


@pytest.mark.parametrize(
    ("first", "second", "total"),
    [("600m", "600m", "1200m"), ("1", "1", "2"), ("512Mi", "512Mi", "1Gi"), ("0", "1k", "1k")],
)
def test_quantities_add_up_in_their_own_form(first: str, second: str, total: str) -> None:
    assert added(first, second) == total


def test_amounts_finer_than_thousandths_are_rounded_up() -> None:
    amounts = {"limits": {"cpu": "1u", "memory": "1500000n"}}
    spec = pod("a", amounts)["spec"]
    default_pod_spec(spec)
    assert spec["containers"][0]["resources"]["limits"] == {"cpu": "1m", "memory": "2m"}


RUNNING = {
    "metadata": {"name": "p", "labels": {"a": "b"}},
    "status": {"phase": "Running"},
}


def budget(allowed: int, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "b", "generation": 1},
        "spec": {"selector": {"matchLabels": {"a": "b"}}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, **status},
    }


def test_an_eviction_is_taken_from_the_budget() -> None:
    spent = spend(RUNNING, [budget(2)], "now")
    assert spent is not None
    assert spent["status"]["disruptionsAllowed"] == 1
    assert spent["status"]["disruptedPods"] == {"p": "now"}
    assert "conditions" not in spent["status"]
    last = spend(RUNNING, [budget(1)], "now")
    assert last is not None
    assert last["status"]["conditions"][0]["reason"] == "InsufficientPods"


@pytest.mark.parametrize(
    ("budgets", "code"),
    [
        ([budget(0)], 429),
        ([budget(1, observedGeneration=0)], 429),
        ([budget(1), budget(1)], 500),
    ],
)
def test_an_eviction_that_no_budget_allows_is_refused(
    budgets: list[dict[str, Any]], code: int
) -> None:
    with pytest.raises(StatusError) as refused:
        spend(RUNNING, budgets, "now")
    assert refused.value.code == code


def test_a_pod_that_does_not_run_needs_no_budget() -> None:
    waiting = {**RUNNING, "status": {"phase": "Pending"}}
    assert spend(waiting, [budget(0)], "now") is None


async def test_an_eviction_over_the_budget_leaves_the_pod(client: Client) -> None:
    labelled = pod("p")
    labelled["metadata"]["labels"] = {"a": "b"}
    await client.call("POST", PODS, labelled, expect=201)
    running = {"status": {"phase": "Running"}}
    await client.call("PATCH", f"{PODS}/p/status", running, headers=MERGE, expect=200)
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    given = {key: value for key, value in budget(0).items() if key != "status"}
    await client.call("POST", path, given, expect=201)
    status = {"status": budget(0)["status"]}
    await client.call("PATCH", f"{path}/b/status", status, headers=MERGE, expect=200)
    await client.call("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}, expect=429)
    await client.call("GET", f"{PODS}/p", expect=200)
