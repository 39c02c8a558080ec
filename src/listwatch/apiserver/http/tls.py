"""The server's certificates: from files, or from a CA created for it."""

import base64
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from listwatch.errors import ConfigError


class TLS(msgspec.Struct, frozen=True):
    """The encryption of connections, and what clients need for them.

    Attributes:
        context: for the server's connections.
        authority: the CA certificate, in PEM, with which clients verify the server; "" if they
            already trust it.
        client_certificate: for the kubeconfig, in PEM; "" for none.
        client_key: of that certificate.
        issue: makes new connections use another certificate, expired if requested; None if the CA's
            key is unavailable.
    """

    context: ssl.SSLContext
    authority: str = ""
    client_certificate: str = ""
    client_key: str = ""
    issue: Callable[[bool], None] | None = None

    def cluster_fields(self) -> dict[str, str]:
        """Return a kubeconfig's fields for the server."""
        return {"certificate-authority-data": _data(self.authority)} if self.authority else {}

    def user_fields(self) -> dict[str, str]:
        """Return a kubeconfig's fields for the user."""
        if not self.client_certificate:
            return {}
        return {
            "client-certificate-data": _data(self.client_certificate),
            "client-key-data": _data(self.client_key),
        }


def _data(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def tls_from_files(certificate: Path, key: Path, client_authority: Path | None = None) -> TLS:
    """Use certificates from files, like kube-apiserver's `--tls-cert-file`.

    Args:
        certificate: the server's, in PEM, with its chain.
        key: the server's private key.
        client_authority: the CA whose certificates authenticate clients: the common name is the
            user, organizations are groups.

    Raises:
        ConfigError: a file is invalid; the message names it.
    """
    context = _server_context()
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{certificate} and {key} can't be used: {error}") from None
    if client_authority is not None:
        try:
            context.load_verify_locations(client_authority)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{client_authority} can't be used: {error}") from None
        context.verify_mode = ssl.CERT_OPTIONAL
    return TLS(context, certificate.read_text())


def generated_tls(host: str) -> TLS:
    """Create a CA, the server's certificate and one for an administrator.

    Raises:
        ConfigError: the extra `tls` is not installed.
    """
    try:
        import trustme  # noqa: PLC0415 - an extra, slow to load
    except ImportError:
        raise ConfigError(
            "certificates are made with trustme, which is not here: pip install 'listwatch[tls]', "
            "or name files of your own"
        ) from None
    authority = trustme.CA(organization_name="listwatch")
    context = _server_context()

    def issue(expired: bool) -> None:  # noqa: FBT001 - clear without a keyword
        end = datetime.now(UTC) - timedelta(days=1) if expired else None
        names = dict.fromkeys((host, "localhost", "127.0.0.1"))
        authority.issue_cert(*names, not_after=end).configure_cert(context)

    issue(False)
    admin = authority.issue_cert(common_name="kubernetes-admin", organization_name="system:masters")
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    return TLS(
        context,
        authority.cert_pem.bytes().decode(),
        "".join(blob.bytes().decode() for blob in admin.cert_chain_pems),
        admin.private_key_pem.bytes().decode(),
        issue,
    )
