"""The guards see added cost."""

import json

import pytest

from guards.counting import ELSEWHERE, bytes_kept, calls, compare, stage_of
from listwatch.cache.store import Store
from listwatch.objects import split_key


def test_calls_are_counted_by_the_module_they_run_in() -> None:
    with calls() as counted:
        for _ in range(7):
            split_key("a/b")
        json.dumps({"a": 1}, indent=1)
    assert counted["objects.keys"] == 7
    assert counted[ELSEWHERE] > 0


def test_a_test_is_no_stage() -> None:
    assert stage_of(__file__) is None
    assert stage_of("<string>") is None


def test_bytes_that_are_kept_are_counted_and_those_let_go_are_not() -> None:
    with bytes_kept() as kept:
        store = Store()
    assert kept["cache.store"] > 0
    del store


def test_a_cost_within_the_allowance_passes() -> None:
    compare("it", {"a": 10.0}, {"a": 10.9})


def test_a_cost_above_it_names_the_stages_that_grew_the_most_first() -> None:
    with pytest.raises(AssertionError, match=r"it costs 17.00, budget 10.00; what grew: b 0.00"):
        compare("it", {"a": 5.0, "c": 5.0}, {"a": 6.0, "b": 7.0, "c": 4.0})
