"""What an API server can refuse, as kinds of `StatusError`."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from listwatch.printable import printable

#: More seconds than this, no number, or less than none at all are no wait that anybody means.
_MOST_RETRY_AFTER = 2**31


class ListWatchError(Exception):
    """What this package raises on purpose.

    `str()` is one line of bounded length that can go to a terminal as it is, whatever a server
    sent (`listwatch.printable`); `args` has the words unchanged.
    """

    def __str__(self) -> str:
        lines = (line.strip() for line in super().__str__().splitlines())
        return printable(" ".join(filter(None, lines)))


class StatusError(ListWatchError):
    """An API server's refusal: an HTTP error, or an ERROR event in a watch.

    Make one with `from_status`, which chooses the kind by the reason, or by the code when there
    is none. `message` is what the server said, `str()` the same made fit for a terminal.

    Args:
        message: what the server says, in words.
        code: the HTTP status code.
        reason: the server's word for it, such as "AlreadyExists"; may be empty.
        details: name, kind, causes, retryAfterSeconds and more, as the server sent them.
        retry_after: seconds to wait before the next try, from the header or the details.
    """

    #: Whether a `Status` said so; otherwise it may be the word of what stands before the server.
    is_status = False

    #: The HTTP status code that stands for this kind where no reason was given.
    default_code: ClassVar[int] = 0
    #: The reasons that a server gives for this kind.
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
        """Make the fitting kind of error from a decoded `Status` object.

        Anything else than a mapping of the expected types is taken as an error without words, so
        that a hostile answer can't raise something else here.

        Args:
            status: the decoded body or the `object` of an ERROR event.
            code: the HTTP status code, which counts where the status has none.
            retry_after: seconds, from a Retry-After header; else the details' number counts.
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
        """The details' causes that have the expected form."""
        causes = self.details.get("causes")
        return [c for c in causes if isinstance(c, Mapping)] if isinstance(causes, list) else []

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.__dict__.copy())


def _rebuild(kind: type[StatusError], message: str, state: dict[str, Any]) -> StatusError:
    error = kind(message)
    error.__dict__.update(state)
    return error


class BadRequestError(StatusError):
    """400: the request itself is wrong."""

    default_code = 400
    reasons = ("BadRequest",)


class UnauthorizedError(StatusError):
    """401: who asks is unknown."""

    default_code = 401
    reasons = ("Unauthorized",)


class ForbiddenError(StatusError):
    """403: who asks may not."""

    default_code = 403
    reasons = ("Forbidden",)


class NotFoundError(StatusError):
    """404: no such object, or no such resource."""

    default_code = 404
    reasons = ("NotFound",)


class MethodNotSupportedError(StatusError):
    """405: the resource has no such verb."""

    default_code = 405
    reasons = ("MethodNotAllowed",)


class NotAcceptableError(StatusError):
    """406: the server can't answer in any of the formats asked for."""

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
    """413: the body is over the server's limit."""

    default_code = 413
    reasons = ("RequestEntityTooLarge",)


class UnsupportedMediaTypeError(StatusError):
    """415: the server can't read the body's format."""

    default_code = 415
    reasons = ("UnsupportedMediaType",)


class InvalidError(StatusError):
    """422: the object breaks a rule; `causes` says which field and why."""

    default_code = 422
    reasons = ("Invalid",)


class TooManyRequestsError(StatusError):
    """429: come back later, after `retry_after` seconds if given."""

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
        """Whether the server has not reached the asked resource version yet.

        By the cause, or by the words where an older server gives no cause (client-go
        `tools/cache/reflector.go`).
        """
        words = "Too large resource version"
        return words in self.message or any(
            cause.get("reason") == "ResourceVersionTooLarge" or words in str(cause.get("message"))
            for cause in self.causes
        )


class FrameError(ListWatchError):
    """Bytes that are no list or watch stream: cut short, not JSON, or of another form."""


class DisconnectedError(ListWatchError):
    """The connection could not be made or broke; `refused` says that nobody listened."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        self.refused = refused
        super().__init__(message)


class UnknownResourceError(ListWatchError):
    """The server serves no resource of this name, or several and none of them comes first.

    Attributes:
        candidates: the resources that it could mean, each in words that mean it alone.
    """

    def __init__(self, message: str, candidates: Sequence[str] = ()) -> None:
        self.candidates = tuple(candidates)
        super().__init__(message)


class QueueClosedError(ListWatchError):
    """The queue was closed or shut down and is empty: nothing more will come out of it."""


class ConfigError(ListWatchError):
    """A configuration that can't be used; the message names the place and the remedy."""


def unwrap(error: BaseException, *, first: bool = False) -> BaseException:
    """Return the one error that an exception group holds, at any depth; else the error itself.

    Args:
        error: a group, or any other error.
        first: take the first of several errors too, where one alone can be told.
    """
    while isinstance(error, BaseExceptionGroup) and (first or len(error.exceptions) == 1):
        error = error.exceptions[0]
    return error


def _kinds(root: type[StatusError] = StatusError) -> list[type[StatusError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _kinds(child))]


_KIND_BY_REASON = {reason: kind for kind in _kinds() for reason in kind.reasons}
_KIND_BY_CODE = {kind.default_code: kind for kind in reversed(_kinds()) if kind.default_code}
