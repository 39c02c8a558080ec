"""Jobs that end by their failure and success policies, or by the failures of an index."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from listwatch.apiserver.workloads.failures import PodFailure
from listwatch.apiserver.workloads.job_policies import IndexFailures, success_by_policy, verdict_on
from workload_cluster import Cluster, cluster, conditions

_COUNT = "batch.kubernetes.io/job-index-failure-count"


@pytest.fixture
async def at_once() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


def job(**spec: Any) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}
    return {"template": {"spec": pod}, **spec}


def indexed(completions: int, **spec: Any) -> dict[str, Any]:
    options = {"completions": completions, "parallelism": completions}
    return job(completionMode="Indexed", **{**options, **spec})


def exit_codes(action: str, *values: int, operator: str = "In", **more: Any) -> dict[str, Any]:
    return {
        "action": action,
        "onExitCodes": {"operator": operator, "values": list(values), **more},
    }


def failed_pod(code: int = 1, condition: str = "", failures: int = 0) -> dict[str, Any]:
    terminated = {"exitCode": code}
    return {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": f"u{failures}",
            "annotations": {_COUNT: str(failures)},
        },
        "status": {
            "phase": "Failed",
            "containerStatuses": [{"name": "c", "state": {"terminated": terminated}}],
            "conditions": [{"type": condition, "status": "True"}] if condition else [],
        },
    }


# -- failure policies --------------------------------------------------------------------------


async def test_a_rule_fails_the_job_at_the_first_such_exit(at_once: Cluster) -> None:
    at_once.server.workloads.fail(PodFailure("Error", exit_code=42))
    rules = [exit_codes("Count", 1), exit_codes("FailJob", 42)]
    await at_once.create("jobs", "sum", spec=job(podFailurePolicy={"rules": rules}))
    found = await at_once.get("jobs", "sum")
    assert conditions(found) == {
        "FailureTarget": ("True", "PodFailurePolicy"),
        "Failed": ("True", "PodFailurePolicy"),
    }
    (pod,) = await at_once.names("pods")
    (failed,) = [each for each in found["status"]["conditions"] if each["type"] == "Failed"]
    assert failed["message"] == (
        f"Container c for pod default/{pod} failed with exit code 42 matching FailJob rule at "
        "index 1"
    )
    assert found["status"]["failed"] == 1


async def test_ignored_failures_do_not_count_to_the_limit(at_once: Cluster) -> None:
    at_once.server.workloads.fail(PodFailure("Evicted", times=3))
    condition = {"type": "DisruptionTarget", "status": "True"}
    rule = {"action": "Ignore", "onPodConditions": [condition]}
    spec = job(backoffLimit=0, podFailurePolicy={"rules": [rule]})
    await at_once.create("jobs", "sum", spec=spec)
    found = await at_once.get("jobs", "sum")
    assert conditions(found)["Complete"] == ("True", "CompletionsReached")
    assert found["status"].get("failed") is None
    pods = await at_once.all("pods")
    assert len(pods) == 4
    assert all("finalizers" not in pod["metadata"] for pod in pods)


@pytest.mark.parametrize(
    ("rule", "pod", "action"),
    [
        (exit_codes("Ignore", 1, 2), failed_pod(2), "Ignore"),
        (exit_codes("Ignore", 1), failed_pod(2), ""),
        (exit_codes("Count", 1, operator="NotIn"), failed_pod(2), "Count"),
        (exit_codes("FailJob", 1, operator="NotIn"), failed_pod(1), ""),
        (exit_codes("FailJob", 1, operator="NotIn"), failed_pod(0), ""),  # it has not failed
        (exit_codes("FailJob", 1, containerName="c"), failed_pod(1), "FailJob"),
        (exit_codes("FailJob", 1, containerName="d"), failed_pod(1), ""),
        (
            {"action": "FailIndex", "onPodConditions": [{"type": "Sick", "status": "True"}]},
            failed_pod(condition="Sick"),
            "FailIndex",
        ),
        (
            {"action": "FailIndex", "onPodConditions": [{"type": "Sick", "status": "False"}]},
            failed_pod(condition="Sick"),
            "",
        ),
    ],
)
def test_the_first_rule_that_matches_decides(
    rule: dict[str, Any], pod: dict[str, Any], action: str
) -> None:
    spec = {"podFailurePolicy": {"rules": [rule, exit_codes("Count", 99)]}}
    assert verdict_on(spec, pod).action == action


# -- success policies --------------------------------------------------------------------------


async def test_a_job_is_complete_once_the_indexes_of_a_rule_have_succeeded() -> None:
    async with cluster() as made:
        made.server.workloads.fail(PodFailure("ImagePullBackOff", name="sum-0-*"))
        policy = {"rules": [{"succeededIndexes": "1-2", "succeededCount": 2}]}
        await made.create("jobs", "sum", spec=indexed(3, successPolicy=policy))
        await made.clock.advance(60)
        found = await made.get("jobs", "sum")
        assert conditions(found) == {
            "SuccessCriteriaMet": ("True", "SuccessPolicy"),
            "Complete": ("True", "SuccessPolicy"),
        }
        assert found["status"]["completedIndexes"] == "1,2"
        messages = {each["message"] for each in found["status"]["conditions"]}
        assert messages == {"Matched rules at index 0"}


@pytest.mark.parametrize(
    ("rule", "succeeded", "met"),
    [
        ({"succeededCount": 2}, {4, 7}, True),
        ({"succeededCount": 2}, {4}, False),
        ({"succeededIndexes": "1,3-4"}, {1, 3, 4, 9}, True),
        ({"succeededIndexes": "1,3-4"}, {1, 3, 9}, False),
        ({"succeededIndexes": "1,3-4", "succeededCount": 1}, {3}, True),
        ({"succeededIndexes": "1,3-4", "succeededCount": 1}, {5}, False),
    ],
)
def test_a_rule_is_met(rule: dict[str, Any], succeeded: set[int], *, met: bool) -> None:
    assert bool(success_by_policy({"successPolicy": {"rules": [rule]}}, succeeded)) is met


# -- limits of each index ----------------------------------------------------------------------


async def test_an_index_fails_after_its_own_limit_and_the_others_go_on(at_once: Cluster) -> None:
    at_once.server.workloads.fail(PodFailure("Error", name="sum-1-*"))
    await at_once.create("jobs", "sum", spec=indexed(3, backoffLimitPerIndex=2))
    for _ in range(6):
        await at_once.clock.advance(20)
    found = await at_once.get("jobs", "sum")
    assert conditions(found) == {
        "FailureTarget": ("True", "FailedIndexes"),
        "Failed": ("True", "FailedIndexes"),
    }
    status = found["status"]
    assert (status["completedIndexes"], status["failedIndexes"]) == ("0,2", "1")
    assert (status["succeeded"], status["failed"]) == (2, 3)
    assert found["spec"]["backoffLimit"] == 2**31 - 1
    pods = await at_once.all("pods")
    counts = sorted(
        pod["metadata"]["annotations"][_COUNT]
        for pod in pods
        if pod["metadata"]["name"].startswith("sum-1-")
    )
    assert counts == ["0", "1", "2"]
    assert all("finalizers" not in pod["metadata"] for pod in pods)


async def test_a_failed_pod_is_held_until_its_replacement_holds_its_count(
    at_once: Cluster,
) -> None:
    at_once.server.workloads.fail(PodFailure("Error", name="sum-0-*", times=1))
    await at_once.create("jobs", "sum", spec=indexed(1, backoffLimitPerIndex=1))
    (pod,) = await at_once.all("pods")
    assert pod["metadata"]["finalizers"]
    assert (await at_once.status("jobs", "sum")).get("failed") is None
    await at_once.delete("pods", pod["metadata"]["name"])
    await at_once.clock.advance(20)
    found = await at_once.get("jobs", "sum")
    assert conditions(found)["Complete"] == ("True", "CompletionsReached")
    assert found["status"]["failed"] == 1
    (last,) = await at_once.all("pods")
    assert last["metadata"]["annotations"][_COUNT] == "1"


async def test_too_many_failed_indexes_end_the_job(at_once: Cluster) -> None:
    at_once.server.workloads.fail(PodFailure("Error", name="sum-[01]-*"))
    at_once.server.workloads.fail(PodFailure("ImagePullBackOff"))
    spec = indexed(4, backoffLimitPerIndex=0, maxFailedIndexes=1)
    await at_once.create("jobs", "sum", spec=spec)
    await at_once.clock.advance(60)
    found = await at_once.get("jobs", "sum")
    assert conditions(found)["Failed"] == ("True", "MaxFailedIndexesExceeded")
    # those that had to end count, too, as their pods have failed
    assert found["status"]["failedIndexes"] == "0-3"
    assert found["status"].get("active") is None


async def test_a_rule_fails_an_index_at_once(at_once: Cluster) -> None:
    at_once.server.workloads.fail(PodFailure("Error", name="sum-1-*", exit_code=3))
    policy = {"rules": [exit_codes("FailIndex", 3)]}
    spec = indexed(2, backoffLimitPerIndex=5, podFailurePolicy=policy)
    await at_once.create("jobs", "sum", spec=spec)
    found = await at_once.get("jobs", "sum")
    assert found["status"]["failedIndexes"] == "1"
    assert conditions(found)["Failed"] == ("True", "FailedIndexes")


def test_ignored_failures_of_an_index_only_delay_it() -> None:
    spec = {
        "backoffLimitPerIndex": 0,
        "podFailurePolicy": {"rules": [exit_codes("Ignore", 7)]},
    }
    found = IndexFailures(spec, [(0, failed_pod(7))], set())
    assert found.failed == set()
    assert found.of(0) == 1
    assert found.annotations(0) == {
        _COUNT: "0",
        "batch.kubernetes.io/job-index-ignored-failure-count": "1",
    }
    assert found.unreplaced() == {"u0"}
