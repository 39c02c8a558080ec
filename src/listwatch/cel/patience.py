"""Ends evaluations that would take longer than their caller can wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from listwatch.cel.errors import CostLimitExceededError, EvaluationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from listwatch.cel.program import Program
    from listwatch.cel.values import Value


class TakesLongError(Exception):
    """An evaluation takes longer than its caller can wait."""


class Patience:
    """The cost that several evaluations may spend together before other tasks must run."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


def evaluate(
    program: Program, variables: Mapping[str, Value], limit: int, patience: Patience | None
) -> tuple[Value, int]:
    """Return the value of an expression and its cost, as `Program.evaluate` does.

    Raises:
        EvaluationError: it fails.
        TakesLongError: it exceeds the remaining patience; with None there is no limit.
    """
    if patience is None:
        return program.evaluate(variables, limit=limit)
    hasty = patience.left < limit
    try:
        value, cost = program.evaluate(variables, limit=patience.left if hasty else limit)
    except EvaluationError as error:
        if hasty and isinstance(error, CostLimitExceededError):
            raise TakesLongError from None
        patience.left -= error.cost
        raise
    patience.left -= cost
    return value, cost
