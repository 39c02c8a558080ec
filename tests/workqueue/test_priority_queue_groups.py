"""Groups of items with equal priority take turns."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from listwatch.clock import FakeClock
from listwatch.workqueue.priority_queue import PriorityQueue
from workqueue.taking import take_all


def group_of(item: str) -> str:
    return item.partition("/")[0]


def make() -> PriorityQueue[str]:
    return PriorityQueue(clock=FakeClock(), fair_by=group_of)


async def test_a_group_with_much_work_does_not_hold_up_the_others() -> None:
    queue = make()
    for number in range(100):
        queue.add(f"loud/{number}")
    queue.add("quiet/0")
    queue.add("quiet/1")
    order = await take_all(queue)
    assert order.index("quiet/0") <= 1
    assert order.index("quiet/1") <= 3


async def test_a_group_saves_up_no_turns_while_it_has_nothing_to_do() -> None:
    queue = make()
    for number in range(20):
        queue.add(f"a/{number}")
    for _ in range(10):
        queue.done(await queue.get())
    for number in range(20):
        queue.add(f"b/{number}")
    taken = [group_of(item) for item in (await take_all(queue))[:10]]
    assert 4 <= taken.count("b") <= 6


async def test_priorities_come_before_turns() -> None:
    queue = make()
    for number in range(3):
        queue.add(f"a/{number}", priority=1)
    queue.add("b/0")
    assert await take_all(queue) == ["a/0", "a/1", "a/2", "b/0"]


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "take"]), st.sampled_from("abc"), st.integers(0, 4))
)


@given(STEPS)
def test_no_group_is_served_more_than_twice_before_another_that_waits(
    steps: list[tuple[str, str, int]],
) -> None:
    async def run() -> None:
        queue = make()
        waiting: dict[str, set[str]] = {"a": set(), "b": set(), "c": set()}
        # Takes of each other group since this one last got its turn or began to wait.
        since: dict[str, Counter[str]] = {}
        for number, (step, group, name) in enumerate(steps):
            if step == "add":
                item = f"{group}/{name}"
                if not waiting[group]:
                    since[group] = Counter()
                waiting[group].add(item)
                queue.add(item)
            elif any(waiting.values()):
                item = await queue.get()
                queue.done(item)
                taken = group_of(item)
                waiting[taken].remove(item)
                for other, items in waiting.items():
                    if items and other != taken:
                        since[other][taken] += 1
                        assert since[other][taken] <= 2, number
                since[taken] = Counter()
        left = sum(map(len, waiting.values()))
        assert len(await take_all(queue)) == left

    asyncio.run(run())


async def test_groups_that_come_and_go_leave_nothing_behind() -> None:
    queue = make()
    queue.add("steady/0", priority=0)
    queue.add("steady/1", priority=0)
    for number in range(1000):
        queue.add(f"guest{number}/x")
        queue.done(await queue.get())
    order = queue._by_priority
    assert sum(map(len, order._last_rounds.values())) <= 70
    await take_all(queue)
    assert (order._rounds, order._last_rounds) == ({}, {})
