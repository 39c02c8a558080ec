"""The rules of a job's policies and changes (`pkg/apis/batch/validation`)."""

import itertools
import re
from collections.abc import Container, Mapping
from typing import Any

from listwatch.apiserver.kinds.kind import View
from listwatch.apiserver.kinds.rules import not_negative, qualified_name
from listwatch.schema.causes import (
    Cause,
    duplicate,
    invalid_value,
    not_supported,
    required,
)

_MOST_RULES, _MOST_VALUES = 20, 255
_MOST_PARALLEL, _MANY, _MOST_OF_MANY = 100_000, 100_000, 10_000
_STATES = ("False", "True", "Unknown")
_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_INTERVAL = re.compile(r"(\d+)(?:-(\d+))?")


def _too_many(path: str, count: int, most: int) -> Cause:
    words = f"Too many: {count}: must have at most {most} items"
    return Cause(path, "FieldValueTooMany", words)


def check_policies(spec: View, path: str) -> list[Cause]:
    """Return the violations in a job's policies and completion mode."""
    causes: list[Cause] = []
    if spec.get("completionMode") == "Indexed":
        causes += _check_indexed(spec, path)
    failure, success = spec.get("podFailurePolicy"), spec.get("successPolicy")
    if failure is not None:
        causes += _check_failure(spec, failure, f"{path}.podFailurePolicy.rules")
    if success is not None:
        where = f"{path}.successPolicy"
        causes += (
            _check_success(spec, success, f"{where}.rules")
            if spec.get("completionMode") == "Indexed"
            else [invalid_value(where, success, "requires indexed completion mode")]
        )
    return causes


def _check_indexed(spec: View, path: str) -> list[Cause]:
    wanted, parallel, failed = (
        spec.get(key) for key in ("completions", "parallelism", "maxFailedIndexes")
    )
    causes: list[Cause] = []
    if wanted is None:
        causes.append(required(f"{path}.completions", "when completion mode is Indexed"))
    if parallel is not None and parallel > _MOST_PARALLEL:
        why = f"must be less than or equal to {_MOST_PARALLEL} when completion mode is Indexed"
        causes.append(invalid_value(f"{path}.parallelism", parallel, why))
    where = f"{path}.maxFailedIndexes"
    if wanted is not None and failed is not None and failed > wanted:
        causes.append(invalid_value(where, failed, "must be less than or equal to completions"))
    if failed is not None and failed > _MOST_PARALLEL:
        why = f"must be less than or equal to {_MOST_PARALLEL}"
        causes.append(invalid_value(where, failed, why))
    if wanted is None or wanted <= _MANY or spec.get("backoffLimitPerIndex") is None:
        return causes
    if failed is None:
        why = f"must be specified when completions is above {_MANY}"
        causes.append(required(where, why))
    for key, value in (("parallelism", parallel), ("maxFailedIndexes", failed)):
        if value is not None and value > _MOST_OF_MANY:
            why = (
                f"must be less than or equal to {_MOST_OF_MANY} when completions are above {_MANY}"
            )
            causes.append(invalid_value(f"{path}.{key}", value, why))
    return causes


def _check_failure(spec: View, policy: View, path: str) -> list[Cause]:
    rules = policy.get("rules") or ()
    causes = [_too_many(path, len(rules), _MOST_RULES)] if len(rules) > _MOST_RULES else []
    pod = (spec.get("template") or {}).get("spec") or {}
    names = {
        each.get("name")
        for group in ("containers", "initContainers")
        for each in pod.get(group) or ()
    }
    for index, rule in enumerate(rules):
        here, action = f"{path}[{index}]", rule.get("action", "")
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions") or ()
        if not action:
            causes.append(required(f"{here}.action", "valid values: ..."))
        elif action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            why = "requires the backoffLimitPerIndex to be set"
            causes.append(invalid_value(f"{here}.action", action, why))
        elif action not in _ACTIONS:
            causes.append(not_supported(f"{here}.action", action, _ACTIONS))
        if codes is not None:
            causes += _check_codes(codes, f"{here}.onExitCodes", names)
        for number, pattern in enumerate(conditions):
            where, state = f"{here}.onPodConditions[{number}]", pattern.get("status", "")
            causes += qualified_name(f"{where}.type", pattern.get("type", ""))
            if not state:
                causes.append(required(f"{where}.status", "valid values: ..."))
            elif state not in _STATES:
                causes.append(not_supported(f"{where}.status", state, _STATES))
        if codes is not None and conditions:
            why = "specifying both OnExitCodes and OnPodConditions is not supported"
            causes.append(Cause(here, "FieldValueInvalid", f"Invalid value: {why}"))
        elif codes is None and not conditions:
            why = "specifying one of OnExitCodes and OnPodConditions is required"
            causes.append(Cause(here, "FieldValueInvalid", f"Invalid value: {why}"))
    return causes


