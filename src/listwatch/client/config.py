"""How to reach an API server, and as whom."""

from collections.abc import Mapping
from typing import Final

import msgspec

from listwatch.errors import ConfigError

_HIDDEN: Final = "<hidden>"
_SECRETS: Final = frozenset({"token", "password", "client_key_data", "proxy_url"})


def without_password(url: str) -> str:
    """Return a URL, or what should have been one, without what may be secret in it."""
    text, mark, _ = url.partition("?")
    shown = f"{text}?{_HIDDEN}" if mark else text
    before, at, host = shown.rpartition("@")
    scheme = f"{before.partition('://')[0]}://" if "://" in before else ""
    return f"{scheme}{_HIDDEN}@{host}" if at else shown


class ExecConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A credential plugin, as `users[].user.exec` of a kubeconfig (KEP-541).

    Attributes:
        command: a name that is looked up in PATH, or a path.
        api_version: "client.authentication.k8s.io/v1" or ".../v1beta1".
        env: set in addition to this process's environment.
        install_hint: what to tell when the command is missing.
        provide_cluster_info: tell the plugin of the cluster.
        interactive_mode: "Never", "IfAvailable" or "Always".
        config: the cluster's extension `client.authentication.k8s.io/exec`, handed on as it is.
    """

    command: str
    api_version: str = "client.authentication.k8s.io/v1"
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"
    config: object = None

    def __repr__(self) -> str:
        # Arguments and environment may hold secrets.
        return f"ExecConfig(command={self.command!r}, api_version={self.api_version!r})"


class OIDCConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An `auth-provider` of the name "oidc", whose id token is renewed by its refresh token.

    Attributes:
        issuer_url: whose `/.well-known/openid-configuration` names the token endpoint.
        certificate_authority: a PEM file, and `certificate_authority_data` PEM bytes, to trust
            for the issuer in place of the system's.
        kubeconfig: the file that new tokens are written to, since an issuer may let a refresh
            token be used only once; empty for none.
        user: the name of the file's entry.
    """

    issuer_url: str = ""
    client_id: str = ""
    client_secret: str = ""
    id_token: str = ""
    refresh_token: str = ""
    certificate_authority: str = ""
    certificate_authority_data: bytes = b""
    kubeconfig: str = ""
    user: str = ""

    def __repr__(self) -> str:
        issuer = without_password(self.issuer_url)
        return f"OIDCConfig(issuer_url={issuer!r}, client_id={self.client_id!r})"


class Impersonation(msgspec.Struct, frozen=True, kw_only=True):
    """As whom to act: the kubeconfig's `as`, `as-uid`, `as-groups` and `as-user-extra`."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach an API server, and as whom; `load_config` makes one as kubectl would.

    Its `repr` shows no secret. Certificates and keys are PEM, by a file or as data, of which the
    data counts when both are given.

    Attributes:
        server: the URL, with a path if the API lives under one.
        namespace: the default for single objects.
        certificate_authority: whom to trust as issuer of the server's certificate; the system's
            issuers if neither this nor `certificate_authority_data` is set.
        insecure_skip_tls_verify: trust any server.
        tls_server_name: the name that the server's certificate must have, if not the URL's host.
        proxy_url: http, https or socks5.
        disable_compression: do not ask for gzip. It is never asked for on loopback.
        token: a bearer token; `token_file` holds one that may change, and wins when it can be
            read.
        username: with `password`, for basic authentication.
        user_agent: a name and version to send; listwatch's own if empty.
        qps: requests a second that this client allows itself, 0 for no limit, after a `burst`.
        request_timeout: seconds that one request may take with its whole answer, 0 for no such
            limit; streams (long lists and watches) have other limits.
        source: where this came from, for messages.
    """

    server: str
    namespace: str = "default"
    certificate_authority: str = ""
    certificate_authority_data: bytes = b""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    token: str = ""
    token_file: str = ""
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: bytes = b""
    client_key: str = ""
    client_key_data: bytes = b""
    exec: ExecConfig | None = None
    oidc: OIDCConfig | None = None
    impersonate: Impersonation = Impersonation()
    user_agent: str = ""
    qps: float = 0.0
    burst: int = 10
    request_timeout: float = 0.0
    source: str = ""

    def shown(self) -> dict[str, object]:
        """Return what is set, secrets hidden."""
        shown: dict[str, object] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value in ("", b"", None, False) or value == Impersonation():
                continue
            if name == "burst" and not self.qps:
                continue
            if name in _SECRETS:
                value = _HIDDEN
            elif name == "server":
                value = without_password(value)
            elif isinstance(value, bytes):
                value = f"<{len(value)} bytes>"
            shown[name] = value
        return shown

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"

    def __post_init__(self) -> None:
        if not self.server:
            raise ConfigError(f"{self.source or 'the configuration'}: no server is set")
