"""Validation of quotas, limit ranges, namespaces and nodes."""

from typing import Any

import pytest

from kind_causes import of_change, of_new


def scoped(*terms: dict[str, Any], **hard: str) -> dict[str, Any]:
    return {"spec": {"hard": hard, "scopeSelector": {"matchExpressions": list(terms)}}}


TERMS = "spec.scopeSelector.matchExpressions"
CLASS = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}


@pytest.mark.parametrize(
    ("obj", "broken"),
    [
        ({"spec": {"hard": {"pods": "1", "count/widgets.example.com": "2"}}}, []),
        ({"spec": {"hard": {"widgets": "1"}}}, ["spec.hard[widgets]"] * 2),
        ({"spec": {"hard": {"pods": "-1"}}}, ["spec.hard[pods]"]),
        ({"spec": {"hard": {"pods": "1500m"}}}, ["spec.hard[pods]"]),
        ({"spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort"]}}, []),
        ({"spec": {"hard": {"requests.cpu": "1"}, "scopes": ["BestEffort"]}}, ["spec.scopes"]),
        (
            {"spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort", "NotBestEffort"]}},
            ["spec.scopes"],
        ),
        (scoped(CLASS, pods="1"), []),
        (scoped({**CLASS, "values": []}, pods="1"), [f"{TERMS}.values"]),
        (scoped({**CLASS, "operator": "Exists"}, pods="1"), [f"{TERMS}.values"]),
        (scoped({**CLASS, "operator": "Like"}, pods="1"), [f"{TERMS}.operator"]),
        (
            scoped({"scopeName": "Terminating", "operator": "DoesNotExist"}, pods="1"),
            [f"{TERMS}.operator"],
        ),
    ],
)
def test_the_rules_of_a_quota(obj: dict[str, Any], broken: list[str]) -> None:
    assert of_new("resourcequotas", obj) == broken


def test_the_scopes_of_a_quota_do_not_change() -> None:
    def quota(*scopes: str) -> dict[str, Any]:
        return {"spec": {"hard": {"pods": "1"}, "scopes": list(scopes)}}

    assert "spec.scopes" in of_change("resourcequotas", quota("BestEffort"), quota())


HERE = "spec.limits[0]"


@pytest.mark.parametrize(
    ("limit", "broken"),
    [
        ({"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1"}}, []),
        ({"type": "Container", "max": {"cpu": "1"}, "min": {"cpu": "2"}}, [f"{HERE}.min[cpu]"]),
        (
            {"type": "Container", "default": {"cpu": "3"}, "max": {"cpu": "2"}},
            [f"{HERE}.default[cpu]"],
        ),
        ({"type": "Pod", "default": {"cpu": "1"}}, [f"{HERE}.default"]),
        ({"type": "Pod", "max": {"odd": "1"}}, [f"{HERE}.max[odd]"] * 2),
        ({"type": "Widget", "max": {"cpu": "1"}}, [f"{HERE}.type"]),
        ({"type": "example.com/widget", "max": {"example.com/a": "1"}}, []),
        ({"type": "PersistentVolumeClaim"}, [f"{HERE}.limits"]),
        ({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}, []),
        (
            {"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}},
            [f"{HERE}.maxLimitRequestRatio[cpu]"],
        ),
        (
            {
                "type": "Container",
                "max": {"cpu": "2"},
                "min": {"cpu": "1"},
                "maxLimitRequestRatio": {"cpu": "3"},
            },
            [f"{HERE}.maxLimitRequestRatio[cpu]"],
        ),
    ],
)
def test_the_rules_of_a_range_of_limits(limit: dict[str, Any], broken: list[str]) -> None:
    assert of_new("limitranges", {"spec": {"limits": [limit]}}) == broken


@pytest.mark.parametrize(
    ("finalizers", "broken"),
    [
        (["kubernetes", "example.com/hold"], []),
        (["hold"], ["spec.finalizers"]),
        (["a b"], ["spec.finalizers", "spec.finalizers"]),
    ],
)
def test_finalizers_of_a_namespace_are_known_or_have_a_domain(
    finalizers: list[str], broken: list[str]
) -> None:
    assert of_new("namespaces", {"spec": {"finalizers": finalizers}}) == broken


@pytest.mark.parametrize(
    ("spec", "broken"),
    [
        ({"podCIDRs": ["10.0.0.0/24"]}, []),
        ({"podCIDRs": ["10.0.0.0/24", "fd00::/64"]}, []),
        ({"podCIDRs": ["10.0.0.0"]}, ["spec.podCIDRs[0]"]),
        ({"podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}, ["spec.podCIDRs"]),
        ({"taints": [{"key": "a", "effect": "Sometimes"}]}, ["metadata.taints[0].effect"]),
    ],
)
def test_the_rules_of_a_node(spec: dict[str, Any], broken: list[str]) -> None:
    assert of_new("nodes", {"spec": spec}) == broken


@pytest.mark.parametrize(
    ("new", "old", "broken"),
    [
        ({"providerID": "a"}, {}, []),
        ({"providerID": "b"}, {"providerID": "a"}, ["spec.providerID"]),
        ({"podCIDRs": ["10.0.0.0/24"]}, {}, []),
        ({}, {"podCIDRs": ["10.0.0.0/24"]}, ["spec.podCIDRs"]),
        ({"podCIDRs": ["10.1.0.0/24"]}, {"podCIDRs": ["10.0.0.0/24"]}, ["spec.podCIDRs"]),
        ({"externalID": "b"}, {"externalID": "a"}, ["spec.externalID"]),
        ({"unschedulable": True}, {}, []),
    ],
)
def test_what_of_a_node_may_not_change(
    new: dict[str, Any], old: dict[str, Any], broken: list[str]
) -> None:
    assert of_change("nodes", {"spec": new}, {"spec": old}) == broken
