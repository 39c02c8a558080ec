"""Printer columns of custom resources."""

from typing import Any

import pytest

from listwatch.apiserver.kinds.custom_columns import column_value, json_path

_OBJECT = {
    "spec": {
        "b": 1,
        "a": "x",
        "list": ["p", "q", "r"],
        "items": [
            {"name": "one", "size": 1, "on": True},
            {"name": "two", "size": 2, "on": False},
        ],
        "map": {"k.l": "dotted", "m": [[1, 2]]},
    }
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".spec.a", "x"),
        ("{.spec.a}", "x"),
        (".spec.none", None),
        (".spec.a.b", None),
        (".spec.list[0]", "p"),
        (".spec.list[-1]", "r"),
        (".spec.list[3]", None),
        (".spec.list[-4]", None),
        (".spec.list[*]", "p"),
        (".spec.list[1:]", "q"),
        (".spec.list[-2:-1]", "q"),
        (".spec.list[0:3:2]", "p"),
        (".spec.map.*", "dotted"),
        (r".spec.map.k\.l", "dotted"),
        (".spec.map['k.l']", "dotted"),
        ('.spec.map["k.l"]', "dotted"),
        (".spec.map.m[0][1]", 2),
        ('.spec.list[?(@=="q")]', "q"),
        ('.spec.list[?(@!="p")]', "q"),
        ('.spec.items[?(@.name=="two")].size', 2),
        (".spec.items[?(@.size>1)].name", "two"),
        (".spec.items[?(@.size<=1)].name", "one"),
        (".spec.items[?(@.on==true)].name", "one"),
        (".spec.items[?(@.none)].name", None),
        (".spec.items[?(@.size)].name", "one"),
        ('.spec.items[?(@.size=="1")].name', None),
        (".spec.items[?(@.name>1)].name", None),
        (".spec.a[?(@.b==1)]", None),
    ],
)
def test_a_path_finds_the_first_that_it_names(path: str, found: Any) -> None:
    assert json_path(path)(_OBJECT) == found


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        ({"b": 1, "a": [2]}, "string", '{"a":[2],"b":1}'),
        ([1, "x"], "string", '[1,"x"]'),
        (True, "string", "true"),
        (3, "integer", 3),
        (3.0, "integer", 3),
        ("3", "integer", None),
        (1.5, "number", 1.5),
        ("yes", "boolean", None),
    ],
)
def test_a_value_is_shown_as_its_column_says(value: Any, kind: str, shown: Any) -> None:
    assert column_value({"v": value}, json_path(".v"), kind, 0.0) == shown
