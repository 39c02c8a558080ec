from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver.workloads.failures import PodFailure
from listwatch.apiserver.workloads.job_policies import read_indexes, written_indexes
from workload_cluster import PATHS, Cluster, cluster, conditions


@pytest.fixture
async def at_once() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


@pytest.fixture
async def slow() -> AsyncIterator[Cluster]:
    async with cluster(run_seconds=30) as made:
        yield made


def job(policy: str = "Never", **spec: Any) -> dict[str, Any]:
    pod = {"restartPolicy": policy, "containers": [{"name": "c", "image": "i:1"}]}
    return {"template": {"spec": pod}, **spec}


async def test_a_job_is_complete_when_enough_pods_have_succeeded(at_once: Cluster) -> None:
    await at_once.create("jobs", "sum", spec=job(completions=5, parallelism=2))
    found = await at_once.get("jobs", "sum")
    status = found["status"]
    assert conditions(found) == {
        "SuccessCriteriaMet": ("True", "CompletionsReached"),
        "Complete": ("True", "CompletionsReached"),
    }
    assert (status["succeeded"], status.get("active"), status.get("failed")) == (5, None, None)
    assert (status["ready"], status["terminating"]) == (0, 0)
    assert status["uncountedTerminatedPods"] == {}
    assert status["startTime"] <= status["completionTime"]
    pods = await at_once.all("pods")
    assert len(pods) == 5
    assert all("finalizers" not in pod["metadata"] for pod in pods)


async def test_no_more_pods_run_at_once_than_in_parallel(slow: Cluster) -> None:
    await slow.create("jobs", "sum", spec=job(completions=5, parallelism=2))
    seen = []
    for _ in range(3):
        status = await slow.status("jobs", "sum")
        seen.append((status.get("active"), status.get("ready"), status.get("succeeded")))
        await slow.clock.advance(30)
    assert seen == [(2, 2, None), (2, 2, 2), (1, 1, 4)]
    assert conditions(await slow.get("jobs", "sum"))["Complete"][0] == "True"


