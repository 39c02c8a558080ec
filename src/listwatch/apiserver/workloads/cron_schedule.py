"""Computes when a CronJob's schedule is due. `kinds/schedule.py` validates schedules."""

import re
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import NamedTuple

from listwatch.apiserver.kinds.schedule import EVERY, FIELDS, Field

_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([\d.]+)(ns|us|µs|ms|s|m|h)")
#: Days to search: a schedule that is not due within them, such as 30 February, never is.
_DAYS = 5 * 366


class Schedule(NamedTuple):
    """A parsed schedule: minutes, hours, days, months, days of the week; or a period."""

    fields: tuple[frozenset[int], ...]
    #: whether a day must match both the month's and the week's field
    both: bool
    #: seconds of `@every`; 0 with fields
    period: float = 0.0

    @classmethod
    def read(cls, text: str) -> "Schedule":
        """Parse a schedule that `schedule_problem` accepts."""
        if text.startswith(EVERY):
            parts = _PART.findall(text.removeprefix(EVERY))
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
            return cls((), both=True, period=max(1.0, float(int(seconds))))
        words = _DESCRIPTORS.get(text, text).split()
        fields = tuple(_values(word, field) for word, field in zip(words, FIELDS, strict=True))
        # if one of the two fields allows every value, the other decides
        return cls(fields, both=any(map(_says_nothing, (words[2], words[4]))))

    def next(self, after: float, zone: tzinfo = UTC) -> float | None:
        """Return when the schedule is next due after a time; None for never. In Unix seconds."""
        if self.period:
            return float(int(after)) + self.period
        minutes, hours, days, months, weekdays = self.fields
        begin = datetime.fromtimestamp(after, zone)
        for number in range(_DAYS):
            day = begin.date() + timedelta(days=number)
            if day.month not in months:
                continue
            fits = (day.day in days, day.isoweekday() % 7 in weekdays)
            if not (all(fits) if self.both else any(fits)):
                continue
            for hour in sorted(hours):
                for minute in sorted(minutes):
                    local = datetime.combine(day, time(hour, minute), zone)
                    found = local.timestamp()
                    # skip times that do not exist when the clocks go forward
                    exists = datetime.fromtimestamp(found, zone).time() == local.time()
                    if found > after and exists:
                        return found
        return None

    def latest(self, after: float, until: float, zone: tzinfo = UTC) -> float | None:
        """Return when the schedule was last due after `after` and up to `until`, or None."""
        first = self.next(after, zone)
        if first is None or first > until:
            return None
        if self.period:
            return first + (until - first) // self.period * self.period
        # invariant: the next time after `low` is at most `until`, the next after `high` is later
        low, high = after, until
        while high - low > 1:
            middle = (low + high) / 2
            following = self.next(middle, zone)
            if following is not None and following <= until:
                low = middle
            else:
                high = middle
        return self.next(low, zone)


def _says_nothing(word: str) -> bool:
    """Return whether a field allows every value; one with a step does not (robfig/cron v3)."""
    parts = (part.partition("/") for part in word.split(","))
    return any(first in {"*", "?"} and step in {"", "1"} for first, _, step in parts)


def _values(word: str, field: Field) -> frozenset[int]:
    found: set[int] = set()
    for part in filter(None, word.split(",")):
        extent, _, step = part.partition("/")
        first, _, last = extent.partition("-")
        if first in {"*", "?"}:
            low, high = field.low, field.high
        else:
            low = high = _number(first, field)
            if last:
                high = _number(last, field)
            elif step:
                high = field.high
        found.update(range(low, high + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, field: Field) -> int:
    named = field.names.get(text.lower())
    return int(text) if named is None else named
