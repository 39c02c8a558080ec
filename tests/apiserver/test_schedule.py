import pytest

from listwatch.apiserver.kinds.schedule import schedule_problem

_MANY = "9" * 30
_ATOI = "strconv.Atoi: parsing"
_UNITS = "1" + "ms" * 40 + "x"


@pytest.mark.parametrize(
    "schedule",
    [
        "* * * * *",
        "*/5 0-6 1,15 JAN-mar sun",
        "30 4 ? * 1/2",
        "@hourly",
        "@every 1h30m",
        " 0  0 1 1 0 ",
    ],
)
def test_a_schedule_is_read(schedule: str) -> None:
    assert schedule_problem(schedule) is None


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ("bad", "expected exactly 5 fields, found 1: [bad]"),
        ("* * * * * *", "expected exactly 5 fields, found 6: [* * * * * *]"),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("9-3 * * * *", "beginning of range (9) beyond end of range (3): 9-3"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("*/1/2 * * * *", "too many slashes: */1/2"),
        ("x * * * *", 'failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax'),
        (
            f"{_MANY} * * * *",
            f'failed to parse int from {_MANY}: {_ATOI} "{_MANY}": value out of range',
        ),
        (
            f"@every {_UNITS}",
            f'failed to parse duration @every {_UNITS}: time: invalid duration "{_UNITS}"',
        ),
        ("@often", "unrecognized descriptor: @often"),
        ("@every day", 'failed to parse duration @every day: time: invalid duration "day"'),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said(schedule: str, problem: str) -> None:
    assert schedule_problem(schedule) == problem
