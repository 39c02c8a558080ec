"""Validation of Jobs and CronJobs: policies, names, time zones, updates and statuses."""

from typing import Any

import pytest

from kind_causes import of_change, of_new
from listwatch.apiserver.kinds.job_policy_rules import check_job_status, count_indexes

POD: dict[str, Any] = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {
        "restartPolicy": "Never",
        "dnsPolicy": "ClusterFirst",
        "terminationGracePeriodSeconds": 30,
        "containers": [
            {
                "name": "c",
                "image": "i",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always",
            }
        ],
    },
}


def job(**spec: Any) -> dict[str, Any]:
    whole = {
        "selector": {"matchLabels": {"a": "b"}},
        "manualSelector": True,
        "template": POD,
        **spec,
    }
    return {"spec": whole}


def failing(rule: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return job(podFailurePolicy={"rules": [rule]}, **spec)


def succeeding(*rules: dict[str, Any], **spec: Any) -> dict[str, Any]:
    whole = {"completionMode": "Indexed", "completions": 4, "parallelism": 4, **spec}
    return job(successPolicy={"rules": list(rules)}, **whole)


RULE = "spec.podFailurePolicy.rules[0]"
CODES = {"operator": "In", "values": [1, 2]}


@pytest.mark.parametrize(
    ("obj", "broken"),
    [
        (job(), []),
        (failing({"action": "Ignore", "onExitCodes": CODES}), []),
        (failing({"action": "Ignore"}), [RULE]),
        (failing({"onExitCodes": CODES}), [f"{RULE}.action"]),
        (failing({"action": "Retry", "onExitCodes": CODES}), [f"{RULE}.action"]),
        (failing({"action": "FailIndex", "onExitCodes": CODES}), [f"{RULE}.action"]),
        (
            failing({"action": "Count", "onExitCodes": {"operator": "In", "values": [0]}}),
            [f"{RULE}.onExitCodes.values[0]"],
        ),
        (failing({"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [0]}}), []),
        (
            failing({"action": "Count", "onExitCodes": {"operator": "In", "values": [3, 1, 1]}}),
            [f"{RULE}.onExitCodes.values", f"{RULE}.onExitCodes.values[2]"],
        ),
        (
            failing({"action": "Count", "onExitCodes": {**CODES, "containerName": "z"}}),
            [f"{RULE}.onExitCodes.containerName"],
        ),
        (
            failing({"action": "Count", "onPodConditions": [{"type": "A b", "status": "No"}]}),
            [f"{RULE}.onPodConditions[0].status", f"{RULE}.onPodConditions[0].type"],
        ),
        (
            failing(
                {
                    "action": "Count",
                    "onExitCodes": CODES,
                    "onPodConditions": [{"type": "A", "status": "True"}],
                }
            ),
            [RULE],
        ),
        (job(successPolicy={"rules": [{"succeededCount": 1}]}), ["spec.successPolicy"]),
        (succeeding({"succeededCount": 1}), []),
        (succeeding(), ["spec.successPolicy.rules"]),
        (succeeding({}), ["spec.successPolicy.rules[0]"]),
        (succeeding({"succeededCount": 5}), ["spec.successPolicy.rules[0].succeededCount"]),
        (
            succeeding({"succeededIndexes": "0-1", "succeededCount": 3}),
            ["spec.successPolicy.rules[0].succeededCount"],
        ),
        (succeeding({"succeededIndexes": "2,1"}), ["spec.successPolicy.rules[0].succeededIndexes"]),
        (job(completionMode="Indexed"), ["spec.completions"]),
        (
            job(
                completionMode="Indexed",
                completions=2,
                backoffLimitPerIndex=1,
                maxFailedIndexes=3,
            ),
            ["spec.maxFailedIndexes"],
        ),
    ],
)
def test_the_policies_of_a_job_are_checked(obj: dict[str, Any], broken: list[str]) -> None:
    assert of_new("batch/jobs", obj) == broken


@pytest.mark.parametrize(
    ("text", "count", "fine"),
    [
        ("", 0, True),
        ("0", 1, True),
        ("0,2-4", 4, True),
        ("5", 0, False),
        ("1-", 0, False),
        ("3-2", 0, False),
        ("1,1", 0, False),
    ],
)
def test_a_text_of_indexes_names_them_in_order(text: str, count: int, fine: bool) -> None:
    found, problem = count_indexes(text, 5)
    assert (found, not problem) == (count, fine)


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({"parallelism": 3}, []),
        ({"completions": 3}, ["spec.completions"]),
        ({"completionMode": "Indexed"}, ["spec.completionMode", "spec.completions"]),
        ({"selector": {"matchLabels": {"a": "c"}}}, ["spec.selector"]),
        ({"backoffLimitPerIndex": 1}, ["spec.backoffLimitPerIndex"]),
        ({"managedBy": "example.com/x"}, ["spec.managedBy"]),
        ({"template": {**POD, "metadata": {"labels": {"a": "c"}}}}, ["spec.template"]),
    ],
)
def test_most_of_a_job_does_not_change(changed: dict[str, Any], broken: list[str]) -> None:
    found = set(of_change("batch/jobs", job(**changed), job()))
    assert set(broken) <= found
    assert found <= {*broken, "spec.template.metadata.labels", "spec.selector"}


def test_a_suspended_job_that_has_not_begun_may_move_to_other_nodes() -> None:
    moved = {**POD, "spec": {**POD["spec"], "nodeSelector": {"x": "y"}}}
    other = {**POD, "spec": {**POD["spec"], "hostNetwork": True}}
    waiting = job(suspend=True)
    begun = {**waiting, "status": {"startTime": "2026-01-01T00:00:00Z"}}

    assert of_change("batch/jobs", job(suspend=True, template=moved), waiting) == []
    assert of_change("batch/jobs", job(suspend=True, template=moved), begun) == ["spec.template"]
    assert "spec.template.spec" in of_change(
        "batch/jobs", job(suspend=True, template=other), waiting
    )


def condition(*kinds: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": "True"} for kind in kinds]


START, END = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


@pytest.mark.parametrize(
    ("status", "before", "broken"),
    [
        ({"active": 1}, {}, []),
        ({"ready": 2, "active": 1}, {}, ["status.ready"]),
        ({"completionTime": END}, {}, ["status.completionTime"]),
        (
            {
                "conditions": condition("Complete", "SuccessCriteriaMet"),
                "startTime": START,
                "completionTime": END,
            },
            {},
            [],
        ),
        (
            {"conditions": condition("Complete", "SuccessCriteriaMet"), "startTime": START},
            {},
            ["status.completionTime"],
        ),
        ({"conditions": condition("Failed"), "startTime": START}, {}, ["status.conditions"]),
        ({}, {"conditions": condition("FailureTarget")}, ["status.conditions"]),
        ({"succeeded": 1}, {"succeeded": 2}, ["status.succeeded"]),
        ({"completedIndexes": "0"}, {}, ["status.completedIndexes"]),
        ({"failedIndexes": "0"}, {}, ["status.failedIndexes"]),
    ],
)
def test_a_status_of_a_job_fits_together(
    status: dict[str, Any], before: dict[str, Any], broken: list[str]
) -> None:
    new, old = {**job(), "status": status}, {**job(), "status": before}
    assert [cause.field for cause in check_job_status(new, old)] == broken


def cron(**spec: Any) -> dict[str, Any]:
    return {
        "spec": {
            "schedule": "* * * * *",
            "concurrencyPolicy": "Allow",
            "jobTemplate": {"spec": {"template": POD}},
            **spec,
        }
    }


@pytest.mark.parametrize(
    ("obj", "broken"),
    [
        (cron(), []),
        (cron(timeZone="Europe/Berlin"), []),
        (cron(timeZone=""), ["spec.timeZone"]),
        (cron(timeZone="../etc"), ["spec.timeZone"]),
        (cron(timeZone="local"), ["spec.timeZone", "spec.timeZone"]),
        (cron(schedule=""), ["spec.schedule"]),
        (cron(schedule="CRON_TZ=UTC * * * * *"), ["spec.schedule"]),
        (
            cron(jobTemplate={"spec": {"template": POD, "selector": {}, "manualSelector": True}}),
            ["spec.jobTemplate.spec.manualSelector", "spec.jobTemplate.spec.selector"],
        ),
        ({**cron(), "metadata": {"name": "x" * 53}}, ["metadata.name"]),
        (cron(startingDeadlineSeconds=-1), ["spec.startingDeadlineSeconds"]),
    ],
)
def test_the_rules_of_a_cron_job(obj: dict[str, Any], broken: list[str]) -> None:
    assert of_new("batch/cronjobs", obj) == broken
