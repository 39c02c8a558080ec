"""TLS contexts from a configuration, whose secrets stay out of the file system."""

import ssl
from typing import Final

from listwatch.client.config import Config
from listwatch.client.credentials import Certificate
from listwatch.errors import ConfigError
from listwatch.private_file import file_of

#: OpenSSL's reasons for a response that is not TLS.
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"}
)
#: The first bytes of a TLS server's response to plain HTTP, if it responds.
TLS_ALERT: Final = b"\x15\x03"
#: What else it may mean that plain HTTP gets no answer.
CLOSED_IN_CLEAR: Final = " without an answer; if it speaks TLS, its URL begins with https://"


def make_ssl_context(config: Config, certificate: Certificate | None) -> ssl.SSLContext:
    """Return a context with the configuration's trusted CAs and the client certificate.

    Raises:
        ConfigError: a certificate or key is invalid; the message says which.
    """
    where = config.source or config.server
    if config.insecure_skip_tls_verify:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = _verifying(config, where)
    # A certificate from a cluster's own CA need not follow the newest rules of the web (the key
    # usage of a self-signed CA), which Python 3.13 began to enforce.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if certificate is not None:
        _load(context, certificate, where)
    return context


def _verifying(config: Config, where: str) -> ssl.SSLContext:
    try:
        if config.certificate_authority_data:
            text = config.certificate_authority_data.decode("ascii")
            return ssl.create_default_context(cadata=text)
        return ssl.create_default_context(cafile=config.certificate_authority or None)
    except OSError as error:
        if isinstance(error, ssl.SSLError) or not config.certificate_authority:
            problem = "is not a PEM certificate"
        else:
            problem = f"can't be read: {error.strerror}"
    except (ValueError, UnicodeDecodeError):
        problem = "is not a PEM certificate"
    name = (
        "certificate-authority-data"
        if config.certificate_authority_data
        else f"certificate-authority {config.certificate_authority}"
    )
    raise ConfigError(f"{where}: {name} {problem}")


def _load(context: ssl.SSLContext, certificate: Certificate, where: str) -> None:
    pem = certificate.key.rstrip() + b"\n" + certificate.chain
    try:
        with file_of(pem) as path:
            context.load_cert_chain(path, password=_refuse_password)
    except _EncryptedKeyError:
        raise ConfigError(
            f"{where}: the client key is encrypted; decrypt it (openssl pkey -in KEY -out PLAIN)"
        ) from None
    except (ssl.SSLError, ValueError):
        raise ConfigError(
            f"{where}: the client certificate and key are not PEM or do not match"
        ) from None


def handshake_failure(error: Exception) -> str:
    """Return why a TLS handshake failed, as a message for users."""
    if isinstance(error, ssl.SSLCertVerificationError):
        words = getattr(error, "verify_message", "") or "it is not valid"
        return (
            f"the server's certificate is not trusted: {words}; check certificate-authority and "
            "tls-server-name"
        )
    reason = getattr(error, "reason", "") or str(error)
    if reason in _NO_TLS:
        return "the server at this port does not speak TLS; is the URL http://?"
    return f"no TLS: {reason}"


class _EncryptedKeyError(Exception):
    pass


def _refuse_password() -> str:
    raise _EncryptedKeyError
