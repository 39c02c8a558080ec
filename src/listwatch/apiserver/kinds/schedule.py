"""Validates the schedules of cron jobs.

Grammar and messages are those of a real server's parser (`robfig/cron`, the standard five fields
and descriptors). `workloads/cron_schedule.py` computes when a schedule is due.
"""

import re
from typing import NamedTuple

from listwatch.schema.go_words import whole_number


class Field(NamedTuple):
    """One of the five fields of a schedule: its bounds, and names of values."""

    low: int
    high: int
    names: dict[str, int]


_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
#: Minute, hour, day of the month, month, day of the week.
FIELDS = (
    Field(0, 59, {}),
    Field(0, 23, {}),
    Field(1, 31, {}),
    Field(1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    Field(0, 6, {name: number for number, name in enumerate(_DAYS)}),
)
_DESCRIPTORS = frozenset(
    ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
)
_DURATION = re.compile(r"[-+]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))+", re.ASCII)
#: The prefix of a schedule that is a period.
EVERY = "@every "


def schedule_problem(schedule: str) -> str | None:
    """Return why a schedule is invalid, in a real server's words; None if it is valid."""
    if schedule.startswith("@"):
        return _descriptor_problem(schedule)
    words = schedule.split()
    if len(words) != len(FIELDS):
        return f"expected exactly 5 fields, found {len(words)}: [{' '.join(words)}]"
    for word, field in zip(words, FIELDS, strict=True):
        for part in filter(None, word.split(",")):
            problem = _part_problem(part, field)
            if problem is not None:
                return problem
    return None


def _descriptor_problem(schedule: str) -> str | None:
    if schedule in _DESCRIPTORS:
        return None
    if schedule.startswith(EVERY):
        duration = schedule.removeprefix(EVERY)
        if _DURATION.fullmatch(duration):
            return None
        return f'failed to parse duration {schedule}: time: invalid duration "{duration}"'
    return f"unrecognized descriptor: {schedule}"


def _part_problem(part: str, field: Field) -> str | None:
    extent, *steps = part.split("/")
    first, *last = extent.split("-")
    if len(last) > 1:
        return f"too many hyphens: {part}"
    if len(steps) > 1:
        return f"too many slashes: {part}"
    bounds = []
    for text in (first, *last):
        if text in {"*", "?"} and text is first:
            bounds = [field.low, field.high]
            break
        value = _number(text, field)
        if isinstance(value, str):
            return value
        bounds.append(value)
    low, high = bounds[0], bounds[-1]
    if steps:
        step = _number(steps[0], field._replace(names={}))
        if isinstance(step, str):
            return step
        if step == 0:
            return f"step of range should be a positive number: {part}"
        if len(bounds) == 1:
            high = field.high
    if low < field.low:
        return f"beginning of range ({low}) below minimum ({field.low}): {part}"
    if high > field.high:
        return f"end of range ({high}) above maximum ({field.high}): {part}"
    if low > high:
        return f"beginning of range ({low}) beyond end of range ({high}): {part}"
    return None


def _number(text: str, field: Field) -> int | str:
    named = field.names.get(text.lower())
    if named is not None:
        return named
    try:
        value = whole_number(text, "Atoi")
    except ValueError as error:
        return f"failed to parse int from {text}: {error}"
    return value if value >= 0 else f"negative number ({value}) not allowed: {text}"
