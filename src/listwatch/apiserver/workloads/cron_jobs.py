"""CronJob: creates Jobs when due, and deletes old ones."""

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from listwatch.apiserver.workloads.cron_schedule import Schedule
from listwatch.apiserver.workloads.jobs import finished_as
from listwatch.apiserver.workloads.observed import (
    CRON_JOBS,
    JOBS,
    Create,
    Delete,
    Later,
    Object,
    Observed,
    Steps,
    View,
    condition,
    owner_reference,
)
from listwatch.apiserver.workloads.pods import is_deleting, status_update
from listwatch.schema.copying import copy_of

_SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"


def step_cron_job(observed: Observed, cron_job: View) -> Steps:
    """Create the Job of a CronJob that is due, delete old ones, update the status."""
    if is_deleting(cron_job):
        return []
    return _Cron(observed, cron_job).steps()


class _Cron:
    """One look at a CronJob and its Jobs."""

    def __init__(self, observed: Observed, cron_job: View) -> None:
        self._observed = observed
        self._cron_job = cron_job
        self._spec: View = cron_job["spec"]
        self._status: Object = dict(cron_job.get("status") or {})
        jobs = observed.controlled(cron_job, JOBS)
        self._active = [job for job in jobs if not finished_as(job) and not is_deleting(job)]
        self._ended = {
            kind: [job for job in jobs if finished_as(job) == kind and not is_deleting(job)]
            for kind in ("Complete", "Failed")
        }

    def steps(self) -> Steps:
        self._note_success()
        work = [] if self._spec.get("suspend") else self._start()
        self._status["active"] = [
            {
                "kind": "Job",
                "namespace": job["metadata"]["namespace"],
                "name": job["metadata"]["name"],
                "uid": job["metadata"]["uid"],
                "apiVersion": "batch/v1",
                "resourceVersion": job["metadata"]["resourceVersion"],
            }
            for job in self._active
        ]
        known = {each.get("uid"): each for each in self._before_active()}
        for each in self._status["active"]:
            # the reference has the version that the Job had when first seen
            if each["uid"] in known:
                each["resourceVersion"] = known[each["uid"]].get("resourceVersion")
        if not self._status["active"]:
            del self._status["active"]
        return [*work, *self._forget(), *status_update(CRON_JOBS, self._cron_job, self._status)]

    def _before_active(self) -> list[View]:
        return list((self._cron_job.get("status") or {}).get("active") or ())

    def _note_success(self) -> None:
        ended = [
            str((condition(job, "Complete") or {}).get("lastTransitionTime") or "")
            for job in self._ended["Complete"]
        ]
        last = max([*ended, self._status.get("lastSuccessfulTime") or ""])
        if last:
            self._status["lastSuccessfulTime"] = last

    def _forget(self) -> Steps:
        steps: Steps = []
        limits = (
            ("Complete", "successfulJobsHistoryLimit", 3),
            ("Failed", "failedJobsHistoryLimit", 1),
        )
        for kind, name, usual in limits:
            limit = self._spec.get(name, usual)
            jobs = sorted(
                self._ended[kind],
                key=lambda job: (
                    (job.get("status") or {}).get("startTime") or "",
                    job["metadata"]["name"],
                ),
            )
            for job in jobs[: max(0, len(jobs) - limit)]:
                steps.append(Delete(JOBS, job, propagation="Background"))
        return steps

    def _start(self) -> Steps:
        """Create the Job of the last missed time, if it is not too late and may run."""
        schedule = Schedule.read(self._spec["schedule"])
        name = self._spec.get("timeZone")
        zone: tzinfo = ZoneInfo(name) if name else UTC
        now = self._observed.now
        metadata = self._cron_job["metadata"]
        since = self._status.get("lastScheduleTime") or metadata["creationTimestamp"]
        begun = datetime.fromisoformat(since).timestamp()
        deadline = self._spec.get("startingDeadlineSeconds")
        if deadline is not None:
            begun = max(begun, now - deadline)
        following = schedule.next(now, zone)
        later: Steps = [] if following is None else [Later(following - now)]
        due = schedule.latest(begun, now, zone)
        if due is None:
            return later
        name = f"{metadata['name']}-{int(due) // 60}"
        if self._observed.find(JOBS, metadata["namespace"], name) is not None:
            return later
        policy = self._spec.get("concurrencyPolicy", "Allow")
        if policy == "Forbid" and self._active:
            return later  # the end of the running Job triggers the next check
        steps: Steps = []
        if policy == "Replace":
            steps = [Delete(JOBS, job, propagation="Background") for job in self._active]
        self._status["lastScheduleTime"] = _stamp(due)
        return [*steps, Create(JOBS, self._job(name, due, zone)), *later]

    def _job(self, name: str, due: float, zone: tzinfo) -> Object:
        template = self._spec["jobTemplate"]
        given = template.get("metadata") or {}
        when = datetime.fromtimestamp(due, zone)
        return {
            "metadata": {
                "name": name,
                "namespace": self._cron_job["metadata"]["namespace"],
                "labels": dict(given.get("labels") or {}),
                "annotations": {
                    **(given.get("annotations") or {}),
                    _SCHEDULED: when.isoformat().replace("+00:00", "Z"),
                },
                "ownerReferences": [owner_reference("batch/v1", "CronJob", self._cron_job)],
            },
            "spec": copy_of(template["spec"]),
        }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