def _check_codes(codes: View, path: str, names: Container[Any]) -> list[Cause]:
    operator, values, name = codes.get("operator", ""), codes.get("values") or [], "containerName"
    causes: list[Cause] = []
    if not operator:
        causes.append(required(f"{path}.operator", "valid values: ..."))
    elif operator not in {"In", "NotIn"}:
        causes.append(not_supported(f"{path}.operator", operator, ("In", "NotIn")))
    if codes.get(name) is not None and codes[name] not in names:
        why = "must be one of the container or initContainer names in the pod template"
        causes.append(invalid_value(f"{path}.{name}", codes[name], why))
    where = f"{path}.values"
    if not values:
        causes.append(invalid_value(where, None, "at least one value is required"))
    elif len(values) > _MOST_VALUES:
        causes.append(_too_many(where, len(values), _MOST_VALUES))
    for index, value in enumerate(values):
        if operator == "In" and value == 0:
            why = "must not be 0 for the In operator"
            causes.append(invalid_value(f"{where}[{index}]", value, why))
        if value in values[:index]:
            causes.append(duplicate(f"{where}[{index}]", value))
    if any(second < first for first, second in itertools.pairwise(values)):
        causes.append(invalid_value(where, values, "must be ordered"))
    return causes


def _check_success(spec: View, policy: View, path: str) -> list[Cause]:
    rules, whole = policy.get("rules") or (), spec.get("completions") or 0
    causes: list[Cause] = []
    if not rules:
        why = "at least one rules must be specified when the successPolicy is specified"
        causes.append(required(path, why))
    if len(rules) > _MOST_RULES:
        causes.append(_too_many(path, len(rules), _MOST_RULES))
    for index, rule in enumerate(rules):
        here, count, named = f"{path}[{index}]", rule.get("succeededCount"), None
        indexes = rule.get("succeededIndexes")
        if count is None and indexes is None:
            why = "at least one of succeededCount or succeededIndexes must be specified"
            causes.append(required(here, why))
        if indexes is not None:
            named, problem = count_indexes(indexes, whole)
            if problem:
                why = f"error parsing succeededIndexes: {problem}"
                causes.append(invalid_value(f"{here}.succeededIndexes", indexes, why))
        if count is None:
            continue
        where = f"{here}.succeededCount"
        causes += not_negative(rule, here, "succeededCount")
        for most in (whole, named):
            if most is not None and count > most:
                why = f"must be less than or equal to {most}"
                causes.append(invalid_value(where, count, why))
    return causes


def count_indexes(text: str, whole: int) -> tuple[int, str]:
    """Return the number of indexes in a text such as `1,3-5`, and its problem or ""."""
    total, last = 0, -1
    for part in text.split(",") if text else ():
        found = _INTERVAL.fullmatch(part)
        if found is None:
            return 0, f'the fragment "{part}" violates the requirement of numbers or intervals'
        first = int(found[1])
        final = int(found[2]) if found[2] else first
        if final >= whole:
            return 0, f"too large index: {found[2] or found[1]}"
        if final < first or first <= last:
            return 0, f"non-increasing order, previous: {last}, current: {first}"
        total, last = total + final - first + 1, final
    return total, ""


def _true(job: View, kind: str) -> bool:
    return any(
        each.get("type") == kind and each.get("status") == "True"
        for each in (job.get("status") or {}).get("conditions") or ()
    )


