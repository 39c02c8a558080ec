"""The server's refusals, with the reason, details and message of a real one."""

from collections.abc import Sequence
from typing import Any

from listwatch.apiserver.kinds.resources import APIResource
from listwatch.errors import (
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    MethodNotSupportedError,
    NotAcceptableError,
    NotFoundError,
    RequestEntityTooLargeError,
    ServerTimeoutError,
    StatusError,
    UnauthorizedError,
    UnsupportedMediaTypeError,
)
from listwatch.schema.causes import Cause

_MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def _details(resource: APIResource, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    details["kind"] = resource.name
    return details


def not_found(resource: APIResource, name: str) -> StatusError:
    """Return 404: the object does not exist."""
    return NotFoundError(
        f'{resource.qualified_name} "{name}" not found', details=_details(resource, name)
    )


def no_such_resource() -> StatusError:
    """Return 404: no such path within a known group."""
    error = NotFoundError("the server could not find the requested resource")
    error.details = EMPTY_DETAILS
    return error


class _EmptyDetails(dict[str, Any]):
    """Details that are sent even if empty, as in some refusals."""

    def __bool__(self) -> bool:
        return True


EMPTY_DETAILS = _EmptyDetails()


def already_exists(resource: APIResource, name: str) -> StatusError:
    """Return 409: the name is taken."""
    return AlreadyExistsError(
        f'{resource.qualified_name} "{name}" already exists', details=_details(resource, name)
    )


def conflict(resource: APIResource, name: str, why: str = _MODIFIED) -> StatusError:
    """Return 409: the object is not in the state that the request expects."""
    return ConflictError(
        f'Operation cannot be fulfilled on {resource.qualified_name} "{name}": {why}',
        details=_details(resource, name),
    )


def not_bound(name: str, why: str) -> StatusError:
    """Return 409 for a binding."""
    return ConflictError(
        f'Operation cannot be fulfilled on pods/binding "{name}": {why}',
        details={"name": name, "kind": "pods/binding"},
    )


def precondition_failed(resource: APIResource, name: str, why: str) -> StatusError:
    """Return 409 for a delete; it names the kind where others name the resource."""
    return ConflictError(
        f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": {why}',
        details=_details(resource, name) | {"kind": resource.kind},
    )


def invalid(kind: str, group: str, name: str, causes: Sequence[Cause]) -> StatusError:
    """Return 422 with all causes."""
    words = [f"{cause.field}: {cause.message}" for cause in causes]
    said = words[0] if len(set(words)) == 1 else f"[{', '.join(dict.fromkeys(words))}]"
    details: dict[str, Any] = {"name": name} if name else {}
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    details["causes"] = [
        {"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes
    ]
    qualified = f"{kind}.{group}" if group else kind
    return InvalidError(f'{qualified} "{name}" is invalid: {said}', details=details)


def invalid_object(resource: APIResource, name: str, causes: Sequence[Cause]) -> StatusError:
    """Return 422 for an object."""
    return invalid(resource.kind, resource.stored_group, name, causes)


def bad_request(message: str) -> StatusError:
    """Return 400 without details."""
    return BadRequestError(message)


def server_error(message: str) -> StatusError:
    """Return 500 without a reason, a real server's response to some faulty requests."""
    error = StatusError(message, code=500)
    error.reason = ""
    return error


def internal_error(message: str) -> StatusError:
    """Return 500 with a reason and a cause."""
    return StatusError(
        f"Internal error occurred: {message}",
        code=500,
        reason="InternalError",
        details={"causes": [{"message": message}]},
    )


def method_not_allowed() -> StatusError:
    """Return 405 for a path that has other methods."""
    error = MethodNotSupportedError(
        "the server does not allow this method on the requested resource"
    )
    error.details = EMPTY_DETAILS
    return error


def verb_not_supported(resource: APIResource, verb: str) -> StatusError:
    """Return 405 in the words of custom resources, also for one being removed."""
    return MethodNotSupportedError(
        f'{verb} is not supported on resources of kind "{resource.qualified_name}"',
        details={"group": resource.group, "kind": resource.name},
    )


def not_acceptable(message: str, *, details: bool = False) -> StatusError:
    """Return 406."""
    error = NotAcceptableError(message)
    if details:
        error.details = EMPTY_DETAILS
    return error


def unsupported_media_type(message: str) -> StatusError:
    """Return 415."""
    return UnsupportedMediaTypeError(message)


def unauthorized() -> StatusError:
    """Return 401."""
    return UnauthorizedError("Unauthorized")


def forbidden(message: str, details: dict[str, Any] | None = None) -> StatusError:
    """Return 403."""
    return ForbiddenError(message, details=details if details is not None else EMPTY_DETAILS)


def forbidden_object(
    resource: APIResource, name: str, why: str, causes: Sequence[Cause] = ()
) -> StatusError:
    """Return 403 by one of the server's own rules."""
    details = _details(resource, name)
    if causes:
        details["causes"] = [
            {"reason": cause.reason, "message": cause.message, "field": cause.field}
            for cause in causes
        ]
    named = f' "{name}"' if name else ""
    return ForbiddenError(f"{resource.qualified_name}{named} is forbidden: {why}", details=details)


def expired(message: str) -> StatusError:
    """Return 410."""
    return ExpiredError(message)


def too_large_version(wanted: int, current: int) -> StatusError:
    """Return 504: the resource version is in the future."""
    return ServerTimeoutError(
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        details={
            "causes": [
                {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            ],
            "retryAfterSeconds": 1,
        },
        retry_after=1,
    )


def too_large_body(limit: int) -> StatusError:
    """Return 413."""
    return RequestEntityTooLargeError(f"Request entity too large: limit is {limit}")
