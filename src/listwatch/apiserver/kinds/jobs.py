"""Job and CronJob."""

from collections.abc import Mapping
from datetime import datetime

from listwatch.apiserver.kinds.cells import NONE, age, at, count, duration, field, selector, text
from listwatch.apiserver.kinds.kind import Kind, Object, View, paths, status_of
from listwatch.apiserver.kinds.pod_templates import check_pod_spec, default_template, workload_cells
from listwatch.apiserver.kinds.rules import enumeration, not_negative
from listwatch.apiserver.kinds.schedule import schedule_problem
from listwatch.schema.causes import Cause, invalid_value, required


def _default_job_spec(spec: Object) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = spec["parallelism"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault(
        "podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
    )
    default_template(spec)


def _default_job(obj: Object) -> None:
    _default_job_spec(obj.setdefault("spec", {}))
    status_of(obj)


def _default_cron_job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    template = spec.setdefault("jobTemplate", {})
    template.setdefault("metadata", {})
    job = template.setdefault("spec", {})
    default_template(job)
    status_of(obj)


def _check_job_spec(spec: View, path: str) -> list[Cause]:
    """Return the rules that a job's spec breaks, under a path such as `spec.jobTemplate.spec`."""
    causes = not_negative(
        spec, path, "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"
    )
    pod = (spec.get("template") or {}).get("spec") or {}
    causes += check_pod_spec(pod, f"{path}.template.spec")
    if pod.get("restartPolicy") == "Always":
        where = f"{path}.template.spec.restartPolicy"
        causes.append(required(where, 'valid values: "OnFailure", "Never"'))
    return causes


def _check_job(obj: View) -> list[Cause]:
    return _check_job_spec(obj.get("spec") or {}, "spec")


def _check_job_update(new: View, old: View) -> list[Cause]:
    after, before = new.get("spec") or {}, old.get("spec") or {}
    return [
        invalid_value(f"spec.{key}", after.get(key), "field is immutable")
        for key in ("completions", "selector", "template", "completionMode")
        if after.get(key) != before.get(key)
    ]


_CRON_JOB_NAME_LIMIT = 52


def _check_cron_job(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    schedule = spec.get("schedule", "")
    if not schedule:
        causes.append(required("spec.schedule"))
    elif "TZ" in schedule:
        why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        causes.append(invalid_value("spec.schedule", schedule, why))
    else:
        problem = schedule_problem(schedule)
        if problem is not None:
            causes.append(invalid_value("spec.schedule", schedule, problem))
    causes += not_negative(
        spec,
        "spec",
        "startingDeadlineSeconds",
        "successfulJobsHistoryLimit",
        "failedJobsHistoryLimit",
    )
    causes += enumeration(spec, "spec", "concurrencyPolicy", "batch.v1.CronJobSpec")
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    causes += _check_job_spec(job, "spec.jobTemplate.spec")
    name = obj["metadata"].get("name") or ""
    if len(name) > _CRON_JOB_NAME_LIMIT:
        causes.append(invalid_value("metadata.name", name, "must be no more than 52 characters"))
    return causes


def _job_status(job: View, _: float) -> str:
    for kind, word in (("Complete", "Complete"), ("Failed", "Failed")):
        if any(
            each.get("type") == kind and each.get("status") == "True"
            for each in at(job, "status.conditions") or ()
        ):
            return word
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return "Suspended" if at(job, "spec.suspend") else "Running"


def _job_completions(job: View, _: float) -> str:
    done, wanted = at(job, "status.succeeded") or 0, at(job, "spec.completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallel = at(job, "spec.parallelism") or 0
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _job_duration(job: View, now: float) -> str:
    begun, ended = at(job, "status.startTime"), at(job, "status.completionTime")
    if not begun:
        return ""
    if not ended:
        return age(begun, now)
    then = datetime.fromisoformat(ended).timestamp()
    return duration(then - datetime.fromisoformat(begun).timestamp())


def _last_schedule(job: View, now: float) -> str:
    last = at(job, "status.lastScheduleTime")
    return age(last, now) if last else NONE


def _admit_job(obj: Object) -> None:
    spec = obj["spec"]
    if not spec.get("manualSelector"):
        _select_own_pods(obj)
    labels = spec["template"]["metadata"].get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(labels)


def _select_own_pods(obj: Object) -> None:
    spec = obj["spec"]
    uid, name = obj["metadata"]["uid"], obj["metadata"].get("name", "")
    labels = {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    template = spec["template"]["metadata"]
    template["labels"] = {**(template.get("labels") or {}), **labels}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}


_DELETION_WARNING = (
    "child pods are preserved by default when jobs are deleted; set "
    "propagationPolicy=Background to remove them or set propagationPolicy=Orphan to "
    "suppress this warning"
)

#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "batch/jobs": Kind(
        deletion_warning=_DELETION_WARNING,
        generation=True,
        orphan_by_default=True,
        returns_deleted=False,
        fields=paths("status.successful", successful="0"),
        defaults=_default_job,
        admit=_admit_job,
        rule=_check_job,
        update_rule=_check_job_update,
        cells={
            **workload_cells(),
            "Status": _job_status,
            "Completions": _job_completions,
            "Duration": _job_duration,
        },
    ),
    "batch/cronjobs": Kind(
        generation=True,
        defaults=_default_cron_job,
        rule=_check_cron_job,
        cells={
            **workload_cells("spec.jobTemplate.spec.template.spec"),
            "Schedule": field("spec.schedule"),
            "Timezone": text("spec.timeZone"),
            "Suspend": lambda obj, _: "True" if at(obj, "spec.suspend") else "False",
            "Active": count("status.active"),
            "Last Schedule": _last_schedule,
            "Selector": selector("spec.jobTemplate.spec.selector"),
        },
    ),
}
