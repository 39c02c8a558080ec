"""The kinds of each family, which are listed so that a family is loaded when it is used."""

from importlib import import_module

import pytest

from listwatch.apiserver.kinds import catalog
from listwatch.apiserver.kinds.kind import Kind


@pytest.mark.parametrize("family", catalog.FAMILIES)
def test_the_listed_kinds_are_those_of_the_family(family: str) -> None:
    kinds = import_module(f"listwatch.apiserver.kinds.{family}").KINDS
    assert sorted(kinds) == sorted(catalog.FAMILIES[family].split())


def test_a_kind_without_differences_has_the_defaults() -> None:
    assert catalog.built_in("example.com/unknown") == Kind()
