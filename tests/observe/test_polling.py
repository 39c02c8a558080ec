"""Resources that can be listed and not watched."""

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from listwatch.cache import SharedInformer
from listwatch.clock import FakeClock
from listwatch.observe.polling import PollingListWatch
from listwatch.testing.fake_controller_source import FakeControllerSource, pod
from processes import api_server, listwatch

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "delete", "poison", "heal", "fail"]), st.sampled_from("ab")
    ),
    max_size=12,
)


@given(STEPS)
def test_a_cache_follows_by_lists_alone_and_loses_nothing_that_can_not_be_read(
    steps: list[tuple[str, str]],
) -> None:
    asyncio.run(_follow(steps))


async def _follow(steps: list[tuple[str, str]]) -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    polling = PollingListWatch(source.list_watch(), 40, clock)
    informer = SharedInformer(polling, clock=clock, on_error=lambda _: None)
    async with informer:
        await clock.advance(1)
        assert informer.has_synced
        for number, (step, name) in enumerate(steps):
            key = f"ns/{name}"
            if step == "write":
                new = pod(name, "ns", number=number)
                (source.modify if key in source.objects else source.add)(new)
            elif step == "delete" and key in source.objects:
                source.delete(key)
            elif step == "poison":
                source.poison.add(key)
            elif step == "heal":
                source.poison.discard(key)
            elif step == "fail":
                source.refuse()
                await clock.advance(100)
                source.accept()
            before = {obj.key for obj in informer.lister.list()}
            await clock.advance(200)
            there = {obj.key: obj.raw for obj in informer.lister.list()}
            for key, raw in there.items():
                if key not in source.poison:
                    assert raw == source.objects[key].raw
            assert there.keys() - source.poison == source.objects.keys() - source.poison
            assert before & source.poison & source.objects.keys() <= there.keys()


async def test_a_list_between_two_polls_is_not_sent() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    async with SharedInformer(
        PollingListWatch(source.list_watch(), 100, clock), clock=clock
    ) as pods:
        await clock.advance(1)
        source.add(pod("a", "ns"))
        await clock.advance(98)
        assert pods.lister.list() == []
        await clock.advance(3)
        assert [obj.key for obj in pods.lister.list()] == ["ns/a"]


def test_a_resource_without_watch_needs_an_interval_or_once(tmp_path: Path) -> None:
    with api_server(tmp_path) as kubeconfig:
        refused = listwatch("observe", "componentstatuses", KUBECONFIG=str(kubeconfig))
        done = listwatch("observe", "componentstatuses", "--once", KUBECONFIG=str(kubeconfig))
    assert refused.returncode == 2
    assert "componentstatuses can't be watched; its verbs are: " in refused.stderr
    assert "use --poll 30s to list it at an interval, or --once" in refused.stderr
    assert done.returncode == 0, done.stderr
