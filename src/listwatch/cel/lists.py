"""Kubernetes' functions for lists, and the lists and sets extensions of CEL.

Rules: k8s.io/apiserver, pkg/cel/library/lists.go; github.com/google/cel-go, ext/README.md
(lists version 3, sets).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key, reduce
from typing import Any

from listwatch.cel.errors import EvaluationError
from listwatch.cel.functions import Function, function, method, plain
from listwatch.cel.standard import add
from listwatch.cel.strings import INDEX_OF_TEXT
from listwatch.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    parameter,
)
from listwatch.cel.values import Duration, UInt, Value, equal, type_name

_T = parameter("T")
_COMPARABLE = (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)
_SUMMABLE: tuple[tuple[Type, Value], ...] = (
    (INT, 0), (UINT, UInt(0)), (DOUBLE, 0.0), (DURATION, Duration(0)),
)  # fmt: skip


def _is_sorted(items: Sequence[Any]) -> bool:
    return all(items[i] <= items[i + 1] for i in range(len(items) - 1))


def _sum(items: Sequence[Value]) -> Value:
    if not items:
        return 0
    return reduce(add, items)


def _extreme(name: str, choose: Callable[..., Value]) -> Callable[[Sequence[Value]], Value]:
    def call(items: Sequence[Value]) -> Value:
        if not items:
            raise EvaluationError(f"{name} called on empty list")
        return choose(items)

    return call


def _index_of(where: Sequence[Value], what: Value, *more: int) -> int:
    if isinstance(where, str):
        return INDEX_OF_TEXT[0](where, what, *more)
    return next((i for i, item in enumerate(where) if equal(item, what)), -1)


def _last_index_of(where: Sequence[Value], what: Value, *more: int) -> int:
    if isinstance(where, str):
        return INDEX_OF_TEXT[1](where, what, *more)
    return next((i for i in range(len(where) - 1, -1, -1) if equal(where[i], what)), -1)


def _slice(items: Sequence[Value], start: int, end: int) -> list[Value]:
    if start < 0 or end < 0:
        raise EvaluationError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvaluationError(
            f"cannot slice({start}, {end}), start index must be less than or equal to end index"
        )
    if len(items) < end:
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return list(items[start:end])


def _flatten(items: Sequence[Value], depth: int = 1) -> list[Value]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    result: list[Value] = []
    for item in items:
        if depth > 0 and isinstance(item, Sequence) and not isinstance(item, str | bytes):
            result.extend(_flatten(item, depth - 1))
        else:
            result.append(item)
    return result


def _range(count: int) -> list[Value]:
    if count > 1_000_000:
        # The reference would run out of memory; here the cost limit would come too late.
        raise EvaluationError("lists.range: too many elements")
    return list(range(count))


def _distinct(items: Sequence[Value]) -> list[Value]:
    seen: list[Value] = []
    known: set[Value] = set()
    for item in items:
        if isinstance(item, str):
            if item in known:
                continue
            known.add(item)
        elif any(equal(item, other) for other in seen):
            continue
        seen.append(item)
    return seen


def _compare(one: Any, other: Any) -> int:
    return bool(one > other) - bool(one < other)


def _check_sortable(keys: Sequence[Value]) -> None:
    kinds = {type_name(key) for key in keys}
    if len(kinds) > 1:
        raise EvaluationError("list elements must have the same type")
    if kinds and not kinds <= _SORTABLE:
        raise EvaluationError("list elements must be comparable")


_SORTABLE = {
    "bool", "int", "uint", "double", "string", "bytes",
    "google.protobuf.Timestamp", "google.protobuf.Duration",
}  # fmt: skip


def _sort(items: Sequence[Any]) -> list[Value]:
    _check_sortable(items)
    return sorted(items, key=cmp_to_key(_compare))


def _sort_by(items: Sequence[Value], keys: Sequence[Any]) -> list[Value]:
    _check_sortable(keys)
    order = sorted(range(len(items)), key=lambda i: cmp_to_key(_compare)(keys[i]))
    return [items[i] for i in order]


def _contains_all(items: Sequence[Value], wanted: Sequence[Value]) -> bool:
    return all(any(equal(one, item) for item in items) for one in wanted)


def _intersects(items: Sequence[Value], others: Sequence[Value]) -> bool:
    return any(equal(one, item) for one in others for item in items)


LISTS: tuple[Function, ...] = (
    Function(
        "isSorted",
        tuple(method(f"list_{t.kind}_is_sorted_bool", list_of(t), BOOL) for t in _COMPARABLE),
        _is_sorted,
    ),
    Function(
        "sum",
        tuple(method(f"list_{t.kind}_sum_{t.kind}", list_of(t), t) for t, _ in _SUMMABLE),
        _sum,
    ),
    Function(
        "max",
        tuple(method(f"list_{t.kind}_max_{t.kind}", list_of(t), t) for t in _COMPARABLE),
        _extreme("max", max),
    ),
    Function(
        "min",
        tuple(method(f"list_{t.kind}_min_{t.kind}", list_of(t), t) for t in _COMPARABLE),
        _extreme("min", min),
    ),
    function(
        "indexOf",
        _index_of,
        method("list_a_index_of_int", list_of(_T), _T, INT),
        method("string_index_of_string", STRING, STRING, INT),
        method("string_index_of_string_int", STRING, STRING, INT, INT),
    ),
    function(
        "lastIndexOf",
        _last_index_of,
        method("list_a_last_index_of_int", list_of(_T), _T, INT),
        method("string_last_index_of_string", STRING, STRING, INT),
        method("string_last_index_of_string_int", STRING, STRING, INT, INT),
    ),
    function("slice", _slice, method("list_slice", list_of(_T), INT, INT, list_of(_T))),
    function(
        "flatten",
        _flatten,
        method("list_flatten", list_of(list_of(_T)), list_of(_T)),
        method("list_flatten_int", list_of(DYN), INT, list_of(DYN)),
    ),
    Function(
        "sort",
        tuple(method(f"list_{t.kind}_sort", list_of(t), list_of(t)) for t in _COMPARABLE),
        _sort,
    ),
    Function(
        "@sortBy",
        tuple(
            method(f"list_{t.kind}_sortByAssociatedKeys", list_of(_T), list_of(t), list_of(_T))
            for t in _COMPARABLE
        ),
        _sort_by,
    ),
    function("lists.range", _range, plain("lists_range", INT, list_of(INT))),
    function(
        "reverse", lambda items: list(reversed(items)),
        method("list_reverse", list_of(_T), list_of(_T)),
    ),
    function("distinct", _distinct, method("list_distinct", list_of(_T), list_of(_T))),
    function(
        "sets.contains", _contains_all,
        plain("list_sets_contains_list", list_of(_T), list_of(_T), BOOL),
    ),
    function(
        "sets.intersects", _intersects,
        plain("list_sets_intersects_list", list_of(_T), list_of(_T), BOOL),
    ),
    function(
        "sets.equivalent",
        lambda one, other: _contains_all(one, other) and _contains_all(other, one),
        plain("list_sets_equivalent_list", list_of(_T), list_of(_T), BOOL),
    ),
)  # fmt: skip

__all__ = ["LISTS"]
