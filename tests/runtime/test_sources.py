from collections.abc import Iterable
from typing import Any

from listwatch.objects import DeletedFinalStateUnknown, Object
from listwatch.runtime import predicates
from listwatch.runtime.sources import KeySource, owner_keys
from listwatch.workqueue.priority_queue import LOW_PRIORITY
from runtime.reconciler_world import owned, widget


def obj(**more: Any) -> Object:
    return Object.from_dict(widget("a", **more))


def test_owners_without_namespace_have_keys_without_one() -> None:
    map_func = owner_keys("example.com", "Widget", namespaced=False)
    assert list(map_func(Object.from_dict(owned("s", "a")))) == ["a"]


def test_a_source_gives_initial_objects_and_resyncs_low_priority_and_filters_first() -> None:
    queued: list[tuple[str, int]] = []
    mapped: list[Object] = []

    def map_func(o: Object) -> Iterable[str]:
        mapped.append(o)
        return [o.name]

    source = KeySource(
        "widgets",
        lambda key, priority, _: queued.append((key, priority)),
        map_func,
        [predicates.has(lambda o: "no" not in o.labels)],
    )
    one = obj(meta={"resourceVersion": "1"})
    source.on_add(one, True)
    source.on_update(one, one)
    source.on_update(one, obj(meta={"resourceVersion": "2"}))
    source.on_add(obj(meta={"labels": {"no": ""}}), False)
    source.on_delete(DeletedFinalStateUnknown("ns/a", one))
    source.on_delete(DeletedFinalStateUnknown("ns/b"))
    assert queued == [("a", LOW_PRIORITY), ("a", LOW_PRIORITY), ("a", 0), ("a", 0)]
    assert all("no" not in o.labels for o in mapped)
