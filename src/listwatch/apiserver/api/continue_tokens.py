"""The continue tokens of lists."""

import base64
import string

import msgspec

from listwatch.apiserver import refusal
from listwatch.errors import StatusError
from listwatch.schema.parsing import parse_json

#: In a token instead of a revision: continue with the current objects.
INCONSISTENT = -1


class ExpiredTokenError(Exception):
    """A continue token is too old; `token` continues without consistency."""

    def __init__(self, status: StatusError, token: str) -> None:
        super().__init__(str(status))
        self.status = status
        self.token = token


TOO_OLD_WORDS = (
    "The provided continue parameter is too old to display a consistent list result. You can "
    "start a new list without the continue parameter, or use the continue token in this response "
    "to retrieve the remainder of the results. Continuing with the provided token results in an "
    "inconsistent list - objects that were created, modified, or deleted between the time the "
    "first chunk was returned and now may show up in the list."
)


class _Token(msgspec.Struct):
    v: str
    rv: int = 0
    start: str = ""


_TOKEN_LETTERS = frozenset(string.ascii_letters + string.digits + "-_")


def write_token(revision: int, last: str) -> str:
    """Return a token that continues after a key, at a revision or (INCONSISTENT) the newest."""
    token = _Token("meta.k8s.io/v1", revision, last + "\0")
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def read_token(text: str) -> tuple[int, str]:
    """Return the revision of a token, and the first key to list.

    Raises:
        BadRequestError: 400, the token is invalid.
    """
    bad = next((at for at, char in enumerate(text) if char not in _TOKEN_LETTERS), None)
    if bad is None and len(text) % 4 == 1:
        bad = len(text) - 1
    if bad is not None:
        raise refusal.bad_request(
            f"continue key is not valid: illegal base64 data at input byte {bad}"
        )
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        # decode each byte as the character with its code
        token = msgspec.convert(parse_json(data.decode("latin-1").encode()), _Token)
    except (ValueError, msgspec.ValidationError) as error:
        raise refusal.bad_request(f"continue key is not valid: {error}") from None
    if token.v != "meta.k8s.io/v1":
        raise refusal.bad_request(
            f'continue key is not valid: server does not recognize this encoded version "{token.v}"'
        )
    if token.rv == 0:
        raise refusal.bad_request(
            "continue key is not valid: incorrect encoded start resourceVersion (version "
            "meta.k8s.io/v1)"
        )
    if not token.start:
        raise refusal.bad_request(
            "continue key is not valid: encoded start key empty (version meta.k8s.io/v1)"
        )
    return token.rv, token.start
