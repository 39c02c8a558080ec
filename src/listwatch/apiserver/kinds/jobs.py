"""Job and CronJob."""

import re
from collections.abc import Mapping
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from listwatch.apiserver.kinds.cells import NONE, age, at, count, duration, field, selector, text
from listwatch.apiserver.kinds.job_policy_rules import check_job_change, check_policies
from listwatch.apiserver.kinds.kind import Kind, Object, View, paths, status_of
from listwatch.apiserver.kinds.pod_rules import check_pod_template, missed, selects
from listwatch.apiserver.kinds.pod_templates import default_template, workload_cells
from listwatch.apiserver.kinds.rules import label, label_selector, not_negative, subdomain
from listwatch.apiserver.kinds.schedule import schedule_problem
from listwatch.schema.causes import Cause, invalid_value, not_supported, required

#: The limit of all failures if each index has one.
_NO_LIMIT = 2**31 - 1


def _default_job_spec(spec: Object) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = spec["parallelism"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6 if "backoffLimitPerIndex" not in spec else _NO_LIMIT)
    spec.setdefault("completionMode", "NonIndexed")
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for condition in rule.get("onPodConditions") or ():
            condition.setdefault("status", "True")
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


_INDEXED_ONLY = ("backoffLimitPerIndex", "maxFailedIndexes")


def _check_job_spec(spec: View, path: str) -> list[Cause]:
    """Return the rules that a job's spec violates, under a path such as `spec.jobTemplate.spec`."""
    causes = not_negative(
        spec,
        path,
        "parallelism",
        "completions",
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    )
    if spec.get("completionMode", "NonIndexed") == "NonIndexed":
        causes += [
            invalid_value(f"{path}.{key}", spec[key], "requires indexed completion mode")
            for key in _INDEXED_ONLY
            if spec.get(key) is not None
        ]
    causes += check_policies(spec, path)
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        why = "when maxFailedIndexes is specified"
        causes.append(required(f"{path}.backoffLimitPerIndex", why))
    causes += _check_manager(spec.get("managedBy"), f"{path}.managedBy")
    by_policy = spec.get("podFailurePolicy") is not None
    replaced = spec.get("podReplacementPolicy")
    known = ["Failed"] if by_policy else ["Failed", "TerminatingOrFailed"]
    if replaced is not None and replaced not in known:
        causes.append(not_supported(f"{path}.podReplacementPolicy", replaced, known))
    causes += check_pod_template(spec.get("template") or {}, f"{path}.template")
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy")
    where = f"{path}.template.spec.restartPolicy"
    if policy in {None, "", "Always"}:
        causes.append(required(where, 'valid values: "OnFailure", "Never"'))
    elif policy not in _RESTARTS:
        causes.append(not_supported(where, policy, _RESTARTS))
    elif by_policy and policy != "Never":
        why = 'only "Never" is supported when podFailurePolicy is specified'
        causes.append(invalid_value(where, policy, why))
    return causes


_RESTARTS = ("OnFailure", "Never")


def _check_manager(name: str | None, path: str) -> list[Cause]:
    if name is None:
        return []
    host, _, rest = name.partition("/")
    if not host or not rest:
        why = 'must be a domain-prefixed path (such as "acme.io/foo")'
        return [invalid_value(path, name, why)]
    return subdomain(path, host)


