"""Failures are reported in one line each, at a limited rate."""

import logging

import pytest

from listwatch.cache.failures import Failure, LogFailures
from listwatch.clock import FakeClock


def test_a_failure_is_one_line_that_names_what_and_when_again() -> None:
    error = ValueError("two\nlines")
    assert str(Failure(error=error, doing="list", name="pods", delay=2.0)) == (
        "pods: list: two lines; next try in 2.0 s"
    )
    assert str(Failure(error=error, doing="decode", key="ns/a")) == "decode ns/a: two lines"
    assert str(Failure(error=KeyError(), doing="process")) == "process: KeyError"


async def test_failures_of_one_kind_are_logged_at_most_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    log = LogFailures(clock, seconds=10)
    refused = Failure(error=OSError("refused"), doing="watch", name="pods")
    other = Failure(error=OSError("refused"), doing="list", name="pods")
    with caplog.at_level(logging.WARNING, "listwatch"):
        for _ in range(5):
            log(refused)
            log(other)
            await clock.advance(4)
    assert [record.getMessage() for record in caplog.records] == [
        "pods: watch: refused",
        "pods: list: refused",
        "pods: watch: refused (2 more like this since)",
        "pods: list: refused (2 more like this since)",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


async def test_ever_new_kinds_take_no_memory_without_bound() -> None:
    log = LogFailures(FakeClock(), logger=logging.getLogger("nobody.listens"))
    log._logger.disabled = True  # print nothing
    for number in range(5000):
        log(Failure(error=OSError(), doing="list", name=str(number)))
    assert len(log._seen) <= 1000  # a leak shows nowhere else
