"""Checks that no version of a resource loses what another one holds."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from listwatch.errors import ConfigError
from listwatch.resources.checking import Checker
from listwatch.resources.conversion import Conversions, plain_manifest, typed_object
from listwatch.resources.custom_resource import custom_resource_of, definition

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def manifests(cls: type) -> "SearchStrategy[dict[str, Any]]":
    """Return a hypothesis strategy of manifests of a type that a server accepts.

        @given(manifests(Website))
        def test_any_website_has_a_deployment(manifest: dict[str, Any]) -> None:
            ...

    They follow the type's schema and its rules, other than those with `oldSelf`. Rules that few
    random objects meet make hypothesis give up; then bounds in the schema help.

    Args:
        cls: a type decorated by `@resource`.

    Raises:
        ConfigError: hypothesis is not installed.
        ResourceTypeError: the type is not a resource.
    """
    try:
        from listwatch.testing.random_objects import (  # noqa: PLC0415 - needs hypothesis
            random_manifests,
        )
    except ImportError:
        raise ConfigError("random objects need hypothesis: run pip install hypothesis") from None
    return random_manifests(cls)


def assert_round_trips(conversions: Conversions) -> None:
    """Check with hypothesis that each version comes back from every other one without a loss.

        def test_versions_hold_the_same() -> None:
            assert_round_trips(websites)

    Random objects of each version are converted to each other version, where the schema and the
    rules must accept them, and back. The number of examples is that of hypothesis' profile.

    Args:
        conversions: complete ones.

    Raises:
        AssertionError: a field was lost or is refused; the message names versions and field.
        ResourceTypeError: there is no way between two versions.
        ConfigError: hypothesis is not installed.
    """
    conversions.check()
    checker = Checker(definition(*conversions.types))
    for old in conversions.types:
        for new in conversions.types:
            if old is not new:
                _assert_round_trip(conversions, old, new, checker)


def _assert_round_trip(conversions: Conversions, old: type, new: type, checker: Checker) -> None:
    objects = manifests(old)  # says what to install if hypothesis is missing
    from hypothesis import HealthCheck, given, settings  # noqa: PLC0415 - only tests have it

    mine, other = (custom_resource_of(cls).resource.version for cls in (old, new))

    def round_trip(manifest: dict[str, Any]) -> None:
        there = conversions.converted_manifest(manifest, other)
        problems = checker.check(there)
        if problems:
            raise AssertionError(
                f"{conversions.kind} {mine} → {other} gives what {other} does not accept: "
                f"{problems[0]}"
            )
        back = conversions.converted_manifest(there, mine)
        difference = _difference(_plain(manifest, old), _plain(back, old), "")
        if difference:
            instead = "" if conversions.keep_lost else "; keep_lost=True would keep it"
            raise AssertionError(
                f"{conversions.kind} {mine} → {other} → {mine} changes {difference}{instead}"
            )

    # A busy machine is no failure, and the objects of a large type take their time.
    calmly = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    calmly(given(objects)(round_trip))()


def _plain(manifest: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """Return a manifest with all defaults, to be compared."""
    made = plain_manifest(typed_object(manifest, cls), cls)
    return {**made, "metadata": manifest["metadata"]}


def _difference(before: Any, after: Any, path: str) -> str:
    """Return the first difference in words; empty if there is none."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            inner = f"{path}.{key}" if path else str(key)
            if key not in after:
                return f"{inner}: {_shown(before[key])} is lost"
            if key not in before:
                return f"{inner}: {_shown(after[key])} is new"
            if difference := _difference(before[key], after[key], inner):
                return difference
        return ""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        found = (_difference(one, two, f"{path}[{index}]") for index, (one, two) in pairs)
        return next(filter(None, found), "")
    if _shown(before) == _shown(after):
        return ""
    return f"{path}: {_shown(before)} becomes {_shown(after)}"


def _shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
