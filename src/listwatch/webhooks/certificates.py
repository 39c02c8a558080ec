"""Certificates for webhooks: making them, and reading those of others.

Each certificate has its own authority, whose key signs it and is then forgotten: nothing in the
cluster can sign another one.
"""

import ipaddress
import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from listwatch.errors import ConfigError, ListWatchError

if TYPE_CHECKING:
    from cryptography import x509

#: Seconds for which a certificate is valid.
LIFETIME: Final = 90 * 24 * 3600.0
#: Seconds by which it is valid earlier, for servers whose clocks are behind.
EARLIER: Final = 3600.0
_ORGANIZATION: Final = "listwatch webhooks"
_PEM_END: Final = b"-----END CERTIFICATE-----"


class CertificateError(ListWatchError):
    """A certificate can't be read; the message says what is wrong."""


class Authority(msgspec.Struct, frozen=True):
    """A certificate that verifies others.

    Attributes:
        pem: the certificate.
        not_after: when it expires, in seconds since 1970.
        ours: `make_certificate` made it.
    """

    pem: bytes
    not_after: float
    ours: bool = True


class ServingCertificate(msgspec.Struct, frozen=True):
    """A server's certificate; its `repr` hides the key.

    Attributes:
        certificate: PEM, with its chain.
        key: its private key, PEM.
        authority: verifies it.
        names: the host names and addresses that it is for.
        not_before: when its time begins, in seconds since 1970.
        not_after: when it expires, in seconds since 1970.
    """

    certificate: bytes
    key: bytes
    authority: Authority
    names: tuple[str, ...]
    not_before: float
    not_after: float

    def __repr__(self) -> str:
        return f"<ServingCertificate {', '.join(self.names)} until {utc(self.not_after)}>"


def utc(seconds: float) -> str:
    """Return a time as RFC 3339 text."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_certificate(
    names: Sequence[str], now: float, lifetime: float = LIFETIME
) -> ServingCertificate:
    """Return a new certificate with its own authority.

    Args:
        names: host names and IP addresses of the server.
        now: the time in seconds since 1970.
        lifetime: seconds from now until it expires.

    Raises:
        ConfigError: the extra `webhooks` is not installed.
    """
    need_cryptography()
    from cryptography import x509  # noqa: PLC0415 - an extra, slow to load
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - as above
    from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415 - as above

    begins = datetime.fromtimestamp(now - EARLIER, UTC)
    ends = datetime.fromtimestamp(now + lifetime, UTC)
    # Each authority has its own name: a verifier that finds several tries the one that signed.
    issuer = _name(f"authority {secrets.token_hex(8)}")
    signing_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def build(subject: "x509.Name", public_key: Any) -> "x509.CertificateBuilder":
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(identifier, critical=False)
        )

    authority = (
        build(issuer, signing_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(signing_key, hashes.SHA256())
    )
    certificate = (
        build(_name("server"), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(map(_general_name, names)), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return read_certificate(certificate.public_bytes(pem), private, authority.public_bytes(pem))


def read_certificate(certificate: bytes, key: bytes, authority: bytes) -> ServingCertificate:
    """Return a certificate from PEM.

    Args:
        certificate: with its chain.
        key: its private key.
        authority: verifies it; empty if unknown.

    Raises:
        CertificateError: something is no PEM, or the key is of another certificate.
        ConfigError: the extra `webhooks` is not installed.
    """
    found = _certificates(certificate)
    if not found:
        raise CertificateError("there is no certificate in it")
    first = found[0]
    _check_key(first, key)
    authorities = read_authorities(authority)
    facts = _facts(first)
    return ServingCertificate(
        certificate,
        key,
        authorities[0] if authorities else Authority(b"", 0.0, ours=False),
        facts.names,
        facts.not_before,
        facts.not_after,
    )


def read_authorities(bundle: bytes) -> tuple[Authority, ...]:
    """Return the certificates of a bundle, without repetitions.

    Raises:
        CertificateError: something is no PEM.
        ConfigError: the extra `webhooks` is not installed.
    """
    need_cryptography()
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - an extra

    made = [
        Authority(
            found.public_bytes(Encoding.PEM),
            found.not_valid_after_utc.timestamp(),
            f"O={_ORGANIZATION}" in found.subject.rfc4514_string().split(","),
        )
        for found in _certificates(bundle)
    ]
    return tuple(dict.fromkeys(made))


class CertificateFacts(msgspec.Struct, frozen=True):
    """What a certificate says.

    Attributes:
        names: the host names and addresses that it is for.
        not_before: when its time begins, in seconds since 1970.
        not_after: when it expires, in seconds since 1970.
    """

    names: tuple[str, ...]
    not_before: float
    not_after: float


def certificate_facts(der: bytes) -> CertificateFacts:
    """Return what a certificate in DER says.

    Raises:
        CertificateError: it is none.
        ConfigError: the extra `webhooks` is not installed.
    """
    need_cryptography()
    from cryptography import x509  # noqa: PLC0415 - an extra, slow to load

    try:
        return _facts(x509.load_der_x509_certificate(der))
    except ValueError as error:
        raise CertificateError(f"it is no certificate: {error}") from None


def _facts(certificate: "x509.Certificate") -> CertificateFacts:
    return CertificateFacts(
        tuple(_names(certificate)),
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
    )


def as_bundle(authorities: Iterable[Authority]) -> bytes:
    """Return authorities as PEM."""
    return b"".join(authority.pem for authority in authorities)


def _certificates(pem: bytes) -> "list[x509.Certificate]":
    need_cryptography()
    from cryptography import x509  # noqa: PLC0415 - an extra, slow to load

    if _PEM_END not in pem:
        if pem.strip():
            raise CertificateError("it is no PEM")
        return []
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError(f"it is no certificate: {error}") from None


def _check_key(certificate: "x509.Certificate", key: bytes) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as above

    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CertificateError("its key is no unencrypted private key in PEM") from None
    if private.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise CertificateError("its key is of another certificate")


def need_cryptography() -> None:
    """Raise a ConfigError if the extra `webhooks` is not installed."""
    try:
        import cryptography  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise ConfigError(
            "webhooks require cryptography for their certificates: "
            "run pip install 'listwatch[webhooks]'"
        ) from None


def _name(text: str) -> "x509.Name":
    from cryptography import x509  # noqa: PLC0415 - an extra, slow to load
    from cryptography.x509.oid import NameOID  # noqa: PLC0415 - as above

    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, text),
        ]
    )


def _usage(*, signs: bool) -> "x509.KeyUsage":
    from cryptography import x509  # noqa: PLC0415 - an extra, slow to load

    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> "x509.GeneralName":
    from cryptography import x509  # noqa: PLC0415 - an extra, slow to load

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: "x509.Certificate") -> Iterable[str]:
    from cryptography import x509  # noqa: PLC0415 - an extra, slow to load

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = map(str, found.get_values_for_type(x509.IPAddress))
    return [*found.get_values_for_type(x509.DNSName), *addresses]
