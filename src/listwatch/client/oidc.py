"""An OIDC user of a kubeconfig: an ID token as bearer, renewed with its refresh token.

Like kubectl's `auth-provider: {name: oidc}` (client-go `plugin/pkg/client/auth/oidc/oidc.go`).
"""

import asyncio
import base64
import binascii
import json
import logging
import os
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from listwatch.client.config import Config, OIDCConfig, without_password
from listwatch.client.connections import Pool
from listwatch.client.credentials import Credentials, user_agent
from listwatch.client.kubeconfig import save_tokens
from listwatch.client.proxy import proxy_for
from listwatch.client.tls import make_ssl_context
from listwatch.clock import Clock
from listwatch.errors import ConfigError, DisconnectedError, FrameError

_log = logging.getLogger(__name__)

#: Seconds before its expiry at which an ID token is renewed.
_AHEAD: Final = 10.0
#: Time limit of each of the two requests to the issuer, in seconds.
_TIMEOUT: Final = 30.0
_MAX_ANSWER: Final = 2**20


class OIDCAuthenticator:
    """Sends the ID token, and requests another from the issuer before it expires.

    Concurrent requests share one renewal. For one event loop.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        if config.oidc is None:
            raise ValueError("the configuration has no OIDC user")
        self._config = config
        self._oidc: OIDCConfig = config.oidc
        self._id_token = config.oidc.id_token
        self._refresh_token = config.oidc.refresh_token
        self._clock = clock
        self._lock = asyncio.Lock()

    async def credentials(self) -> Credentials:
        """Return the ID token, renewed if it is due.

        Raises:
            ConfigError: it has expired and can't be renewed.
        """
        async with self._lock:
            end = _expiry(self._id_token) if self._id_token else 0.0
            if end is not None and self._clock.time() >= end - _AHEAD:
                await self._renew()
            return Credentials(f"Bearer {self._id_token}")

    async def renew(self, refused: Credentials) -> bool:
        """Request another ID token from the issuer, unless there is one already."""
        async with self._lock:
            if Credentials(f"Bearer {self._id_token}") == refused:
                if not self._refresh_token:
                    return False
                await self._renew()
            return Credentials(f"Bearer {self._id_token}") != refused

    def _error(self, words: str) -> ConfigError:
        issuer = without_password(self._oidc.issuer_url) or "(not set)"
        return ConfigError(f"the OIDC issuer {issuer} {words}")

    async def _renew(self) -> None:
        if not self._refresh_token or not self._oidc.issuer_url:
            raise ConfigError(
                f"{self._config.source}: the id token has expired, and there is no refresh-token "
                "and idp-issuer-url to renew it; log in again"
            )
        answer = await self._ask()
        token = answer.get("id_token")
        if not isinstance(token, str) or not token:
            raise self._error("returned no id_token; log in again")
        renewed = answer.get("refresh_token")
        refresh_token = renewed if isinstance(renewed, str) and renewed else self._refresh_token
        self._id_token, self._refresh_token = token, refresh_token
        if self._oidc.kubeconfig:
            try:
                await asyncio.to_thread(
                    save_tokens,
                    Path(self._oidc.kubeconfig),
                    self._oidc.user,
                    id_token=token,
                    refresh_token=refresh_token,
                )
            except ConfigError as error:
                _log.warning("the renewed tokens are not saved: %s", error)

    async def _ask(self) -> dict[str, Any]:
        oidc = self._oidc
        trust = Config(
            server=oidc.issuer_url,
            certificate_authority=oidc.certificate_authority,
            certificate_authority_data=oidc.certificate_authority_data,
            source=self._config.source,
        )
        context = make_ssl_context(trust, None)
        url = oidc.issuer_url.rstrip("/") + "/.well-known/openid-configuration"
        endpoint = (await self._json(context, "GET", url)).get("token_endpoint")
        if not isinstance(endpoint, str) or urlsplit(endpoint).scheme not in {"http", "https"}:
            raise self._error("names no token_endpoint")
        if url.startswith("https:") and not endpoint.startswith("https:"):
            raise self._error("names a token_endpoint without TLS")
        form = {"grant_type": "refresh_token", "refresh_token": self._refresh_token}
        pair = ":".join(
            quote(text, safe="", errors="surrogatepass")
            for text in (oidc.client_id, oidc.client_secret)
        )
        basic = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        # RFC 6749, 2.3.1: the client's password in the header, or in the body if the issuer accepts
        # it only there.
        answer = await self._json(context, "POST", endpoint, form, basic, tolerate=True)
        if "id_token" not in answer:
            form |= {"client_id": oidc.client_id, "client_secret": oidc.client_secret}
            answer = await self._json(context, "POST", endpoint, form)
        return answer

    async def _json(
        self,
        context: ssl.SSLContext,
        method: str,
        url: str,
        form: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        *,
        tolerate: bool = False,
    ) -> dict[str, Any]:
        sent = [*(headers or {}).items(), ("Accept", "application/json")]
        sent += [("Accept-Encoding", "identity"), ("User-Agent", user_agent(self._config))]
        content = None
        if form is not None:
            sent.append(("Content-Type", "application/x-www-form-urlencoded"))
            content = urlencode(form).encode()
        body = b""
        # The environment's proxy, as in client-go: the cluster's proxy-url leads only to the
        # cluster.
        proxy = proxy_for(Config(server=url), url, os.environ)
        pool = Pool(None, context, clock=self._clock, where=_host(url), proxy=proxy)
        try:
            async with (
                self._clock.timeout(_TIMEOUT),
                pool.request(method, url, sent, content) as response,
            ):
                while len(body) < _MAX_ANSWER and (pieces := await response.read_pieces()):
                    body += b"".join(pieces)
        except TimeoutError:
            raise self._error("does not answer in time") from None
        except (DisconnectedError, FrameError) as error:
            raise self._error(f"does not answer: {error}") from None
        except ValueError:
            raise self._error("does not answer: it has no usable URL") from None
        finally:
            await pool.close()
        try:
            answer = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            answer = {}
        if response.status >= 300:
            if tolerate and response.status in {400, 401}:
                return {}
            words = str(
                answer.get("error_description") or answer.get("error") or "without a reason"
            )
            for secret in (self._refresh_token, self._oidc.client_secret, self._id_token):
                if secret:
                    words = words.replace(secret, "<hidden>")
            words = " ".join(words.split())[:300]
            raise self._error(f"refuses ({response.status}): {words}; log in again")
        return answer


def _host(url: str) -> str:
    """Return the host part of a URL, which contains no secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _expiry(token: str) -> float | None:
    """Return the `exp` of a JWT, in seconds since 1970; None if it has none."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    try:
        return float(end) if isinstance(end, int | float) else None
    except OverflowError:
        return None  # a number beyond any clock
