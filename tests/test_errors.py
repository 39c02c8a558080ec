import pickle
from typing import Any

import pytest

from listwatch import errors
from listwatch.errors import ServerTimeoutError, StatusError


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ({"code": 404, "reason": "NotFound"}, errors.NotFoundError),
        ({"code": 409, "reason": "AlreadyExists"}, errors.AlreadyExistsError),
        ({"code": 409}, errors.ConflictError),
        ({"code": 410, "reason": "Gone"}, errors.ExpiredError),
        ({"code": 410, "reason": "Expired"}, errors.ExpiredError),
        ({"code": 504, "reason": "Timeout"}, errors.ServerTimeoutError),
        ({"code": 418, "reason": "Teapot"}, StatusError),
        ({}, errors.TooManyRequestsError),
        (None, errors.TooManyRequestsError),
        ([1], errors.TooManyRequestsError),
        ({"code": "x", "reason": 5, "message": [], "details": "?"}, errors.TooManyRequestsError),
    ],
)
def test_the_kind_follows_the_reason_then_the_code(status: object, kind: type[StatusError]) -> None:
    assert type(StatusError.from_status(status, code=429)) is kind


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (5, 5.0),
        (0.5, 0.5),
        (0, None),
        (-5, None),
        ("5", None),
        (10**400, None),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_a_wait_that_nobody_means_is_none(seconds: object, expected: float | None) -> None:
    status = {"code": 429, "details": {"retryAfterSeconds": seconds}}
    assert StatusError.from_status(status).retry_after == expected


def test_an_error_keeps_what_the_server_said_and_gives_it_back() -> None:
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "a" not found',
        "reason": "NotFound",
        "details": {"name": "a", "kind": "pods", "causes": [{"field": "x"}, 5]},
        "code": 404,
    }
    error = StatusError.from_status(status)
    assert str(error) == 'pods "a" not found'
    assert error.causes == [{"field": "x"}]
    assert error.to_status() == status
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(again), again.to_status()) == (errors.NotFoundError, status)


def test_retry_after_comes_from_the_header_or_the_details() -> None:
    details = {"details": {"retryAfterSeconds": 3}, "code": 429}
    assert StatusError.from_status(details).retry_after == 3
    assert StatusError.from_status(details, retry_after=7).retry_after == 7
    assert StatusError.from_status({"code": 429}).retry_after is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ServerTimeoutError(details={"causes": [{"reason": "ResourceVersionTooLarge"}]}), True),
        (ServerTimeoutError(details={"causes": [{"message": "Too large resource version"}]}), True),
        (ServerTimeoutError("Timeout: Too large resource version: 5, current: 3"), True),
        (ServerTimeoutError("slow"), False),
    ],
)
def test_a_resource_version_ahead_of_the_server_is_told_from_other_time_outs(
    error: ServerTimeoutError, expected: bool
) -> None:
    assert error.is_too_large_resource_version is expected
