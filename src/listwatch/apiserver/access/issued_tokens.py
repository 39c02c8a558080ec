"""Service account tokens that TokenRequest issues and this server accepts."""

import base64
import hashlib
import hmac
import secrets
from typing import Any

import msgspec

from listwatch.apiserver.storage.store import Storage
from listwatch.apiserver.user import User
from listwatch.clock import Clock

#: The audience of a token that names none: this server.
AUDIENCE = "https://kubernetes.default.svc.cluster.local"
_HEADER = {"alg": "HS256", "typ": "JWT"}


class Bound(msgspec.Struct, frozen=True):
    """The object that a token is bound to; `bucket` and `key` locate it in the store."""

    bucket: str
    key: str
    uid: str


class _Claims(msgspec.Struct, frozen=True):
    """A token's claims."""

    iss: str
    sub: str
    aud: list[str]
    iat: int
    exp: int
    namespace: str
    account: str
    uid: str
    bound: Bound | None = None


class IssuedTokens:
    """Issues tokens and verifies them, as long as their objects exist.

    Does not store tokens: it signs them with a key created for each server. For one event loop.
    """

    def __init__(self, store: Storage, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._key = secrets.token_bytes(32)

    def issue(
        self,
        namespace: str,
        account: str,
        uid: str,
        *,
        audiences: list[str],
        seconds: int,
        bound: Bound | None = None,
    ) -> str:
        """Return a token for a service account.

        Args:
            namespace: of the account.
            account: its name.
            uid: its uid; a later account of that name has another.
            audiences: who may accept the token.
            seconds: its lifetime.
            bound: the object that it is bound to, if any.
        """
        now = int(self._clock.time())
        claims = _Claims(
            AUDIENCE,
            f"system:serviceaccount:{namespace}:{account}",
            audiences,
            now,
            now + seconds,
            namespace,
            account,
            uid,
            bound,
        )
        signed = f"{_part(_HEADER)}.{_part(claims)}"
        return f"{signed}.{self._signature(signed)}"

    def user_of(self, token: str) -> User | None:
        """Return a token's user; None if it is not ours, has expired, or its account is deleted."""
        signed, _, signature = token.rpartition(".")
        if not hmac.compare_digest(
            self._signature(signed).encode(), signature.encode(errors="surrogateescape")
        ):
            return None
        body = signed.partition(".")[2]
        claims = msgspec.json.decode(
            base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=_Claims
        )
        key = f"{claims.namespace}/{claims.account}"
        lives = self._is_there(Bound("serviceaccounts", key, claims.uid))
        if claims.bound is not None:
            lives = lives and self._is_there(claims.bound)
        if not lives or AUDIENCE not in claims.aud or claims.exp <= self._clock.time():
            return None
        groups = (
            "system:serviceaccounts",
            f"system:serviceaccounts:{claims.namespace}",
            "system:authenticated",
        )
        return User(claims.sub, groups, claims.uid)

    def _is_there(self, what: Bound) -> bool:
        entry = self._store.bucket(what.bucket).entries.get(what.key)
        return entry is not None and entry.uid == what.uid

    def _signature(self, signed: str) -> str:
        digest = hmac.new(self._key, signed.encode(errors="surrogateescape"), hashlib.sha256)
        return base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")