def _check_own_spec(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = _check_job_spec(spec, "spec")
    selector = spec.get("selector")
    if selector is None:
        causes.append(required("spec.selector"))
    causes += label_selector(selector, "spec.selector")
    labels = _template_labels(spec)
    if selects(selector, labels) is False:
        causes.append(missed(labels, "spec.template"))
    return causes


def _template_labels(spec: View) -> Mapping[str, str] | None:
    return ((spec.get("template") or {}).get("metadata") or {}).get("labels")


def _check_job(obj: View) -> list[Cause]:
    return _check_generated(obj) + _check_own_spec(obj)


def _check_new_job(obj: View) -> list[Cause]:
    """Return why the pods of an indexed job can't be named after it."""
    spec, name = obj.get("spec") or {}, obj["metadata"].get("name", "")
    last = (spec.get("completions") or 0) - 1
    if spec.get("completionMode") != "Indexed" or last < 0 or not label("", f"{name}-{last}"):
        return []
    why = f"will not able to create pod with invalid DNS label: {name}-{last}"
    return [invalid_value("metadata.name", name, why)]


def _check_generated(obj: View) -> list[Cause]:
    """Return the violations of a generated selector (`ValidateGeneratedSelector`)."""
    spec = obj.get("spec") or {}
    selector = spec.get("selector")
    if spec.get("manualSelector") or selector is None:
        return []
    own = _own_labels(obj)
    labels = _template_labels(spec) or {}
    causes: list[Cause] = []
    for key, value in own.items():
        where = f"spec.template.metadata.labels[{key}]"
        if key not in labels:
            causes.append(required(where, f"must be '{value}'"))
        elif labels[key] != value:
            causes.append(invalid_value(where, labels[key], f"must be '{value}'"))
    if selects(selector, own) is False:
        causes.append(invalid_value("spec.selector", selector, "`selector` not auto-generated"))
    return causes


def _check_job_update(new: View, old: View) -> list[Cause]:
    after, before = new.get("spec") or {}, old.get("spec") or {}
    waits = bool(before.get("suspend")) and not (old.get("status") or {}).get("startTime")
    # the server checks the spec once with the job and once with its change
    return _check_own_spec(new) + check_job_change(after, before, waits=waits)


_CRON_JOB_NAME_LIMIT = 52


def _check_cron_job(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    schedule = spec.get("schedule", "")
    if not schedule:
        causes.append(required("spec.schedule"))
    else:
        zone, _, times = schedule.partition(" ")
        named = zone.startswith(("TZ=", "CRON_TZ="))
        problem = schedule_problem(times if named else schedule)
        if problem is not None:
            causes.append(invalid_value("spec.schedule", schedule, problem))
        if "TZ" in schedule:
            why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
            causes.append(invalid_value("spec.schedule", schedule, why))
    causes += _check_zone(spec.get("timeZone"))
    causes += not_negative(
        spec,
        "spec",
        "startingDeadlineSeconds",
        "successfulJobsHistoryLimit",
        "failedJobsHistoryLimit",
    )
    job, where = (spec.get("jobTemplate") or {}).get("spec") or {}, "spec.jobTemplate.spec"
    causes += _check_job_spec(job, where)
    if job.get("selector") is not None:
        why = "`selector` will be auto-generated"
        causes.append(invalid_value(f"{where}.selector", job["selector"], why))
    if job.get("manualSelector"):
        causes.append(not_supported(f"{where}.manualSelector", True, ("nil", "false")))
    return causes


_ZONE_PART = re.compile(r"[A-Za-z._0-9+][A-Za-z.\-_0-9+]{0,13}")


def _check_zone(zone: str | None) -> list[Cause]:
    where = "spec.timeZone"
    if zone is None:
        return []
    if not zone:
        return [invalid_value(where, zone, "timeZone must be nil or non-empty string")]
    parts = zone.split("/")
    if any(part in {".", ".."} or not _ZONE_PART.fullmatch(part) for part in parts):
        return [invalid_value(where, zone, f"unknown time zone {zone}")]
    causes = []
    if zone.lower() == "local":
        why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        causes.append(invalid_value(where, zone, why))
    # a machine without a time zone database can't decide which zones exist
    if zone != "Local" and not _is_time_zone(zone) and _is_time_zone("Etc/UTC"):
        causes.append(invalid_value(where, zone, f"unknown time zone {zone}"))
    return causes


def _is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _check_new_cron_job(obj: View) -> list[Cause]:
    name = obj["metadata"].get("name") or ""
    if len(name) <= _CRON_JOB_NAME_LIMIT:
        return []
    return [invalid_value("metadata.name", name, "must be no more than 52 characters")]


#: The conditions that decide a job's status; the first true one counts.
_STATES = (
    ("Complete", "Complete"),
    ("Failed", "Failed"),
    ("Suspended", "Suspended"),
)


def _job_status(job: View, _: float) -> str:
    for kind, word in _STATES:
        if any(
            each.get("type") == kind and each.get("status") == "True"
            for each in at(job, "status.conditions") or ()
        ):
            return word
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return "Running"


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


def _own_labels(obj: View) -> dict[str, str]:
    uid, name = obj["metadata"].get("uid", ""), obj["metadata"].get("name", "")
    return {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }


def _select_own_pods(obj: Object) -> None:
    """Complete labels and selector; a client's values stay, and may be refused."""
    spec, own = obj["spec"], _own_labels(obj)
    template = spec["template"]["metadata"]
    template["labels"] = {**own, **(template.get("labels") or {})}
    key = "batch.kubernetes.io/controller-uid"
    selector = spec.get("selector") or {}
    labels = {key: own[key], **(selector.get("matchLabels") or {})}
    spec["selector"] = {**selector, "matchLabels": labels}


_DELETION_WARNING = (
    "child pods are preserved by default when jobs are deleted; set "
    "propagationPolicy=Background to remove them or set propagationPolicy=Orphan to "
    "suppress this warning"
)

#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "batch/jobs": Kind(
        checks_whole=True,
        deletion_warning=_DELETION_WARNING,
        generation=True,
        orphan_by_default=True,
        returns_deleted=False,
        fields=paths("status.successful", successful="0"),
        defaults=_default_job,
        admit=_admit_job,
        rule=_check_job,
        new_rule=_check_new_job,
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
        new_rule=_check_new_cron_job,
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
