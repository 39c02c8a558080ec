import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.schema.facts import Schema, facts
from listwatch.schema.fast_typed import QuickDecoder
from listwatch.schema.parsing import parse_json
from listwatch.schema.typed import Conversion, WrongTypeError
from listwatch.testing.workload import PodGenerator

POD = facts().schema("", "v1", "Pod")


def decode_quickly(data: bytes, schema: Schema) -> Any:
    """Decode by the fast path, enabled from the first body on."""
    return QuickDecoder(worth_it=1).decode(data, schema)


def exactly(data: bytes) -> tuple[Any, list[str]]:
    conversion = Conversion()
    return conversion.convert(parse_json(data), POD), conversion.problems


def test_ordinary_pods_take_the_quick_way_and_come_out_the_same() -> None:
    generator = PodGenerator(3)
    for number in range(20):
        data = msgspec.json.encode(generator.pod(number))
        quick = decode_quickly(data, POD)
        assert quick is not None
        assert (quick, []) == exactly(data)


_ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        "",
        0,
        False,
        [],
        {},
        "1000m",
        "100m",
        1,
        "x",
        1.5,
        "2024-02-30T00:00:00Z",
        1 << 40,
        "eA==",
    ]
)
_PLACES = st.sampled_from(
    [
        ("metadata", "labels"),
        ("metadata", "labels", "a"),
        ("metadata", "creationTimestamp"),
        ("metadata", "generation"),
        ("metadata", "finalizers"),
        ("spec", "hostNetwork"),
        ("spec", "priority"),
        ("spec", "nodeName"),
        ("spec", "runtimeClassName"),
        ("spec", "securityContext"),
        ("spec", "overhead"),
        ("spec", "overhead", "cpu"),
        ("spec", "terminationGracePeriodSeconds"),
        ("spec", "volumes"),
        ("status", "startTime"),
        ("status", "conditions"),
        ("status", "observedGeneration"),
        ("spec", "nope"),
        ("kind",),
    ]
)


@given(st.lists(st.tuples(_PLACES, _ODD), max_size=4), st.booleans())
def test_what_takes_the_quick_way_comes_out_as_by_the_exact_one(
    changes: list[tuple[tuple[str, ...], Any]],
    repeat: bool,
) -> None:
    pod: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"containers": []}, "status": {}}
    for path, value in changes:
        place = pod
        for key in path[:-1]:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        place[path[-1]] = value
    data = json.dumps(pod).encode()
    if repeat:
        data = data.replace(b'"name"', b'"name": "b", "name"', 1)
    quick = decode_quickly(data, POD)
    if quick is None:
        return
    try:
        assert (quick, []) == exactly(data)
    except WrongTypeError as error:
        pytest.fail(f"the exact way refuses it: {error}")


_CONDITION_KEYS = ("lastProbeTime", "type", "lastTransitionTime", "status")


@given(st.lists(st.permutations(_CONDITION_KEYS), min_size=1, max_size=3), st.booleans())
def test_times_that_go_writes_unset_take_the_quick_way_wherever_they_are(
    orders: list[list[str]], first: bool
) -> None:
    conditions = [
        {key: "x" if key in {"type", "status"} else None for key in order} for order in orders
    ]
    name, unset = {"name": "a"}, {"creationTimestamp": None}
    metadata = {**unset, **name} if first else {**name, **unset}
    data = msgspec.json.encode({"metadata": metadata, "status": {"conditions": conditions}})
    quick = decode_quickly(data, POD)
    assert quick is not None
    assert (quick, []) == exactly(data)


def test_a_type_that_contains_itself_takes_the_exact_way() -> None:
    definitions = facts().schema("apiextensions.k8s.io", "v1", "CustomResourceDefinition")
    for _ in range(3):
        assert decode_quickly(b'{"metadata":{"name":"a"}}', definitions) is None
