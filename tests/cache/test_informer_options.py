"""A shared informer refuses wrong options when it is made; the message says what to pass."""

import gc
import warnings
from typing import Any

import pytest

from listwatch.cache.handlers import HandlerFuncs
from listwatch.cache.list_watch import ListerWatcher
from listwatch.cache.shared_informer import SharedInformer
from listwatch.clock import FakeClock
from listwatch.testing.fake_controller_source import FakeControllerSource, pod


def a_source() -> ListerWatcher:
    return FakeControllerSource(clock=FakeClock())


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"compress": "gzip"}, ValueError, "compress='gzip' is not supported: use 'zstd'"),
        ({"decode": 5}, TypeError, "decode=5 must be a type, or a function that takes a dict"),
        (
            {"decode": "Pod"},
            TypeError,
            "decode='Pod' must be a type, or a function that takes a dict",
        ),
        (
            {"fields": dict},
            TypeError,
            "fields=<class 'dict'> must be a msgspec.Struct type",
        ),
        (
            {"indexers": {"namespace": len}},
            ValueError,
            "index 'namespace' already exists; choose another name",
        ),
        ({"audit_relist": 0}, ValueError, "0 s is too short an audit period: use 1 s or more"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as refused:
        SharedInformer(a_source(), **options)
    assert str(refused.value) == words


def test_a_view_of_no_type_is_refused() -> None:
    no_type: Any = "Pod"
    with pytest.raises(TypeError, match="must be a type, or a function that takes a dict"):
        SharedInformer(a_source()).view(no_type)


@pytest.mark.parametrize("handler", [print, HandlerFuncs])
def test_a_function_or_a_class_is_no_handler(handler: Any) -> None:
    with pytest.raises(
        TypeError, match=r"is not a handler, .* HandlerFuncs\(on_add, on_update, on_del"
    ):
        SharedInformer(a_source()).add_handler(handler)


def test_an_informer_with_handlers_that_never_runs_leaves_no_coroutine() -> None:
    gc.collect()  # what others have left
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        SharedInformer(a_source()).add_handler(HandlerFuncs(), resync_period=5)
        gc.collect()
    assert complaints == []


async def test_a_transform_that_returns_nothing_is_told_so() -> None:
    clock, failures = FakeClock(), list[str]()
    source = FakeControllerSource(clock=clock)
    source.add(pod("a"))
    nothing: Any = lambda _: None  # noqa: E731 - as a user writes it
    informer = SharedInformer(
        source,
        clock=clock,
        transform=nothing,
        on_error=lambda failure: failures.append(str(failure)),
    )
    async with informer:
        await clock.settle()
    assert failures == [
        "decode a: transform failed for a: TypeError: it returned a NoneType, not an Object"
    ]
