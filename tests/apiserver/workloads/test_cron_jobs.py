from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver.kinds.schedule import schedule_problem
from listwatch.apiserver.workloads.cron_schedule import Schedule
from listwatch.apiserver.workloads.failures import PodFailure
from workload_cluster import Cluster, cluster

HOUR = 3600


@pytest.fixture
async def at_once() -> AsyncIterator[Cluster]:
    async with cluster() as made:
        yield made


@pytest.fixture
async def slow() -> AsyncIterator[Cluster]:
    async with cluster(run_seconds=1.5 * HOUR) as made:
        yield made


def hourly(**spec: Any) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}
    job = {"metadata": {"labels": {"app": "tick"}}, "spec": {"template": {"spec": pod}}}
    return {"schedule": "0 * * * *", "jobTemplate": job, **spec}


async def test_a_job_is_made_when_its_time_comes(at_once: Cluster) -> None:
    await at_once.create("cronjobs", "tick", spec=hourly())
    assert await at_once.names("jobs") == []
    await at_once.clock.advance(HOUR)
    (job,) = await at_once.all("jobs")
    due = int(at_once.clock.time()) // HOUR * HOUR
    assert job["metadata"]["name"] == f"tick-{due // 60}"
    assert job["metadata"]["labels"]["app"] == "tick"
    stamp = datetime.fromtimestamp(due, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert (
        job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"] == stamp
    )
    assert job["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
    status = await at_once.status("cronjobs", "tick")
    assert status["lastScheduleTime"] == stamp
    assert status["lastSuccessfulTime"] == stamp
    assert "active" not in status


async def test_a_job_that_ended_at_no_known_time_ended_when_it_says(slow: Cluster) -> None:
    await slow.create("cronjobs", "tick", spec=hourly())
    await slow.clock.advance(HOUR)
    (job,) = await slow.all("jobs")
    ended = {"status": "True", "lastTransitionTime": None}
    conditions = [{"type": each, **ended} for each in ("SuccessCriteriaMet", "Complete")]
    status = {"conditions": conditions, "completionTime": job["status"]["startTime"]}
    status |= {"active": None, "ready": None}
    await slow.patch("jobs", job["metadata"]["name"], {"status": status}, "status")
    assert "lastSuccessfulTime" not in await slow.status("cronjobs", "tick")


async def test_only_so_many_jobs_are_remembered(at_once: Cluster) -> None:
    spec = hourly(successfulJobsHistoryLimit=2, failedJobsHistoryLimit=0)
    spec["jobTemplate"]["spec"]["backoffLimit"] = 0
    await at_once.create("cronjobs", "tick", spec=spec)
    for _ in range(5):
        await at_once.clock.advance(HOUR)
    assert len(await at_once.names("jobs")) == 2
    before = await at_once.names("jobs")
    at_once.server.workloads.fail(PodFailure("Error"))
    await at_once.clock.advance(HOUR)
    assert await at_once.names("jobs") == before


@pytest.mark.parametrize(("policy", "active"), [("Allow", 2), ("Forbid", 1), ("Replace", 1)])
async def test_the_policy_says_whether_jobs_may_overlap(
    slow: Cluster, policy: str, active: int
) -> None:
    await slow.create("cronjobs", "tick", spec=hourly(concurrencyPolicy=policy))
    await slow.clock.advance(HOUR)
    (first,) = await slow.names("jobs")
    await slow.clock.advance(HOUR)
    names = await slow.names("jobs")
    assert len(names) == active
    assert (first in names) == (policy != "Replace")
    listed = (await slow.status("cronjobs", "tick"))["active"]
    assert sorted(each["name"] for each in listed) == names


async def test_what_was_forbidden_starts_when_the_other_has_ended(slow: Cluster) -> None:
    await slow.create("cronjobs", "tick", spec=hourly(concurrencyPolicy="Forbid"))
    await slow.clock.advance(HOUR)
    (first,) = await slow.names("jobs")
    await slow.clock.advance(1.6 * HOUR)
    assert len(await slow.names("jobs")) == 2
    assert (await slow.status("jobs", first))["succeeded"] == 1


async def test_while_suspended_nothing_is_made_and_of_what_was_missed_only_the_last(
    at_once: Cluster,
) -> None:
    await at_once.create("cronjobs", "tick", spec=hourly(suspend=True))
    await at_once.clock.advance(10 * HOUR)
    assert await at_once.names("jobs") == []
    await at_once.patch("cronjobs", "tick", {"spec": {"suspend": False}})
    due = int(at_once.clock.time()) // HOUR * 60
    assert await at_once.names("jobs") == [f"tick-{due}"]


async def test_what_is_too_late_is_not_made(at_once: Cluster) -> None:
    await at_once.create("cronjobs", "tick", spec=hourly(suspend=True, startingDeadlineSeconds=60))
    await at_once.clock.advance(10 * HOUR)
    late = at_once.clock.time() % HOUR
    assert late > 60
    await at_once.patch("cronjobs", "tick", {"spec": {"suspend": False}})
    assert await at_once.names("jobs") == []
    await at_once.clock.advance(HOUR)
    assert len(await at_once.names("jobs")) == 1


async def test_jobs_go_with_their_cron_job(slow: Cluster) -> None:
    await slow.create("cronjobs", "tick", spec=hourly())
    await slow.clock.advance(HOUR)
    await slow.delete("cronjobs", "tick", propagationPolicy="Background")
    assert await slow.names("jobs") == []
    assert await slow.names("pods") == []


def at(text: str, zone: Any = UTC) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


@pytest.mark.parametrize(
    ("schedule", "after", "due"),
    [
        ("* * * * *", "2026-03-01T10:00:00", "2026-03-01T10:01:00"),
        ("*/15 * * * *", "2026-03-01T10:46:00", "2026-03-01T11:00:00"),
        ("5/20 9-17 * * mon-fri", "2026-02-27T17:50:00", "2026-03-02T09:05:00"),
        ("0 0 29 2 *", "2026-03-01T00:00:00", "2028-02-29T00:00:00"),
        # If both are restricted, the day of the month or of the week is enough.
        ("0 0 13 * fri", "2026-03-07T00:00:00", "2026-03-13T00:00:00"),
        ("0 0 15 * fri", "2026-03-07T00:00:00", "2026-03-13T00:00:00"),
        ("0 0 */10 * fri", "2026-03-07T00:00:00", "2026-03-11T00:00:00"),
        ("@monthly", "2026-03-01T00:00:00", "2026-04-01T00:00:00"),
        ("@every 90m", "2026-03-01T00:00:00", "2026-03-01T01:30:00"),
        ("1,3-4 0 * jan,mar ?", "2026-01-31T00:03:00", "2026-01-31T00:04:00"),
    ],
)
def test_when_a_schedule_is_due(schedule: str, after: str, due: str) -> None:
    assert schedule_problem(schedule) is None
    assert Schedule.read(schedule).next(at(after)) == at(due)


def test_a_day_that_never_comes_is_never_due() -> None:
    assert Schedule.read("0 0 30 2 *").next(at("2026-03-01T00:00:00")) is None


def test_an_hour_that_the_clocks_leave_out_is_not_due() -> None:
    zone = ZoneInfo("Europe/Berlin")
    found = Schedule.read("30 2 * * *").next(at("2026-03-28T12:00:00", zone), zone)
    assert found == at("2026-03-30T02:30:00", zone)


@given(
    st.sampled_from(["*/7 * * * *", "0 3 * * *", "30 4 1,15 * mon", "@weekly", "@every 7h"]),
    st.integers(0, 400 * 24 * 60),
    st.integers(0, 40 * 24 * 60),
)
def test_the_last_time_is_that_before_the_first_one_that_is_too_late(
    schedule: str, begun: int, minutes: int
) -> None:
    read = Schedule.read(schedule)
    after = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=begun)).timestamp()
    until = after + 60 * minutes
    found = None
    step = read.next(after)
    while step is not None and step <= until:
        found, step = step, read.next(step)
    assert read.latest(after, until) == found