async def test_a_pod_is_held_until_its_end_is_counted(slow: Cluster) -> None:
    await slow.create("jobs", "sum", spec=job())
    (pod,) = await slow.all("pods")
    assert pod["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    labels = pod["metadata"]["labels"]
    assert labels["batch.kubernetes.io/job-name"] == labels["job-name"] == "sum"


async def test_a_deleted_pod_counts_as_failed_and_is_replaced(slow: Cluster) -> None:
    await slow.create("jobs", "sum", spec=job())
    (name,) = await slow.names("pods")
    await slow.delete("pods", name)
    assert (await slow.status("jobs", "sum"))["failed"] == 1
    await slow.clock.advance(10)
    assert len(await slow.names("pods")) == 1
    await slow.clock.advance(60)
    assert (await slow.status("jobs", "sum"))["succeeded"] == 1


async def test_failed_pods_are_replaced_ever_more_slowly_until_the_limit(at_once: Cluster) -> None:
    at_once.server.workloads.fail(PodFailure("Error", exit_code=2))
    await at_once.create("jobs", "sum", spec=job(backoffLimit=2))
    failed = []
    for seconds in (0, 10, 20):
        await at_once.clock.advance(seconds)
        failed.append((await at_once.status("jobs", "sum"))["failed"])
    assert failed == [1, 2, 3]
    found = await at_once.get("jobs", "sum")
    assert conditions(found) == {
        "FailureTarget": ("True", "BackoffLimitExceeded"),
        "Failed": ("True", "BackoffLimitExceeded"),
    }
    assert "completionTime" not in found["status"]
    await at_once.clock.advance(600)
    assert len(await at_once.names("pods")) == 3


async def test_restarts_of_containers_count_to_the_limit_too(at_once: Cluster) -> None:
    at_once.server.workloads.fail(PodFailure("Error"))
    await at_once.create("jobs", "sum", spec=job("OnFailure", backoffLimit=3))
    await at_once.clock.advance(120)
    found = await at_once.get("jobs", "sum")
    assert conditions(found)["Failed"] == ("True", "BackoffLimitExceeded")
    assert [pod for pod in await at_once.all("pods") if pod["status"]["phase"] == "Running"] == []


async def test_a_deadline_ends_what_still_runs() -> None:
    async with cluster(run_seconds=3600, stop_seconds=5) as slow:
        await slow.create("jobs", "sum", spec=job(activeDeadlineSeconds=60, parallelism=2))
        await slow.clock.advance(60)
        found = await slow.get("jobs", "sum")
        assert conditions(found) == {"FailureTarget": ("True", "DeadlineExceeded")}
        assert found["status"]["terminating"] == 2
        await slow.clock.advance(5)
        found = await slow.get("jobs", "sum")
        assert conditions(found)["Failed"] == ("True", "DeadlineExceeded")


async def test_a_suspended_job_has_no_pods_until_it_is_resumed(slow: Cluster) -> None:
    await slow.create("jobs", "sum", spec=job(suspend=True))
    found = await slow.get("jobs", "sum")
    assert conditions(found) == {"Suspended": ("True", "JobSuspended")}
    assert "startTime" not in found["status"]
    await slow.patch("jobs", "sum", {"spec": {"suspend": False}})
    found = await slow.get("jobs", "sum")
    assert conditions(found) == {"Suspended": ("False", "JobResumed")}
    assert (found["status"]["active"], "startTime" in found["status"]) == (1, True)
    await slow.patch("jobs", "sum", {"spec": {"suspend": True}})
    assert await slow.names("pods") == []


async def test_an_indexed_job_has_one_pod_for_each_index(at_once: Cluster) -> None:
    at_once.server.workloads.fail(PodFailure("Error", name="sum-1-*", times=1))
    spec = job(completionMode="Indexed", completions=3, parallelism=3)
    await at_once.create("jobs", "sum", spec=spec)
    assert (await at_once.status("jobs", "sum"))["completedIndexes"] == "0,2"
    await at_once.clock.advance(10)
    status = await at_once.status("jobs", "sum")
    assert (status["completedIndexes"], status["succeeded"], status["failed"]) == ("0-2", 3, 1)
    pods = [pod for pod in await at_once.all("pods") if pod["status"]["phase"] == "Succeeded"]
    indexes = {
        pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]: pod["spec"]
        for pod in pods
    }
    assert sorted(indexes) == ["0", "1", "2"]
    assert indexes["2"]["hostname"] == "sum-2"
    assert indexes["2"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"


async def test_a_queue_of_work_is_done_when_one_has_succeeded_and_all_have_ended(
    at_once: Cluster,
) -> None:
    await at_once.create("jobs", "sum", spec=job(parallelism=3))
    status = await at_once.status("jobs", "sum")
    assert status["succeeded"] == 3
    assert conditions(await at_once.get("jobs", "sum"))["Complete"][0] == "True"


async def test_a_job_goes_when_its_time_to_live_is_over(at_once: Cluster) -> None:
    await at_once.create("jobs", "sum", spec=job(ttlSecondsAfterFinished=100))
    await at_once.clock.advance(99)
    assert await at_once.names("jobs") == ["sum"]
    await at_once.clock.advance(1)
    assert await at_once.names("jobs") == []
    assert await at_once.names("pods") == []


async def test_pods_that_outlive_their_job_are_let_go(slow: Cluster) -> None:
    await slow.create("jobs", "sum", spec=job())
    path = f"{PATHS['jobs']}/sum"
    await slow.client.call("DELETE", path, {"propagationPolicy": "Orphan"}, expect=200)
    await slow.clock.settle()
    (pod,) = await slow.all("pods")
    assert "finalizers" not in pod["metadata"]
    await slow.delete("pods", pod["metadata"]["name"])
    assert await slow.names("pods") == []


async def test_a_job_that_somebody_else_manages_is_left_alone(at_once: Cluster) -> None:
    await at_once.create("jobs", "sum", spec=job(managedBy="example.com/queue"))
    assert await at_once.names("pods") == []
    assert await at_once.status("jobs", "sum") == {}


@given(st.sets(st.integers(0, 60)))
def test_indexes_that_are_written_are_read_again(indexes: set[int]) -> None:
    assert read_indexes(written_indexes(indexes)) == indexes


def test_indexes_are_written_as_ranges() -> None:
    assert written_indexes({0, 1, 3, 4, 5, 9}) == "0,1,3-5,9"