def check_job_status(new: View, old: View) -> list[Cause]:
    """Return the violations in a job's changed status, except those of its counts."""
    spec, status, before = new.get("spec") or {}, new.get("status") or {}, old.get("status") or {}
    done, failed = _true(new, "Complete"), _true(new, "Failed")
    failing, enough = _true(new, "FailureTarget"), _true(new, "SuccessCriteriaMet")
    begun, ended = status.get("startTime"), status.get("completionTime")
    where = "status.conditions"
    found: list[tuple[bool, Cause]] = [
        (done and failed, _of(where, "cannot set Complete=True and Failed=true conditions")),
        (
            done and failing,
            _of(where, "cannot set Complete=True and FailureTarget=true conditions"),
        ),
        (
            bool(ended) and not done,
            _of("status.completionTime", "cannot set completionTime when not Complete"),
        ),
        (done and not ended, required("status.completionTime", "is required for Complete jobs")),
        (
            bool(begun and ended) and str(ended) < str(begun),
            _of("status.completionTime", "completionTime cannot be set before startTime"),
        ),
        (failed and not failing, _of(where, "cannot set Failed=True without FailureTarget=true")),
        (
            done and not enough,
            _of(where, "cannot set Complete=True without SuccessCriteriaMet=true"),
        ),
        (
            (done or failed) and (status.get("active") or 0) > 0,
            _of("status.active", "active>0 is invalid for finished job"),
        ),
        (
            (done or failed) and not begun,
            required("status.startTime", "startTime is required for finished job"),
        ),
        (
            (done or failed) and (status.get("terminating") or 0) > 0,
            _of("status.terminating", "terminating>0 is invalid for finished job"),
        ),
        (
            (status.get("ready") or 0) > (status.get("active") or 0),
            _of("status.ready", "cannot set more ready pods than active"),
        ),
        (
            bool(status.get("completedIndexes")) and spec.get("completionMode") != "Indexed",
            _of("status.completedIndexes", "cannot set non-empty completedIndexes"),
        ),
        (
            status.get("failedIndexes") is not None and spec.get("backoffLimitPerIndex") is None,
            _of("status.failedIndexes", "cannot set non-null failedIndexes"),
        ),
        (enough and failed, _of(where, "cannot set SuccessCriteriaMet=True and Failed=true")),
        (
            enough and failing,
            _of(where, "cannot set SuccessCriteriaMet=True and FailureTarget=true"),
        ),
    ]
    found += [
        (_true(old, kind) and not _true(new, kind), _of(where, f"cannot disable the {kind}=True"))
        for kind in ("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet")
    ]
    found += [
        (
            (status.get(key) or 0) < (before.get(key) or 0),
            _of(f"status.{key}", f"cannot decrease the {key} counter"),
        )
        for key in ("failed", "succeeded")
    ]
    moved = before.get("startTime") not in {None, begun} and not spec.get("suspend")
    found.append((moved, required("status.startTime", "startTime cannot be removed")))
    return [cause for holds, cause in found if holds]


def _of(path: str, why: str) -> Cause:
    return Cause(path, "FieldValueInvalid", f"Invalid value: {why}")


#: The scheduling fields of the template that may change while a job waits.
_DIRECTIVES = ("nodeSelector", "tolerations", "schedulingGates")


def check_job_change(after: View, before: View, *, waits: bool) -> list[Cause]:
    """Return the changes of immutable fields in a job's spec.

    Args:
        after: the new spec.
        before: the previous spec.
        waits: the job is suspended and none of its pods has started.
    """
    causes: list[Cause] = []
    wanted, parallel = after.get("completions"), after.get("parallelism")
    if wanted != before.get("completions"):
        if after.get("completionMode") != "Indexed":
            causes.append(invalid_value("spec.completions", wanted, _IMMUTABLE))
        elif wanted is not None and wanted != parallel:
            why = "can only be modified in tandem with spec.parallelism"
            causes.append(invalid_value("spec.completions", wanted, why))
    if after.get("selector") != before.get("selector"):
        causes.append(invalid_value("spec.selector", after.get("selector"), _IMMUTABLE))
    new, old = after.get("template") or {}, before.get("template") or {}
    if waits and _fixed(new) != _fixed(old):
        causes.append(invalid_value("spec.template.spec", new.get("spec"), _IMMUTABLE))
    elif not waits and new != old:
        causes.append(invalid_value("spec.template", new, _IMMUTABLE))
    return causes + [
        invalid_value(f"spec.{key}", after.get(key), _IMMUTABLE)
        for key in (
            "completionMode",
            "podFailurePolicy",
            "backoffLimitPerIndex",
            "managedBy",
            "successPolicy",
        )
        if after.get(key) != before.get(key)
    ]


_IMMUTABLE = "field is immutable"


def _fixed(template: View) -> Mapping[str, Any]:
    spec = template.get("spec") or {}
    fixed = {key: value for key, value in spec.items() if key not in _DIRECTIVES}
    affinity = {
        key: value
        for key, value in (fixed.pop("affinity", None) or {}).items()
        if key != "nodeAffinity"
    }
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [
                {key: value for key, value in each.items() if key != "resources"}
                for each in fixed[group]
            ]
    return {**fixed, "affinity": affinity}
