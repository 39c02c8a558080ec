"""One TLS handshake with a webhook, as an API server makes it, and in words why it fails."""

import asyncio
import socket
import ssl
from typing import Final

from listwatch.clock import Clock
from listwatch.webhooks.certificates import (
    CertificateError,
    certificate_facts,
    utc,
)

#: Seconds for a connection with its handshake, the API server's own limit.
SECONDS: Final = 10.0
#: OpenSSL's codes (X509_V_ERR_…) of certificates of another time, name or authority.
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME: Final = frozenset({62, 64})


async def shake_hands(host: str, port: int, name: str, bundle: bytes, *, clock: Clock) -> float:
    """Connect, verify the certificate, and return when it expires, in seconds since 1970.

    Args:
        host: to connect to.
        port: to connect to.
        name: that the certificate must have.
        bundle: authorities in PEM; empty for the system's.
        clock: the time.

    Raises:
        HandshakeError: it failed; the message says why, and what to do.
    """
    context = ssl.create_default_context(cadata=bundle.decode() if bundle else None)
    # As Go verifies: any certificate in the bundle is a root, however it was made.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    try:
        certificate = await _connect(host, port, name, context, clock)
    except ssl.SSLCertVerificationError as error:
        words = await _certificate_words(error, host, port, name, clock)
        raise HandshakeError(words) from None
    return certificate_facts(certificate).not_after


class HandshakeError(Exception):
    """A handshake failed; the message says why, and what to do."""


async def _connect(host: str, port: int, name: str, context: ssl.SSLContext, clock: Clock) -> bytes:
    """Return the peer's certificate in DER."""
    try:
        async with clock.timeout(SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    except TimeoutError:
        raise HandshakeError(
            f"{host}:{port} does not answer within {SECONDS:g} s: is a firewall or network policy "
            "in between?"
        ) from None
    except ssl.SSLCertVerificationError:
        raise
    except ssl.SSLError as error:
        reason = (error.reason or "").lower().replace("_", " ")
        raise HandshakeError(
            f"{host}:{port} does not speak TLS: {reason}"
            if reason in {"wrong version number", "http request"}
            else f"{host}:{port} ends the handshake: {reason or error}; has it a certificate yet?"
        ) from None
    except socket.gaierror:
        raise HandshakeError(f"the name {host} is unknown here") from None
    except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
        raise HandshakeError(
            f"{host}:{port} ends the handshake: has it a certificate yet?"
        ) from None
    except OSError as error:
        why = error.strerror or str(error)
        if isinstance(error, ConnectionRefusedError) or "Connect call failed" in why:
            why = "connection refused"
        raise HandshakeError(
            f"{host}:{port} is unreachable: {why}; does the program run?"
        ) from None
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return bytes(found)


async def _certificate_words(
    error: ssl.SSLCertVerificationError, host: str, port: int, name: str, clock: Clock
) -> str:
    """Say what is wrong with a certificate, with its own words."""
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    try:
        found = certificate_facts(await _connect(host, port, name, unchecked, clock))
    except (HandshakeError, CertificateError) as again:
        return f"the certificate is refused: {error.verify_message}; {again}"
    if error.verify_code == _EXPIRED:
        return f"the certificate expired at {utc(found.not_after)}: renew it"
    if error.verify_code == _NOT_YET:
        return f"the certificate is valid only from {utc(found.not_before)}: are the clocks right?"
    if error.verify_code in _OTHER_NAME:
        names = ", ".join(found.names) or "no name at all"
        return f"the certificate is for {names}, not for {name}: issue one for that name"
    return (
        f"no authority in caBundle signed the certificate ({error.verify_message}): put the "
        "authority of the running server into caBundle"
    )
