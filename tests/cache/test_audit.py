"""An audit finds the differences that no watch can show, and no others."""

import pytest

from listwatch.cache.audit import AuditError
from listwatch.cache.failures import Failure
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.errors import InternalServerError
from listwatch.testing.fake_controller_source import FakeControllerSource, pod


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.source = FakeControllerSource(clock=self.clock)
        for name in ("a", "b", "c"):
            self.source.add(pod(name))
        self.failures: list[Failure] = []
        self.informer = SharedInformer(
            self.source,
            audit_relist=100,
            page_size=2,
            clock=self.clock,
            on_error=self.on_error,
        )

    def on_error(self, failure: Failure) -> None:
        assert isinstance(failure, Failure)
        self.failures.append(failure)

    def same(self) -> bool:
        return {obj.key: obj for obj in self.informer.indexer.list()} == self.source.objects


async def test_a_restore_whose_versions_have_overtaken_ours_is_found_and_mended() -> None:
    scene = Scene()
    backup = scene.source.backup()
    async with scene.informer:
        scene.source.modify(pod("a", lost=True))
        scene.source.delete("b")
        scene.source.add(pod("lost"))
        await scene.clock.settle()
        watches = list(scene.source._watches)  # to end these watches only
        scene.source.restore(backup)
        for _ in range(10):
            scene.source.modify_drop_watch(pod("c"))
        for watch in watches:  # a proxy keeps the connection open and passes later events
            watch.silent = False
        scene.source.modify(pod("c", seen=True))
        await scene.clock.settle()
        assert not scene.same()
        assert not scene.failures
        await scene.clock.advance(110)
        assert scene.same()
        (failure,) = scene.failures
        error = failure.error
        assert isinstance(error, AuditError)
        assert (error.missing, error.surplus, error.stale) == ({"b"}, {"lost"}, {"a"})
        assert str(failure).startswith(
            "audit: the cache differs from the server: 1 missing (b), 1 surplus (lost), 1 stale (a)"
        )


async def test_changes_on_their_way_are_no_difference() -> None:
    scene = Scene()
    async with scene.informer:
        for number in range(300):
            await scene.clock.advance(1)
            scene.source.modify(pod("a", number=number))
            if number % 2:
                scene.source.add(pod("d"))
            elif number:
                scene.source.delete("d")
        await scene.clock.settle()
        assert scene.failures == []
        assert scene.same()


async def test_an_undecodable_item_that_is_kept_is_no_difference() -> None:
    scene = Scene()
    async with scene.informer:
        await scene.clock.settle()
        scene.source.poison.add("b")
        await scene.clock.advance(110)
        assert scene.failures == []


async def test_an_audit_that_fails_is_reported_and_comes_again() -> None:
    scene = Scene()
    async with scene.informer:
        await scene.clock.advance(99)
        scene.source.fail_lists(InternalServerError("broken"))
        await scene.clock.advance(2)
        assert [failure.doing for failure in scene.failures] == ["audit"]
        scene.source.modify_drop_watch(pod("a", dropped=True))
        await scene.clock.advance(110)
        assert scene.same()
        assert len(scene.failures) == 2


def test_an_error_names_a_few() -> None:
    error = AuditError({f"k{number}" for number in range(9)}, set(), {"x"})
    assert str(error) == (
        "the cache differs from the server: 9 missing (k0, k1, k2, k3, k4…), 1 stale (x)"
    )


@pytest.mark.parametrize("period", [None])
async def test_without_a_period_nothing_is_audited(period: float | None) -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    async with SharedInformer(source, audit_relist=period, clock=clock):
        await clock.advance(250)
        assert len(source.requests) == 1
