"""Job: runs pods until enough have succeeded, or too many have failed."""

from collections.abc import Iterable

from listwatch.apiserver.workloads.job_policies import (
    IndexFailures,
    read_indexes,
    success_by_policy,
    verdict_on,
    written_indexes,
)
from listwatch.apiserver.workloads.observed import (
    JOBS,
    PODS,
    Create,
    Delete,
    Later,
    Object,
    Observed,
    Steps,
    View,
    condition,
    controller_of,
    is_true,
    with_condition,
    without_finalizer,
)
from listwatch.apiserver.workloads.options import Workloads
from listwatch.apiserver.workloads.pods import (
    claim,
    is_deleting,
    is_finished,
    is_ready,
    pod_of,
    status_update,
)
from listwatch.selector import LabelSelector

#: Keeps a pod until its Job's status has counted it.
TRACKING = "batch.kubernetes.io/job-tracking"
_INDEX = "batch.kubernetes.io/job-completion-index"
_MANAGER = "kubernetes.io/job-controller"
#: Maximum pods created or deleted in one step, like `MaxPodCreateDeletePerSync`.
_BURST = 500


def finished_as(job: View) -> str:
    """Return "Complete" or "Failed", or "" while a Job runs."""
    return next((kind for kind in ("Complete", "Failed") if is_true(job, kind)), "")


def step_tracked(observed: Observed, pod: View) -> Steps:
    """Release a tracked pod whose Job is gone."""
    owner = controller_of(pod)
    if owner is not None and owner.get("kind") == "Job":
        job = observed.find(JOBS, pod["metadata"]["namespace"], owner["name"])
        if job is not None and job["metadata"]["uid"] == owner.get("uid"):
            return []
    return _untracked([pod])


def step_job(observed: Observed, options: Workloads, job: View) -> Steps:
    """Bring the pods of a Job closer to its spec, and its status up to date."""
    if job["spec"].get("managedBy") not in {None, _MANAGER}:
        return []
    pods, steps = claim(
        observed, job, LabelSelector.from_dict(job["spec"].get("selector")), "batch/v1", "Job"
    )
    if steps:
        return steps
    if finished_as(job):
        return [*_untracked(pods), *_expire(observed, job)]
    if is_deleting(job):
        return _untracked(pod for pod in pods if is_finished(pod) or is_deleting(pod))
    return _Work(observed, options, job, pods).steps()


def _untracked(pods: Iterable[View]) -> Steps:
    return [step for pod in pods for step in without_finalizer(PODS, pod, TRACKING)]


def _expire(observed: Observed, job: View) -> Steps:
    """Delete a finished Job whose time to live has expired."""
    seconds = job["spec"].get("ttlSecondsAfterFinished")
    if seconds is None or is_deleting(job):
        return []
    ended = condition(job, finished_as(job)) or {}
    left = seconds - observed.since(ended.get("lastTransitionTime"))
    if left > 0:
        return [Later(left)]
    return [Delete(JOBS, job, propagation="Foreground")]


