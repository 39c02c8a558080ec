"""The detector finds changes to objects that a cache shares."""

import msgspec
import pytest

from listwatch.cache.handlers import HandlerFuncs
from listwatch.cache.mutation_detector import (
    ENVIRONMENT,
    CacheMutationError,
    MutationDetector,
    is_switched_on,
)
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.objects import Object, ObjectDecoder
from listwatch.testing.fake_controller_source import FakeControllerSource, pod


class Pod(msgspec.Struct):
    spec: dict[str, list[str]] = {}


def an_object(name: str) -> Object:
    raw = msgspec.json.encode(pod(name, names=["a"]))
    return ObjectDecoder(fields=Pod)(raw)


def test_a_change_is_shown_with_its_key_and_a_diff() -> None:
    detector = MutationDetector(FakeClock(), name="pods")
    changed, other = an_object("changed"), an_object("other")
    detector.add(changed)
    detector.add(other)
    detector.check()
    changed.fields.spec["names"].append("b")
    with pytest.raises(CacheMutationError, match="cache pods: changed was changed") as caught:
        detector.check()
    assert caught.value.key == "changed"
    assert '+      "b"' in caught.value.diff


async def test_objects_are_looked_at_for_a_while_only() -> None:
    clock = FakeClock()
    detector = MutationDetector(clock, keep=120)
    detector.add(an_object("old"))
    await clock.advance(60)
    detector.add(an_object("new"))
    await clock.advance(61)
    detector.check()
    assert len(detector) == 1


def test_an_object_without_fields_can_not_be_changed_and_is_not_looked_at() -> None:
    detector = MutationDetector(FakeClock())
    detector.add(Object.from_dict(pod("a")))
    assert len(detector) == 0


@pytest.mark.parametrize(
    ("value", "on"), [(None, False), ("", False), ("0", False), ("false", False), ("1", True)]
)
def test_the_environment_switches_it_on(
    monkeypatch: pytest.MonkeyPatch, value: str | None, on: bool
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    if value is not None:
        monkeypatch.setenv(ENVIRONMENT, value)
    assert is_switched_on() is on


def test_the_pytest_plugin_switches_it_on() -> None:
    """It is on in this test run."""
    assert is_switched_on()


async def test_an_informer_ends_when_a_handler_changes_its_cache() -> None:
    clock = FakeClock()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a", names=["x"]))

    def on_update(_: Object, new: Object) -> None:
        new.fields.spec["names"].clear()

    informer = SharedInformer(source, fields=Pod, clock=clock)
    informer.add_handler(HandlerFuncs(on_update=on_update))

    async def live() -> None:
        async with informer:
            await clock.advance(10)
            source.modify(pod("a", names=["y"]))
            await clock.advance(10)

    with pytest.raises(ExceptionGroup) as caught:
        await live()
    assert caught.group_contains(CacheMutationError, match="a was changed")
    assert informer.is_stopped
