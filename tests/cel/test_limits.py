"""No expression or value can block a process, or raise an exception from elsewhere."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.cel import (
    CompilationError,
    CostLimitExceededError,
    Environment,
    EvaluationError,
    InstantiationError,
    compile_expression,
    standard,
    values,
)
from listwatch.cel.standard import add
from listwatch.cel.types import DYN, INT, STRING, list_of
from listwatch.cel.values import Unordered, equal

ANYTHING = Environment({"x": DYN, "n": INT, "s": STRING, "l": list_of(INT)})


def evaluate(text: str, **variables: object) -> Any:
    return compile_expression(text, ANYTHING).evaluate(variables)[0]


def test_a_loop_in_a_loop_ends_when_its_budget_is_spent() -> None:
    program = compile_expression("l.all(a, l.all(b, l.all(c, a + b + c >= 0)))", ANYTHING)
    with pytest.raises(CostLimitExceededError, match="actual cost limit exceeded"):
        program.evaluate({"l": list(range(10_000))})


def test_an_or_does_not_forgive_a_spent_budget() -> None:
    program = compile_expression("l.all(a, l.all(b, a + b >= 0)) || true", ANYTHING)
    with pytest.raises(CostLimitExceededError):
        program.evaluate({"l": list(range(10_000))})


def test_a_text_that_doubles_itself_ends_before_memory_does() -> None:
    program = compile_expression("l.map(i, s).join(s).size() > 0", ANYTHING)
    with pytest.raises(CostLimitExceededError):
        program.evaluate({"l": list(range(100_000)), "s": "x" * 100_000})


def test_a_list_that_doubles_itself_ends_before_memory_does() -> None:
    items = [1] * (1 << 21)
    doubled = evaluate("l + l", l=items)
    assert len(doubled) == 2 * len(items)
    with pytest.raises(CostLimitExceededError):
        evaluate("l + [1]", l=doubled)


def test_large_sets_are_compared_and_added_item_by_item(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def counting(one: object, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(one, other)

    monkeypatch.setattr(standard, "equal", counting)
    monkeypatch.setattr(values, "equal", counting)
    items = [f"{number}" for number in range(3_000)]
    merged = add(Unordered(items), Unordered([*items[1_000:], "more"]))
    assert isinstance(merged, Unordered)
    assert merged.items == [*items, "more"]
    assert equal(Unordered(items), Unordered(items[::-1]))
    assert compared <= 2 * len(items)


@given(
    st.lists(st.sampled_from([0, 1, 1.0, True, False, "1", None, b"1", 2**53, 2**53 + 1])),
    st.lists(st.sampled_from([0, 1, 1.0, True, False, "1", None, b"1", 2**53, 2**53 + 1])),
)
def test_sets_hold_what_a_comparison_with_every_item_finds(
    one: list[object], other: list[object]
) -> None:
    expected = list(one)
    for item in other:
        same = [at for at, each in enumerate(expected) if equal(each, item)]
        if same:
            expected[same[0]] = item
        else:
            expected.append(item)
    merged = add(Unordered(one), other)
    assert isinstance(merged, Unordered)
    assert [(type(each), each) for each in merged] == [(type(each), each) for each in expected]
    assert equal(Unordered(expected), expected[::-1])


@pytest.mark.parametrize("clause", ["%.999999999f", "%.1101e", f"%.{'9' * 5_000}f", "%.²f", "%.٣f"])
def test_a_precision_beyond_all_digits_is_refused(clause: str) -> None:
    with pytest.raises(EvaluationError, match="error while parsing precision"):
        evaluate("s.format([1.5])", s=clause)
    with pytest.raises((CompilationError, InstantiationError), match="parsing precision"):
        evaluate(f"'{clause}'.format([1.5])")


def test_every_digit_of_a_double_can_be_shown() -> None:
    shown = evaluate("'%.1100f'.format([4.9e-324])")
    assert len(shown) == len("0.") + 1_100
    assert shown.rstrip("0").endswith("625")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*a){20}"])
def test_a_hostile_pattern_takes_linear_time(pattern: str) -> None:
    program = compile_expression(f"s.matches('{pattern}')", ANYTHING)
    before = time.process_time()
    program.evaluate({"s": "a" * 3000 + "b"})
    # A backtracking matcher would never finish.
    assert time.process_time() - before < 10


@pytest.mark.parametrize(
    "text",
    ["(" * 500 + "1" + ")" * 500, "[" * 300 + "]" * 300, "-" * 400 + "x", "x" + ".a" * 300],
)
def test_deep_nesting_is_refused_or_compiled_and_overflows_no_stack(text: str) -> None:
    try:
        compile_expression(text, ANYTHING)
    except CompilationError as error:
        assert "recursion limit" in str(error)  # noqa: PT017 - either end is right


def test_hundreds_of_alternatives_are_no_deep_nesting() -> None:
    assert evaluate(" || ".join(f"n == {i}" for i in range(2000)), n=1999) is True


def test_a_text_longer_than_the_limit_is_refused_without_being_read() -> None:
    with pytest.raises(CompilationError, match="expression code point size exceeds limit"):
        compile_expression("1 + " * 30_000 + "1", ANYTHING)


WORDS = st.sampled_from(
    [
        *"()[]{}.,:?!-+*/%<>=&|'\" xnsl1",
        *["==", "&&", "||", "in", "2.5", "'a'", "size", "all", "map", "has", "true", "null"],
        *["matches", "format", "duration", "int"],
    ]
)


@given(st.lists(WORDS, max_size=25).map("".join))
def test_any_text_compiles_or_is_refused_and_then_evaluates_or_fails_by_name(text: str) -> None:
    try:
        program = compile_expression(text, ANYTHING)
        program.evaluate({"x": {"a": [1, "b"]}, "n": 3, "s": "abc", "l": [1, 2]})
    except (CompilationError, InstantiationError, EvaluationError) as error:
        assert str(error)  # noqa: PT017 - both ends are right


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_integers_calculate_as_in_go_or_overflow(a: int, b: int) -> None:
    environment = Environment({"a": INT, "b": INT})

    def result(text: str) -> object:
        try:
            return compile_expression(text, environment).evaluate({"a": a, "b": b})[0]
        except EvaluationError as error:
            return str(error)

    def expected(exact: int) -> object:
        return exact if -(2**63) <= exact < 2**63 else "integer overflow"

    assert result("a + b") == expected(a + b)
    assert result("a - b") == expected(a - b)
    assert result("a * b") == expected(a * b)
    if b == 0:
        assert result("a / b") == "division by zero"
    else:
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        assert result("a / b") == expected(quotient)
        if not (b == -1 and a == -(2**63)):
            assert result("a % b") == a - quotient * b


VALUES = st.recursive(
    st.integers(-5, 5) | st.text(max_size=3) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)


@given(VALUES)
def test_every_value_equals_itself_and_no_other(value: object) -> None:
    assert evaluate("x == x", x=value) is True
    assert evaluate("x == [x]", x=value) is False
