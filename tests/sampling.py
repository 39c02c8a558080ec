"""Which of many like cases `make test` takes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


def sampled(cases: Iterable[Any], every: int) -> "list[ParameterSet]":
    """Return the cases for `parametrize`: every so many-th in `make test`, all in `make proof`.

    A case is a tuple of arguments, or the only argument.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if number % every == 0 else pytest.mark.proof,
        )
        for number, case in enumerate(cases)
    ]
