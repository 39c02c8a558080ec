"""Errors of an expression at compilation and at evaluation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Issue:
    """One reason why an expression does not compile, and its position (both from 1)."""

    line: int
    column: int
    message: str


class CompilationError(Exception):
    """An expression does not compile.

    `issues` has every reason, in order of position. The text shows each with its line and a mark
    under its column, as an API server does.
    """

    def __init__(self, source: str, issues: list[Issue]) -> None:
        self.source = source
        self.issues = tuple(sorted(issues, key=lambda issue: (issue.line, issue.column)))
        super().__init__("\n".join(_shown(source, issue) for issue in self.issues))


def _shown(source: str, issue: Issue) -> str:
    lines = source.split("\n")
    line = lines[issue.line - 1] if issue.line <= len(lines) else ""
    mark = "." * (issue.column - 1) + "^"
    return f"ERROR: <input>:{issue.line}:{issue.column}: {issue.message}\n | {line}\n | {mark}"


class InstantiationError(Exception):
    """An expression compiles, but one of its constants would make every evaluation fail."""


class EvaluationError(Exception):
    """An expression failed during evaluation, for example because of a division by zero.

    `cost` is the cost up to the failure.
    """

    cost = 0


class CostLimitExceededError(EvaluationError):
    """An evaluation exceeded its budget. `||`, `&&` and macros can't absorb this error."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")
