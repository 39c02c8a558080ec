"""Samples of similar cases for `make test`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


def sampled(cases: Iterable[Any], every: int) -> "list[ParameterSet]":
    """Return `parametrize` cases: `make test` runs one of `every`, `make proof` runs all.

    A case is a tuple of arguments, or the only argument.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if number % every == 0 else pytest.mark.proof,
        )
        for number, case in enumerate(cases)
    ]
