"""An API server's refusals, as subclasses of `StatusError`."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from listwatch.printable import printable

#: A wait longer than this in seconds, negative or not a number is meaningless.
_MOST_RETRY_AFTER = 2**31


class ListWatchError(Exception):
    """Base of this package's exceptions.

    `str()` is one line of bounded length, escaped for a terminal whatever a server sent
    (`listwatch.printable`); `args` has the text unchanged.
    """

    def __str__(self) -> str:
        lines = (line.strip() for line in super().__str__().splitlines())
        return printable(" ".join(filter(None, lines)))


class StatusError(ListWatchError):
    """An API server's refusal: an HTTP error, or an ERROR event in a watch.

    Create one with `from_status`, which chooses the subclass by the reason, or by the code without
    a reason. `message` is the server's text; `str()` is the same, escaped for a terminal.

    Args:
        message: the server's text.
        code: the HTTP status code.
        reason: the server's reason, such as "AlreadyExists"; may be empty.
        details: name, kind, causes, retryAfterSeconds and more, as the server sent them.
        retry_after: seconds to wait before the next try, from the header or the details.
    """

    #: Whether the server sent a `Status`; otherwise a proxy before the server may have responded.
    is_status = False

    #: The resource of the refused request, as in metrics; empty if unknown.
    resource = ""

    #: The HTTP status code of this class if no reason was given.
    default_code: ClassVar[int] = 0
    #: The server's reasons for this class.
    reasons: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        message: str = "",
        *,
        code: int = 0,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.code = code or self.default_code
        self.reason = reason or (self.reasons[0] if self.reasons else "")
        self.message = message or self.reason or f"HTTP status {self.code}"
        self.details: Mapping[str, Any] = details if details is not None else {}
        self.retry_after = retry_after
        super().__init__(self.message)

    @classmethod
    def from_status(
        cls, status: object, *, code: int = 0, retry_after: float | None = None
    ) -> "StatusError":
        """Return the matching subclass for a decoded `Status` object.

        Anything but a mapping of the expected types becomes an error without text, so that a
        hostile response can't raise another exception here.

        Args:
            status: the decoded body or the `object` of an ERROR event.
            code: the HTTP status code, used if the status has none.
            retry_after: seconds, from a Retry-After header; by default the number in the details.
        """
        fields: Mapping[str, Any] = status if isinstance(status, Mapping) else {}
        own_code, reason, message = (fields.get(name) for name in ("code", "reason", "message"))
        details = fields.get("details")
        details = details if isinstance(details, Mapping) else {}
        if retry_after is None:
            seconds = details.get("retryAfterSeconds")
            if isinstance(seconds, int | float) and 0 < seconds <= _MOST_RETRY_AFTER:
                retry_after = float(seconds)
        number = own_code if isinstance(own_code, int) and own_code else code
        reason = reason if isinstance(reason, str) else ""
        kind = _KIND_BY_REASON.get(reason) or _KIND_BY_CODE.get(number) or StatusError
        error = kind(
            message if isinstance(message, str) else "",
            code=number,
            reason=reason,
            details=details,
            retry_after=retry_after,
        )
        error.is_status = fields.get("kind") == "Status"
        return error

    def to_status(self) -> dict[str, Any]:
        """Return this error as a `Status` object."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details:
            status["details"] = dict(self.details)
        status["code"] = self.code
        return status

    @property
    def causes(self) -> Sequence[Mapping[str, Any]]:
        """The causes in the details that have the expected form."""
        causes = self.details.get("causes")
        return [c for c in causes if isinstance(c, Mapping)] if isinstance(causes, list) else []

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.__dict__.copy())


def _rebuild(kind: type[StatusError], message: str, state: dict[str, Any]) -> StatusError:
    error = kind(message)
    error.__dict__.update(state)
    return error


class BadRequestError(StatusError):
    """400: the request is invalid."""

    default_code = 400
    reasons = ("BadRequest",)


class UnauthorizedError(StatusError):
    """401: the client is not authenticated."""

    default_code = 401
    reasons = ("Unauthorized",)


