"""The server to connect to, and the identity to use."""

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

from listwatch.errors import ConfigError

_HIDDEN: Final = "<hidden>"
_CREDENTIALS: Final = (
    *("token", "token_file", "username", "password", "exec", "oidc"),
    *("client_certificate", "client_certificate_data", "client_key", "client_key_data"),
)
_SECRETS: Final = frozenset({"token", "password", "client_key_data", "proxy_url"})


def without_password(url: str) -> str:
    """Return a URL, valid or not, without its secrets."""
    text, mark, _ = url.partition("?")
    shown = f"{text}?{_HIDDEN}" if mark else text
    before, at, host = shown.rpartition("@")
    scheme = f"{before.partition('://')[0]}://" if "://" in before else ""
    return f"{scheme}{_HIDDEN}@{host}" if at else shown


class ExecConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A credential plugin, as `users[].user.exec` of a kubeconfig (KEP-541).

    Attributes:
        command: a name to look up in PATH, or a path.
        api_version: "client.authentication.k8s.io/v1" or ".../v1beta1".
        env: set in addition to this process's environment.
        install_hint: shown if the command is missing.
        provide_cluster_info: pass the cluster to the plugin.
        interactive_mode: "Never", "IfAvailable" or "Always".
        config: the cluster's extension `client.authentication.k8s.io/exec`, passed on unchanged.
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
        # Arguments and environment may contain secrets.
        return f"ExecConfig(command={self.command!r}, api_version={self.api_version!r})"


class OIDCConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An `auth-provider` named "oidc", whose refresh token renews its ID token.

    Attributes:
        issuer_url: the issuer; its `/.well-known/openid-configuration` names the token endpoint.
        certificate_authority: a PEM file, or `certificate_authority_data` PEM bytes, to trust for
            the issuer instead of the system's.
        kubeconfig: the file to write new tokens to, because an issuer may accept a refresh token
            only once; empty for none.
        user: name of the user's entry in that file.
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
    """The user to impersonate: the kubeconfig's `as`, `as-uid`, `as-groups`, `as-user-extra`."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The server to connect to and the identity to use; `load_config` loads kubectl's.

    Its `repr` hides secrets. Certificates and keys are PEM, in a file or as data; data takes
    precedence.

    Attributes:
        server: the URL, with a path if the API is below one.
        namespace: default namespace of single objects.
        certificate_authority: CA to trust for the server's certificate; the system's CAs if neither
            this nor `certificate_authority_data` is set.
        insecure_skip_tls_verify: accept any server certificate.
        tls_server_name: the name that the server's certificate must have, if not the URL's host.
        proxy_url: http, https or socks5.
        disable_compression: do not request gzip. It is never requested on loopback.
        token: a bearer token; `token_file` contains one that may change, and takes precedence if
            readable.
        username: for basic authentication, with `password`.
        user_agent: a name and version to send; listwatch's own if empty.
        qps: this client's own limit of requests per second, after a `burst`; 0 for no limit.
        request_timeout: seconds for one request with its whole response, 0 for no limit; streams
            (long lists and watches) have other limits.
        source: origin of the configuration, for messages.
        tls_only: send credentials only over TLS, as kubectl does with those of a kubeconfig;
            otherwise also over plain HTTP to loopback, never to other hosts.
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
    tls_only: bool = False

    def shown(self) -> dict[str, object]:
        """Return the settings, with secrets hidden."""
        shown: dict[str, object] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value in ("", b"", None, False) or value == Impersonation():
                continue
            if name == "tls_only" or (name == "burst" and not self.qps):
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


def base_url(config: Config) -> tuple[str, str]:
    """Return the server's URL without trailing slash, and the path of its socket, if any.

    `unix:///PATH` means plain HTTP over a unix socket.

    Raises:
        ConfigError: it is not a server URL.
    """
    text = config.server
    if text.startswith("unix:///"):
        return "http://localhost", text.removeprefix("unix://")
    if "://" not in text:  # as client-go's rest.DefaultServerURL
        uses_tls = (
            config.certificate_authority
            or config.certificate_authority_data
            or config.client_certificate
            or config.client_certificate_data
            or config.insecure_skip_tls_verify
        )
        text = f"{'https' if uses_tls else 'http'}://{text}"
    where = config.source or "the configuration"
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        valid = bool(host) and parts.port != 0 and text.isprintable() and " " not in text
        host.encode("ascii" if ":" in host else "idna")  # a name's encoding has limits
    except ValueError:
        parts, valid = urlsplit(""), False
    if not valid or parts.scheme not in {"http", "https"}:
        raise ConfigError(
            f"{where}: the server {without_password(text)!r} is not a URL of the form https://HOST:PORT"
        )
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(f"{where}: the server's URL must have no user, query or fragment")
    netloc = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    base = f"{parts.scheme}://{netloc}{quote(parts.path.rstrip('/'), safe='/%')}"
    return base, ""


def is_loopback(url: str) -> bool:
    """Return whether a URL leads to this machine only, by address or as localhost."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def in_clear(config: Config) -> bool:
    """Return whether requests to the server are unencrypted."""
    url, unix_socket = base_url(config)
    return url.startswith("http:") and not unix_socket


def without_credentials(config: Config) -> Config:
    """Return the configuration without credentials, but with the impersonation."""
    nobody = Config(server=config.server)
    return msgspec.structs.replace(config, **{name: getattr(nobody, name) for name in _CREDENTIALS})
