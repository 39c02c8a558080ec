"""The responses of admission hooks."""

from collections.abc import Mapping
from typing import Any, Final

from listwatch.webhooks.requests import AdmissionRequest, Denied

#: Reasons of a Status by code (apimachinery, `pkg/api/errors`).
_REASONS: Final[Mapping[int, str]] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Gone",
    413: "RequestEntityTooLarge",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def allowed(request: AdmissionRequest[Any]) -> dict[str, Any]:
    """Return a response that allows a request."""
    return {"allowed": True, **_extras(request)}


def denial(request: AdmissionRequest[Any], denied: Denied) -> dict[str, Any]:
    """Return a response that denies a request, in a server's words."""
    status: dict[str, Any] = {
        "status": "Failure",
        "code": denied.code,
        "reason": _REASONS.get(denied.code, ""),
        "message": str(denied),
    }
    if denied.problems:
        kind = request.kind
        found = [str(problem) for problem in denied.problems]
        words = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
        status |= {
            "message": f'{kind} "{request.name}" is invalid: {words}',
            "details": {
                "name": request.name,
                "group": kind.group,
                "kind": kind.kind,
                "causes": [
                    {
                        "field": problem.field,
                        "message": problem.message,
                        "reason": problem.reason or "FieldValueInvalid",
                    }
                    for problem in denied.problems
                ],
            },
        }
    return {"allowed": False, "status": status, **_extras(request)}


def _extras(request: AdmissionRequest[Any]) -> dict[str, Any]:
    fields = {"warnings": request.warnings, "auditAnnotations": request.annotations}
    return {name: value for name, value in fields.items() if value}
