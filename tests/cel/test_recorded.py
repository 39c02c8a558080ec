"""Expressions behave as on a real API server: outcome, error and cost."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cel.recordings import Rule, environment, expressions, rules
from listwatch.cel import (
    CompilationError,
    EvaluationError,
    InstantiationError,
    compile_expression,
    estimate,
    schema_type,
    to_value,
)

EXPRESSIONS = expressions()
FILES = sorted(EXPRESSIONS)
PER_RULE = 10_000_000


def outcome(recorded: dict[str, Any]) -> str:
    value = recorded.get("self")
    is_resource = isinstance(value, dict) and "apiVersion" in value
    kind = schema_type(recorded["schema"], root=is_resource or "metadata" in recorded["rule"])
    if kind is None:
        return "no-compile"
    try:
        program = compile_expression(recorded["rule"], environment(kind))
        if program.type.kind != "bool":
            return "no-compile"
        result, _ = program.evaluate({"self": to_value(value, kind)})
    except CompilationError:
        return "no-compile"
    except EvaluationError:
        return "error"
    return str(result).lower()


# The server had already generated a name, which the recorded object lacks.
MADE_NAMES = {"self.metadata.generateName.startsWith('w-') && self.metadata.name.size() > 2"}


@pytest.mark.parametrize("file", FILES)
def test_an_expression_ends_as_on_a_real_server(file: str) -> None:
    different = [
        (one["rule"], one.get("self"), one["outcome"], found)
        for one in EXPRESSIONS[file]
        if (found := outcome(one)) != one["outcome"] and one["rule"] not in MADE_NAMES
    ]
    assert different == []


def refusal(rule: Rule) -> str | None:
    try:
        compile_expression(rule.text, environment(rule.kind, optional_old=rule.optional_old))
    except CompilationError as error:
        return f"compilation failed: {error}"
    except InstantiationError as error:
        return str(error)
    return None


def first_line(text: str) -> str:
    return re.sub(r"selfType\d*|\$\{[^}]*\}", "selfType", text.replace("selfType<int>", "selfType"))


@pytest.mark.parametrize("file", FILES)
def test_what_does_not_compile_is_refused_with_the_servers_words_and_place(file: str) -> None:
    different = []
    for rule in rules(file):
        recorded = [text for text in rule.refusals if text.startswith("compilation failed")]
        if any("Syntax error" in text or "unsupported syntax" in text for text in recorded):
            # The messages are a parser generator's; the refusal itself is tested above.
            continue
        if not rule.text.strip() or "authorizer" in rule.text:
            continue
        found = refusal(rule)
        found_text = [found] if found is not None and found.startswith("compilation") else []
        if [*map(first_line, found_text)] != [*map(first_line, recorded)]:
            different.append((rule.text, recorded, found))
    assert different == []


@pytest.mark.parametrize("file", FILES)
def test_an_estimate_above_the_budget_is_the_servers_estimate(file: str) -> None:
    different = []
    for rule in rules(file):
        exact = re.search(r"by factor of ([\d.]+)x \(", " ".join(rule.refusals))
        if exact is None:
            continue
        program = compile_expression(rule.text, environment(rule.kind))
        factor = f"{estimate(program.root, rule.kind) / PER_RULE:f}"
        if factor != exact[1]:
            different.append((rule.text, exact[1], factor))
    assert different == []


@pytest.mark.parametrize("file", FILES)
def test_a_rule_that_a_server_accepts_is_within_the_budget(file: str) -> None:
    too_dear = []
    for rule in rules(file):
        if rule.refusals or not rule.text.strip():
            continue
        program = compile_expression(
            rule.text, environment(rule.kind, optional_old=rule.optional_old)
        )
        if estimate(program.root, rule.kind) > PER_RULE:
            too_dear.append(rule.text)
    assert too_dear == []
