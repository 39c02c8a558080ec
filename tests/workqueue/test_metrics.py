import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from listwatch.clock import FakeClock
from listwatch.workqueue.metrics import (
    BOUNDS,
    Histogram,
    WorkQueueStatistics,
    prometheus_collector,
    prometheus_metrics,
)
from listwatch.workqueue.priority_queue import PriorityQueue
from listwatch.workqueue.work_queue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Mapping


def scrape(*queues: WorkQueue[str]) -> dict[tuple[str, str, str], float]:
    """Return every sample by its name and its labels `name` and `le` or `priority`."""
    registry = CollectorRegistry()
    registry.register(prometheus_collector(queues))
    text = generate_latest(registry).decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels: Mapping[str, str] = sample.labels
            other = labels.get("le", labels.get("priority", ""))
            samples[sample.name, labels["name"], other] = sample.value
    return samples


async def test_metrics_have_the_fields_names_and_the_queues_values() -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(name="pods", clock=clock)
    for item in "abcd":
        queue.add(item)
    queue.add("a")
    await clock.advance(2)
    first = await queue.get()
    await clock.advance(0.5)
    await queue.get()
    queue.done(first)
    queue.add_after("later", 60)
    queue.add_rate_limited("e")
    await clock.advance(3)
    samples = scrape(queue)
    assert {key: value for key, value in samples.items() if "_bucket" not in key[0]} == {
        ("workqueue_depth", "pods", ""): 3,  # c, d and e
        ("workqueue_adds_total", "pods", ""): 5,
        ("workqueue_retries_total", "pods", ""): 2,
        ("workqueue_unfinished_work_seconds", "pods", ""): 3,
        ("workqueue_longest_running_processor_seconds", "pods", ""): 3,
        ("workqueue_queue_duration_seconds_count", "pods", ""): 2,
        ("workqueue_queue_duration_seconds_sum", "pods", ""): 4.5,
        ("workqueue_work_duration_seconds_count", "pods", ""): 1,
        ("workqueue_work_duration_seconds_sum", "pods", ""): 0.5,
    }
    buckets = [
        value
        for (name, _, _), value in samples.items()
        if name == "workqueue_queue_duration_seconds_bucket"
    ]
    assert buckets == [0.0] * 9 + [2.0] * 4
    assert samples["workqueue_work_duration_seconds_bucket", "pods", "1.0"] == 1
    assert samples["workqueue_work_duration_seconds_bucket", "pods", "0.1"] == 0


async def test_unfinished_work_adds_up_and_the_longest_stands_alone() -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add("a")
    queue.add("b")
    await queue.get()
    await clock.advance(4)
    await queue.get()
    await clock.advance(1)
    state = queue.statistics()
    assert state.unfinished_work_seconds == 6
    assert state.longest_running_processor_seconds == 5


def test_a_queue_without_a_name_has_no_metrics() -> None:
    assert scrape(WorkQueue()) == {}
    assert [family.samples for family in prometheus_metrics([WorkQueue()])] == [[]] * 7


def test_several_queues_share_the_families() -> None:
    first: WorkQueue[str] = WorkQueue(name="one")
    second: WorkQueue[str] = WorkQueue(name="two")
    second.add("x")
    samples = scrape(first, second)
    assert samples["workqueue_depth", "one", ""] == 0
    assert samples["workqueue_depth", "two", ""] == 1


def test_queues_of_one_name_are_told_apart_by_a_number() -> None:
    queues: list[WorkQueue[str]] = [WorkQueue(name=name) for name in ("a", "a", "a-2", "a", "b")]
    for number, queue in enumerate(queues):
        for item in range(number):
            queue.add(f"{item}")
    registry = CollectorRegistry()
    registry.register(prometheus_collector(queues))
    lines = [
        line
        for line in generate_latest(registry).decode().splitlines()
        if "workqueue_depth{" in line
    ]
    assert lines == [
        'workqueue_depth{name="a",priority=""} 0.0',
        'workqueue_depth{name="a-3",priority=""} 1.0',
        'workqueue_depth{name="a-2",priority=""} 2.0',
        'workqueue_depth{name="a-4",priority=""} 3.0',
        'workqueue_depth{name="b",priority=""} 4.0',
    ]


