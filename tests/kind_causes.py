"""Validate objects by the rules of their kinds, for tests, and return the invalid fields."""

from typing import Any

from listwatch.apiserver.kinds.catalog import built_in
from listwatch.apiserver.kinds.kind import Object
from listwatch.schema.enumerations import unsupported_values

Fields = list[str]


def of_new(name: str, obj: Object, definition: str = "") -> Fields:
    """Return the invalid fields of a new object.

    Args:
        name: the kind, as group and plural name.
        obj: the object; a missing name is added.
        definition: the name of its type, to check its enumerations too.
    """
    kind, whole = built_in(name), _named(obj)
    causes = [] if kind.rule is None else kind.rule(whole)
    if kind.new_rule is not None:
        causes = causes + kind.new_rule(whole)
    if definition:
        causes = causes + unsupported_values(whole, definition)
    return sorted(cause.field for cause in causes)


def of_change(name: str, new: Object, old: Object) -> Fields:
    """Return the invalid fields of an update, by the rules for updates alone."""
    rule = built_in(name).update_rule
    assert rule is not None
    return sorted(cause.field for cause in rule(_named(new), _named(old)))


def _named(obj: Object) -> dict[str, Any]:
    return {**obj, "metadata": {"name": "x", "namespace": "n", **(obj.get("metadata") or {})}}
