"""The dashboard and the alerts name metrics that are exported, in PromQL that parses."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from listwatch.client.request_statistics import RequestStatistics
from listwatch.observe.dispatch import DispatchStatistics
from listwatch.observe.execute import Outcome
from listwatch.observe.metrics import ObserveMetrics
from listwatch.runtime.candidate import LeaderElectionStatistics
from listwatch.runtime.metrics import Measured, make_registry
from runtime.reconciler_world import World

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
_SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "unknown": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "summary": ("", "_count", "_sum"),
}


def expressions() -> Iterator[Any]:
    rules = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield pytest.param(rule["expr"], id=rule["alert"])
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "5m").replace("$job", "a")
            yield pytest.param(text, id=f"{panel['title']} {target['refId']}")


def names_of(node: Any) -> set[str]:
    """Return the metrics that a parsed expression selects."""
    if isinstance(node, promql_parser.VectorSelector):
        return {node.name or ""}
    found: set[str] = set()
    for attribute in ("lhs", "rhs", "expr", "param", "vector_selector"):
        child = getattr(node, attribute, None)
        found |= names_of(child) if child is not None else set()
    for child in getattr(node, "args", None) or ():
        found |= names_of(child)
    return found


@pytest.fixture(scope="module", name="exported")
def exported_names() -> set[str]:
    world = World()
    world.reconciler.for_("widget")
    election = LeaderElectionStatistics(
        name="lease",
        identity="a",
        is_leader=True,
        holder="a",
        transitions=0,
        renewals=0,
        slow_renewals=0,
        failures=0,
        last_error="",
        seconds_since_renewal=None,
    )
    registry = make_registry(
        Measured(
            reconcilers=lambda: [world.reconciler.statistics()],
            caches=lambda: world.caches,
            election=lambda: election,
            events=lambda: None,
            requests=lambda: RequestStatistics("h"),
        )
    )
    observe = ObserveMetrics()
    observe.watch(lambda: DispatchStatistics(0, 0, 0, 0))
    observe.ran("Added", Outcome(0, seconds=1.0))
    families = [*registry.collect(), *text_string_to_metric_families(observe.text())]
    return {
        f"{family.name}{suffix}" for family in families for suffix in _SUFFIXES[family.type]
    } | {"observe_counts"}


@pytest.mark.parametrize("expression", list(expressions()))
def test_every_expression_parses_and_selects_exported_metrics(
    expression: str, exported: set[str]
) -> None:
    names = names_of(promql_parser.parse(expression))
    assert names
    assert names - exported == set()


def test_alerts_have_a_severity_and_a_summary_with_their_labels() -> None:
    rules = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"][0]["rules"]
    for rule in rules:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        kept = set(re.findall(r"by \(([^)]*)\)", rule["expr"])[-1].split(", "))
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert named <= kept, rule["alert"]


def test_a_metric_that_is_not_exported_is_found(exported: set[str]) -> None:
    tree = promql_parser.parse("histogram_quantile(0.9, sum by (le) (rate(made_up_bucket[5m])))")
    assert names_of(tree) - exported == {"made_up_bucket"}
