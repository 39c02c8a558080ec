"""Who sends a request: the source of its credentials, and whom it impersonates."""

from urllib.parse import quote

from listwatch.client.config import Config, Impersonation
from listwatch.client.credentials import (
    Authenticator,
    Certificate,
    ConfiguredAuthenticator,
    Credentials,
    FileReader,
)
from listwatch.clock import Clock
from listwatch.errors import ConfigError

__all__ = [
    "Authenticator",
    "Certificate",
    "ConfiguredAuthenticator",
    "Credentials",
    "FileReader",
    "impersonation_headers",
    "make_authenticator",
]


def impersonation_headers(who: Impersonation) -> list[tuple[str, str]]:
    """Return the headers for impersonation.

    Keys of `extra` are percent-encoded, as in client-go's `transport/round_trippers.go`.

    Raises:
        ConfigError: groups, a uid or extras without a user.
    """
    if not who.user:
        if who.groups or who.uid or who.extra:
            raise ConfigError("as-groups, as-uid and as-user-extra need `as`: set the user too")
        return []
    headers = [("Impersonate-User", who.user)]
    if who.uid:
        headers.append(("Impersonate-Uid", who.uid))
    headers += [("Impersonate-Group", group) for group in who.groups]
    for key, values in who.extra.items():
        name = f"Impersonate-Extra-{quote(key.lower(), safe='!#$&*+^_`|~')}"
        headers += [(name, value) for value in values]
    return headers


def make_authenticator(config: Config, clock: Clock) -> Authenticator:
    """Return the source of credentials for a configuration.

    A token, a password or a certificate in the configuration precedes a plugin, as in client-go's
    `plugin/pkg/client/auth/exec/exec.go`.

    Raises:
        ConfigError: the configuration contradicts itself.
    """
    if config.token or config.token_file or config.username:
        return ConfiguredAuthenticator(config)
    has_certificate = config.client_certificate or config.client_certificate_data
    if config.exec is not None and not has_certificate:
        from listwatch.client.exec_plugin import ExecAuthenticator  # noqa: PLC0415 - rarely needed

        return ExecAuthenticator(config, clock)
    if config.oidc is not None:
        from listwatch.client.oidc import OIDCAuthenticator  # noqa: PLC0415 - rarely needed

        return OIDCAuthenticator(config, clock)
    return ConfiguredAuthenticator(config)