class ForbiddenError(StatusError):
    """403: the client is not allowed to do this."""

    default_code = 403
    reasons = ("Forbidden",)


class NotFoundError(StatusError):
    """404: the object, or the resource, does not exist."""

    default_code = 404
    reasons = ("NotFound",)


class MethodNotSupportedError(StatusError):
    """405: the resource does not support the verb."""

    default_code = 405
    reasons = ("MethodNotAllowed",)


class NotAcceptableError(StatusError):
    """406: the server supports none of the requested formats."""

    default_code = 406
    reasons = ("NotAcceptable",)


class ConflictError(StatusError):
    """409: the object has changed since it was read."""

    default_code = 409
    reasons = ("Conflict",)


class AlreadyExistsError(ConflictError):
    """409 on a create: the name is taken."""

    reasons = ("AlreadyExists",)


class ExpiredError(StatusError):
    """410: the resource version or the continue token is too old."""

    default_code = 410
    reasons = ("Expired", "Gone")


class RequestEntityTooLargeError(StatusError):
    """413: the body exceeds the server's limit."""

    default_code = 413
    reasons = ("RequestEntityTooLarge",)


class UnsupportedMediaTypeError(StatusError):
    """415: the server does not support the body's format."""

    default_code = 415
    reasons = ("UnsupportedMediaType",)


class InvalidError(StatusError):
    """422: the object is invalid; `causes` says which field and why."""

    default_code = 422
    reasons = ("Invalid",)


class TooManyRequestsError(StatusError):
    """429: retry later, after `retry_after` seconds if given."""

    default_code = 429
    reasons = ("TooManyRequests",)


class InternalServerError(StatusError):
    """500: the server failed."""

    default_code = 500
    reasons = ("InternalError",)


class ServiceUnavailableError(StatusError):
    """503: the server is starting, stopping or overloaded."""

    default_code = 503
    reasons = ("ServiceUnavailable",)


class ServerTimeoutError(StatusError):
    """504: the server gave up on this request."""

    default_code = 504
    reasons = ("Timeout", "ServerTimeout")

    @property
    def is_too_large_resource_version(self) -> bool:
        """Whether the server has not reached the requested resource version yet.

        Decided by the cause, or by the message if an older server gives no cause (client-go
        `tools/cache/reflector.go`).
        """
        words = "Too large resource version"
        return words in self.message or any(
            cause.get("reason") == "ResourceVersionTooLarge" or words in str(cause.get("message"))
            for cause in self.causes
        )


class FrameError(ListWatchError):
    """The bytes are not a list or watch stream: truncated, not JSON, or of another form."""


class DisconnectedError(ListWatchError):
    """The connection failed or broke; `refused` is true if nothing listened."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        self.refused = refused
        super().__init__(message)


class UnknownResourceError(ListWatchError):
    """The server has no resource of this name, or several of equal rank.

    Attributes:
        candidates: the possible resources, each by its unambiguous name.
    """

    def __init__(self, message: str, candidates: Sequence[str] = ()) -> None:
        self.candidates = tuple(candidates)
        super().__init__(message)


class QueueClosedError(ListWatchError):
    """The queue is closed or shut down, and empty: it returns nothing more."""


class ConfigError(ListWatchError):
    """A configuration is invalid; the message names the place and says what to do."""


def unwrap(error: BaseException, *, first: bool = False) -> BaseException:
    """Return the only error in an exception group, at any depth; otherwise the error itself.

    Args:
        error: a group, or any other error.
        first: also return the first of several errors.
    """
    while isinstance(error, BaseExceptionGroup) and (first or len(error.exceptions) == 1):
        error = error.exceptions[0]
    return error


def _kinds(root: type[StatusError] = StatusError) -> list[type[StatusError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _kinds(child))]


_KIND_BY_REASON = {reason: kind for kind in _kinds() for reason in kind.reasons}
_KIND_BY_CODE = {kind.default_code: kind for kind in reversed(_kinds()) if kind.default_code}
