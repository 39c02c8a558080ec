"""An odd part of a discovery response affects only itself."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.client import discovery_answers as answers
from listwatch.client.client import Client
from listwatch.client.discovery import UnknownResourceError
from listwatch.client.resource import Resource
from listwatch.errors import FrameError
from listwatch.testing.scripted_server import ScriptedServer, respond

POD = {
    "resource": "pods",
    "responseKind": {"group": "", "version": "v1", "kind": "Pod"},
    "scope": "Namespaced",
    "singularResource": "pod",
    "verbs": ["get", "list"],
    "shortNames": ["po"],
    "categories": ["all"],
    "subresources": [
        {
            "subresource": "eviction",
            "responseKind": {"group": "policy", "version": "v1", "kind": "Eviction"},
            "verbs": ["create"],
        },
        {"subresource": "status", "responseKind": {"group": "", "version": "", "kind": "Pod"}},
    ],
}
AGGREGATED: dict[str, Any] = {
    "kind": "APIGroupDiscoveryList",
    "items": [
        {"metadata": {"name": "odd.example"}, "versions": [{"version": "v1", "resources": [POD]}]},
        {"metadata": {}, "versions": [{"version": "v1", "resources": [POD]}]},
    ],
}
PLAIN: dict[str, Any] = {
    "kind": "APIResourceList",
    "resources": [
        {
            "name": "widgets",
            "singularName": "widget",
            "namespaced": True,
            "kind": "Widget",
            "verbs": ["get"],
            "shortNames": ["wi"],
            "categories": ["all"],
        },
        {
            "name": "widgets/scale",
            "namespaced": True,
            "group": "autoscaling",
            "version": "v1",
            "kind": "Scale",
        },
        {"name": "pods", "namespaced": True, "kind": "Pod"},
    ],
}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    for name, part in value.items() if isinstance(value, dict) else ():
        yield from places(part, (*path, name))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    value = copy.copy(value)
    value[path[0]] = replaced(value[path[0]], path[1:], by)
    return value


def read(value: Any) -> Any:
    """Decode a value as sent by a server, NaN included."""
    return answers.decode(json.dumps(value).encode(), "/apis")


def test_an_aggregated_answer_is_read() -> None:
    served = answers.aggregated(read(AGGREGATED))
    assert served.unavailable == []
    assert served.resources[1] == Resource(
        version="v1",
        plural="pods",
        kind="Pod",
        singular="pod",
        verbs=("get", "list"),
        short_names=("po",),
        categories=("all",),
        subresources=("eviction", "status"),
        subresource_types=(("eviction", "policy/v1", "Eviction"), ("status", "v1", "Pod")),
    )


def test_a_plain_answer_is_read() -> None:
    served = answers.plain(read(PLAIN), "example.com", "v1")
    assert served.unavailable == []
    assert served.resources[0] == Resource(
        group="example.com",
        version="v1",
        plural="widgets",
        kind="Widget",
        singular="widget",
        verbs=("get",),
        short_names=("wi",),
        categories=("all",),
        subresources=("scale",),
        subresource_types=(("scale", "autoscaling/v1", "Scale"),),
    )


@given(st.sampled_from([*places(AGGREGATED["items"][0])]), JSON_VALUES)
def test_whatever_stands_in_one_group_leaves_the_others(path: tuple[Any, ...], odd: Any) -> None:
    items = replaced(AGGREGATED["items"], (0, *path), odd)
    served = answers.aggregated(read({**AGGREGATED, "items": items}))
    assert "pods.v1." in [resource.full_name for resource in served.resources]


@given(st.sampled_from([*places(PLAIN["resources"][:2])]), JSON_VALUES)
def test_whatever_stands_in_one_resource_leaves_the_others(path: tuple[Any, ...], odd: Any) -> None:
    if path:
        resources = replaced(PLAIN["resources"], path, odd)
        served = answers.plain(read({"resources": resources}), "example.com", "v1")
        assert "pods.v1.example.com" in [resource.full_name for resource in served.resources]


@given(JSON_VALUES)
def test_whatever_a_server_answers_is_read_or_refused(odd: Any) -> None:
    try:
        answer = read(odd)
    except FrameError:
        assert not isinstance(odd, dict)
        return
    for served in (answers.aggregated(answer), answers.plain(answer, "g", "v1")):
        assert all(isinstance(resource, Resource) for resource in served.resources)
    assert all(group and version for group, version in answers.group_versions(answer))
    assert all(answers.core_versions(answer))


@pytest.mark.parametrize(
    "body", [b"", b"hello", b"<html>", b"null", b"[]", b"[" * 100_000, b'"x"', b"\xff"]
)
def test_what_is_no_mapping_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError, match="/apis did not return a discovery document"):
        answers.decode(body, "/apis")


def test_half_characters_and_invalid_utf8_cost_nothing() -> None:
    assert (
        answers.decode(b'{"kind": "\\ud83d", "x": "\xff"}', "/apis")["x"]
        == "\N{REPLACEMENT CHARACTER}"
    )


def test_a_scope_that_can_not_be_read_leaves_the_resource_out_and_says_so() -> None:
    served = answers.plain(
        {"resources": [{"name": "a", "namespaced": "yes"}, {"name": "b"}]}, "g", "v1"
    )
    assert [resource.plural for resource in served.resources] == ["b"]
    assert served.unavailable == ["g/v1"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (respond(b"", type_="application/json"), "did not return a discovery document"),
        (respond(b"hello"), "did not return a discovery document"),
        (respond(b"down", code=503, type_="text/plain"), "down"),
        (respond(b"\x1b[2J", code=500, type_="text/plain"), "\\x1b[2J"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n{", "broke within"),
        (b"SSH-2.0\r\n\r\nConnection: close\r\n\r\n", "invalid HTTP"),
    ],
    ids=["empty", "text", "503", "500", "cut", "no HTTP"],
)
async def test_a_group_that_answers_nothing_of_use_costs_only_itself(
    server: ScriptedServer,
    client: Client,
    caplog: pytest.LogCaptureFixture,
    answer: bytes,
    words: str,
) -> None:
    version = {"groupVersion": "odd.example/v1", "version": "v1"}
    server.answers["/api"] = {"versions": ["v1"]}
    server.answers["/apis"] = {"groups": [{"name": "odd.example", "versions": [version]}]}
    server.answers["/api/v1"] = PLAIN
    server.answers["/apis/odd.example/v1"] = answer
    assert (await client.discovery.find("pods")).full_name == "pods.v1."
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "odd.example/v1" in caplog.text
    assert words in caplog.text
    with pytest.raises(UnknownResourceError, match=r"did not say what odd\.example/v1 serves"):
        await client.discovery.find("gadgets")
