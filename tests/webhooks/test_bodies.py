"""The memory of all bodies together is bounded, and each body is completed."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from listwatch.clock import FakeClock
from listwatch.webhooks.bodies import Bodies

ROOM = 100


@given(
    bodies=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=5), max_size=8),
    cancelled=st.sets(st.integers(0, 7)),
)
def test_all_bodies_arrive_and_hold_no_more_than_the_room_and_one_body(
    bodies: list[list[int]], cancelled: set[int]
) -> None:
    async def scenario() -> None:
        clock, room, done = FakeClock(), Bodies(ROOM), set()
        greatest = max((sum(sizes) for sizes in bodies), default=0)

        async def read(number: int, sizes: list[int]) -> None:
            with room.body() as body:
                for size in sizes:
                    await clock.sleep(1 + number % 3)
                    await body.add(bytes(size))
                    assert room.held <= ROOM + greatest
                assert len(body.data) == sum(sizes)
                await clock.sleep(2)
            done.add(number)

        tasks = [asyncio.create_task(read(*each)) for each in enumerate(bodies)]
        await clock.advance(2)
        for number in cancelled:
            if number < len(tasks):
                tasks[number].cancel()
        await clock.advance(1000)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert done >= {number for number in range(len(bodies)) if number not in cancelled}
        assert room.held == 0

    asyncio.run(scenario())


async def test_the_oldest_body_grows_while_younger_ones_wait() -> None:
    clock, room = FakeClock(), Bodies(ROOM)
    with room.body() as old:
        await old.add(bytes(60))
        with room.body() as young:
            await young.add(bytes(40))
            waiting = asyncio.create_task(young.add(b"x"))
            await old.add(bytes(60))
            await clock.settle()
            assert (waiting.done(), room.held) == (False, 160)
            waiting.cancel()
            await asyncio.wait({waiting})
    assert room.held == 0