async def test_depth_counts_what_was_added_again_while_in_process() -> None:
    queue: WorkQueue[str] = WorkQueue(name="q")
    queue.add("a")
    taken = await queue.get()
    assert queue.statistics().depth == 0
    queue.add("a")
    assert (queue.statistics().depth, len(queue)) == (1, 0)
    queue.done(taken)
    assert (queue.statistics().depth, len(queue)) == (1, 1)


async def test_depth_by_priority_counts_what_was_added_again_while_in_process() -> None:
    queue: PriorityQueue[str] = PriorityQueue(name="q")
    queue.add("a", priority=3)
    queue.add("b", priority=7)
    taken = await queue.get()
    assert taken == "b"
    queue.add("b", priority=3)
    state = queue.statistics()
    assert (state.depth, state.depth_by_priority) == (2, {3: 2})
    queue.add("b", priority=9)
    assert queue.statistics().depth_by_priority == {3: 1, 9: 1}
    assert sum(value for key, value in scrape(queue).items() if "depth" in key[0]) == 2


def test_a_queue_added_later_is_in_the_next_scrape() -> None:
    queues: list[WorkQueue[str]] = [WorkQueue(name="one")]
    registry = CollectorRegistry()
    registry.register(prometheus_collector(queues))
    queues.append(WorkQueue(name="two"))
    text = generate_latest(registry).decode()
    assert 'workqueue_depth{name="one",priority=""} 0.0' in text
    assert 'workqueue_depth{name="two",priority=""} 0.0' in text


def test_depth_has_a_priority_label_capped_at_25_values() -> None:
    queue: PriorityQueue[str] = PriorityQueue(name="q")
    for number in range(30):
        queue.add(f"{number}", priority=number)
        queue.add(f"{number}b", priority=number)
    depths = {key[2]: value for key, value in scrape(queue).items() if "depth" in key[0]}
    assert depths == {
        **{str(priority): 2 for priority in range(5, 30)},
        "exceeded_cardinality_limit": 10,
    }


def test_an_empty_priority_queue_has_a_depth_of_0() -> None:
    queue: PriorityQueue[str] = PriorityQueue(name="q")
    assert scrape(queue)["workqueue_depth", "q", ""] == 0


def test_a_duration_on_a_bound_counts_below_it() -> None:
    histogram = Histogram()
    for seconds in (0.0, 1e-08, 1.0, 1000.0, 1000.1):
        histogram.observe(seconds)
    state = histogram.statistics()
    *counts, above = state.counts
    assert dict(zip(BOUNDS, counts, strict=True)) == {
        **dict.fromkeys(BOUNDS, 0),
        1e-08: 2,
        1.0: 1,
        1000.0: 1,
    }
    assert (above, state.count) == (1, 5)
    assert state.sum == pytest.approx(2001.1)


def test_statistics_are_frozen() -> None:
    state: WorkQueueStatistics = WorkQueue[str]().statistics()
    with pytest.raises(AttributeError, match="immutable"):
        state.depth = 3  # type: ignore[misc]  # the point of the test


def test_prometheus_is_loaded_only_when_metrics_are_asked_for() -> None:
    program = (
        "import json, sys; from listwatch.workqueue import work_queue, priority_queue, threads;"
        "work_queue.WorkQueue().statistics(); print(json.dumps(sorted(sys.modules)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    modules = json.loads(loaded)
    assert "listwatch.workqueue.work_queue" in modules
    assert [name for name in modules if name.startswith(("prometheus_client", "aiohttp"))] == []
    assert [name for name in modules if name.startswith(("listwatch.c", "listwatch.o"))] == [
        "listwatch.clock"
    ]