class _Work:
    """One look at an unfinished Job and its pods."""

    def __init__(self, observed: Observed, options: Workloads, job: View, pods: list[View]) -> None:
        self._observed = observed
        self._options = options
        self._job = job
        self._spec: View = job["spec"]
        self._before: View = job.get("status") or {}
        self._pods = pods
        self._active = [pod for pod in pods if not is_finished(pod) and not is_deleting(pod)]
        self._ending = [pod for pod in pods if not is_finished(pod) and is_deleting(pod)]
        self._indexed = self._spec.get("completionMode") == "Indexed"
        self._status: Object = dict(self._before)
        self._failures = self._index_failures()
        self._held: set[str] = set()
        if self._failures is not None and not self._is_ending():
            self._held = self._failures.unreplaced()
        self._count()

    def _is_ending(self) -> bool:
        return is_true(self._job, "FailureTarget") or is_true(self._job, "SuccessCriteriaMet")

    def _index_failures(self) -> IndexFailures | None:
        if not self._indexed or self._spec.get("backoffLimitPerIndex") is None:
            return None
        pods = [(index, pod) for pod in self._pods if (index := _index_of(pod)) is not None]
        known = read_indexes(self._before.get("failedIndexes") or "")
        found = IndexFailures(self._spec, pods, known)
        self._status["failedIndexes"] = written_indexes(found.failed)
        return found

    # -- counts ------------------------------------------------------------------------------

    def _count(self) -> None:
        """Count ended pods: first recorded by uid, then counted when the pod is released."""
        tracked = {
            pod["metadata"]["uid"]: pod
            for pod in self._pods
            if TRACKING in (pod["metadata"].get("finalizers") or ())
        }
        noted = self._before.get("uncountedTerminatedPods") or {}
        uncounted: Object = {}
        ignored = {
            uid
            for uid, pod in tracked.items()
            if _phase(pod) == "Failed" and not verdict_on(self._spec, pod).is_counted
        }
        for name, phase in (("succeeded", "Succeeded"), ("failed", "Failed")):
            known = list(noted.get(name) or ())
            left = [uid for uid in known if uid in tracked]
            counted = self._before.get(name, 0) + len(known) - len(left)
            new = [
                uid
                for uid, pod in tracked.items()
                if uid not in known
                and uid not in ignored
                and uid not in self._held
                and _phase(pod) == phase
            ]
            if left or new:
                uncounted[name] = [*left, *new]
            self._status[name] = counted
            if not counted:
                del self._status[name]
        self._status["uncountedTerminatedPods"] = uncounted
        self._let_go = [
            tracked[uid] for uids in uncounted.values() for uid in uids if uid in tracked
        ]
        self._let_go += [tracked[uid] for uid in sorted(ignored - self._held)]
        self.failed = self._total("failed")
        self._indexes = read_indexes(self._before.get("completedIndexes", ""))
        if self._indexed:
            self._indexes |= {
                index
                for pod in self._pods
                if _phase(pod) == "Succeeded" and (index := _index_of(pod)) is not None
            }
            self._status["completedIndexes"] = written_indexes(self._indexes)
            if not self._indexes:
                del self._status["completedIndexes"]
        self.succeeded = len(self._indexes) if self._indexed else self._total("succeeded")

    def _total(self, name: str) -> int:
        waiting = self._status["uncountedTerminatedPods"].get(name) or ()
        return int(self._status.get(name, 0)) + len(waiting)

    # -- decisions ------------------------------------------------------------------------------

    def steps(self) -> Steps:
        later: Steps = []
        suspended = bool(self._spec.get("suspend"))
        if not suspended and not self._status.get("startTime"):
            self._status["startTime"] = self._observed.stamp
        failure = self._failure()
        if failure is None and not suspended and self._spec.get("activeDeadlineSeconds"):
            left = self._spec["activeDeadlineSeconds"] - self._observed.since(
                self._status.get("startTime")
            )
            later.append(Later(max(left, 0.001)))
        if failure is not None:
            work: Steps = [Delete(PODS, pod) for pod in self._active]
            self._end("FailureTarget", "Failed", *failure)
        elif (success := self._success()) is not None:
            work = [Delete(PODS, pod) for pod in self._active]
            self._end("SuccessCriteriaMet", "Complete", *success)
        elif suspended:
            work = [Delete(PODS, pod) for pod in self._active]
            self._suspend()
        else:
            if is_true(self._job, "Suspended"):
                self._put("Suspended", "False", "JobResumed", "Job resumed")
                self._status["startTime"] = self._observed.stamp
            work = self._scale()
        waits = [each for each in (*work, *later) if isinstance(each, Later)]
        writes = [each for each in work if not isinstance(each, Later)]
        made = sum(isinstance(each, Create) for each in writes)
        gone = {each.obj["metadata"]["name"] for each in writes if isinstance(each, Delete)}
        staying = [pod for pod in self._active if pod["metadata"]["name"] not in gone]
        self._tell(len(staying) + made, sum(map(is_ready, staying)), len(self._ending) + len(gone))
        return [
            *status_update(JOBS, self._job, self._status),
            *_untracked(self._let_go),
            *writes,
            *([min(waits, key=lambda each: each.seconds)] if waits else []),
        ]

    def _tell(self, active: int, ready: int, ending: int) -> None:
        counts = {"active": active, "ready": ready, "terminating": ending}
        for name, number in counts.items():
            if number or name != "active":
                self._status[name] = number
            else:
                self._status.pop(name, None)

    def _put(self, kind: str, status: str, reason: str, message: str) -> None:
        conditions = self._status.get("conditions") or []
        known = condition({"status": {"conditions": conditions}}, kind)
        if known is not None and known.get("status") == status:
            return
        told = {
            "type": kind,
            "status": status,
            "lastProbeTime": self._observed.stamp,
            "lastTransitionTime": self._observed.stamp,
            "reason": reason,
            "message": message,
        }
        self._status["conditions"] = with_condition(conditions, told)

    def _end(self, target: str, kind: str, reason: str, message: str) -> None:
        """Report how the Job ends, and complete it once none of its pods is uncounted."""
        self._put(target, "True", reason, message)
        if self._active or self._ending or self._held:
            return
        if self._status["uncountedTerminatedPods"]:
            return
        self._put(kind, "True", reason, message)
        if kind == "Complete":
            self._status["completionTime"] = self._observed.stamp

    def _suspend(self) -> None:
        self._put("Suspended", "True", "JobSuspended", "Job suspended")
        self._status.pop("startTime", None)

    def _failure(self) -> tuple[str, str] | None:
        target = condition(self._job, "FailureTarget")
        if target is not None and target.get("status") == "True":
            return target.get("reason", ""), target.get("message", "")
        if is_true(self._job, "SuccessCriteriaMet"):
            return None
        for pod in self._pods:
            if _phase(pod) == "Failed" and (words := verdict_on(self._spec, pod).message):
                return "PodFailurePolicy", words
        limit = self._spec.get("backoffLimit", 6)
        if self.failed > limit or self._restarts_exceed(limit):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        deadline, started = self._spec.get("activeDeadlineSeconds"), self._before.get("startTime")
        over = deadline is not None and started and self._observed.since(started) >= deadline
        if over and not self._spec.get("suspend"):
            return "DeadlineExceeded", "Job was active longer than specified deadline"
        return self._failed_indexes()

    def _failed_indexes(self) -> tuple[str, str] | None:
        failed = len(self._failures.failed) if self._failures is not None else 0
        most = self._spec.get("maxFailedIndexes")
        if most is not None and failed > most:
            words = "Job has exceeded the specified maximal number of failed indexes"
            return "MaxFailedIndexesExceeded", words
        if failed and failed + self.succeeded >= self._spec["completions"]:
            return "FailedIndexes", "Job has failed indexes"
        return None

    def _restarts_exceed(self, limit: int) -> bool:
        if self._spec["template"]["spec"].get("restartPolicy") != "OnFailure":
            return False
        restarts = sum(
            each.get("restartCount", 0)
            for pod in self._active
            for each in (pod.get("status") or {}).get("containerStatuses") or ()
        )
        return bool(restarts >= max(1, limit))

    def _success(self) -> tuple[str, str] | None:
        """Return why the Job is complete, or None: reason and message."""
        target = condition(self._job, "SuccessCriteriaMet")
        if target is not None and target.get("status") == "True":
            return target.get("reason", ""), target.get("message", "")
        by_policy = success_by_policy(self._spec, self._indexes)
        if by_policy:
            return "SuccessPolicy", by_policy
        completions = self._spec.get("completions")
        if completions is None:
            is_complete = self.succeeded > 0 and not self._active
        else:
            is_complete = self.succeeded >= completions
        words = "Reached expected number of succeeded pods"
        return ("CompletionsReached", words) if is_complete else None

    # -- pods --------------------------------------------------------------------------------

    def _wanted(self) -> int:
        parallel, completions = self._spec.get("parallelism", 1), self._spec.get("completions")
        if completions is None:
            # a work queue: when one pod has succeeded, no new ones start
            return min(len(self._active), parallel) if self.succeeded else int(parallel)
        failed = len(self._failures.failed) if self._failures is not None else 0
        return int(min(parallel, completions - self.succeeded - failed))

    def _scale(self) -> Steps:
        wanted = self._wanted()
        if len(self._active) > wanted:
            # delete unready pods first, then the youngest
            order = sorted(
                self._active,
                key=lambda pod: (is_ready(pod), _backwards(pod["metadata"]["creationTimestamp"])),
            )
            return [Delete(PODS, pod) for pod in order[: len(self._active) - wanted]]
        present = len(self._active)
        if self._spec.get("podReplacementPolicy") == "Failed":
            present += len(self._ending)
        missing = min(wanted - present, _BURST)
        if missing <= 0:
            return []
        if self._failures is None:
            left = self._back_off(self._pods, self.failed)
            if left > 0:
                return [Later(left)]
        if not self._indexed:
            return [Create(PODS, self._pod(None)) for _ in range(missing)]
        taken = {_index_of(pod) for pod in self._active} | self._indexes
        if self._spec.get("podReplacementPolicy") == "Failed":
            taken |= {_index_of(pod) for pod in self._ending}
        free = (index for index in range(self._spec["completions"]) if index not in taken)
        if self._failures is not None:
            return self._replace(self._failures, free, missing)
        return [
            Create(PODS, self._pod(index)) for index, _ in zip(free, range(missing), strict=False)
        ]

    def _replace(self, failures: IndexFailures, free: Iterable[int], missing: int) -> Steps:
        """Create pods for indexes that have not failed, each after its own delay."""
        steps: Steps = []
        for index in free:
            if index in failures.failed:
                continue
            if len(steps) == missing:
                break
            number = failures.of(index)
            pods = [pod for pod in self._pods if _index_of(pod) == index] if number else []
            left = self._back_off(pods, number)
            if left > 0:
                steps.append(Later(left))
                continue
            pod = self._pod(index)
            pod["metadata"]["annotations"] |= failures.annotations(index)
            steps.append(Create(PODS, pod))
        return steps

    def _back_off(self, pods: Iterable[View], failures: int) -> float:
        """Return the delay after the last failure, which grows with the number of failures."""
        if not failures:
            return 0.0
        ended = [_ended_at(pod) for pod in pods if _phase(pod) == "Failed"]
        last = max(filter(None, ended), default=None)
        if last is None:
            return 0.0
        return self._options.back_off(failures) - self._observed.since(last)

    def _pod(self, index: int | None) -> Object:
        template, name = self._spec["template"], self._job["metadata"]["name"]
        base = f"{name}-" if index is None else f"{name}-{index}-"
        pod = pod_of(template, self._job, "batch/v1", "Job", base=base)
        pod["metadata"]["finalizers"] = [TRACKING]
        if index is None:
            return pod
        for part in ("annotations", "labels"):
            pod["metadata"].setdefault(part, {})[_INDEX] = str(index)
        pod["spec"].setdefault("hostname", f"{name}-{index}")
        variable = {
            "name": "JOB_COMPLETION_INDEX",
            "valueFrom": {
                "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{_INDEX}']"}
            },
        }
        for group in ("initContainers", "containers"):
            for container in pod["spec"].get(group) or ():
                env = container.setdefault("env", [])
                if not any(each.get("name") == variable["name"] for each in env):
                    env.append(variable)
        return pod


def _phase(pod: View) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _backwards(stamp: str) -> tuple[int, ...]:
    return tuple(-ord(character) for character in stamp)


def _ended_at(pod: View) -> str | None:
    stamps: list[str | None] = [
        ((each.get("state") or {}).get("terminated") or {}).get("finishedAt")
        for each in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    return max(filter(None, stamps), default=pod["metadata"].get("creationTimestamp"))


def _index_of(pod: View) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(_INDEX, "")
    return int(text) if text.isascii() and text.isdigit() else None
