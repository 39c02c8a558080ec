"""Regular expressions in linear time, by google-re2, so that no pattern can hang."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import re2

from listwatch.cel.errors import EvaluationError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Match(Protocol):
    """An occurrence of a pattern."""

    def __getitem__(self, group: int) -> str:
        """Return the text of a group; 0 is the whole match."""


class Pattern(Protocol):
    """The used methods of a compiled pattern."""

    def search(self, text: str) -> Match | None:
        """Return the first occurrence of the pattern."""

    def finditer(self, text: str) -> Iterator[Match]:
        """Yield all occurrences of the pattern, in order."""


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Pattern:
    """Return a compiled pattern.

    Raises EvaluationError for what RE2 refuses: look-around, back-references, large repetitions.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        compiled: Pattern = re2.compile(pattern, options)
    except re2.error as error:
        raise EvaluationError(f"error parsing regexp: {_reason(error)}") from None
    return compiled


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else "invalid pattern"
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
