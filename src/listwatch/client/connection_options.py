"""kubectl's global flags: server and identity, for every command that talks to a server."""

import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from listwatch.client.durations import seconds_of
from listwatch.errors import ConfigError

if TYPE_CHECKING:
    from listwatch.client.config import Config

_EVERYTHING: Final = 4
_FORMAT: Final = "%(levelname)s %(name)s: %(message)s"

Command = TypeVar("Command", bound=Callable[..., None])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Values of a command's global flags, by name. An absent flag is None or ().

    Attributes:
        request_timeout: seconds; 0 means no limit.
        verbosity: 0 logs warnings, 1 to 3 also info, 4 and above also debug messages.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    cluster: str | None = None
    user: str | None = None
    server: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    certificate_authority: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    as_user: str | None = None
    as_group: tuple[str, ...] = ()
    as_uid: str | None = None
    request_timeout: float = 0.0
    verbosity: int = 0

    @property
    def log_level(self) -> str:
        """Minimum level to log."""
        if self.verbosity >= _EVERYTHING:
            return "DEBUG"
        return "INFO" if self.verbosity else "WARNING"

    @property
    def is_given(self) -> bool:
        """Whether a flag selects the server or the identity."""
        return dataclasses.replace(self, verbosity=0, request_timeout=0.0) != ConnectionOptions()

    def config(self, namespace: str | None = None) -> "Config":
        """Return the configuration that kubectl would use with these flags.

        Args:
            namespace: overrides the context's namespace.

        Raises:
            ConfigError: the configuration is missing or invalid.
        """
        import msgspec  # noqa: PLC0415 - not needed for the help

        from listwatch.client.config import Config, Impersonation  # noqa: PLC0415 - as above
        from listwatch.client.kubeconfig import load_config  # noqa: PLC0415 - as above

        if self.as_user is None and (self.as_group or self.as_uid):
            raise ConfigError("--as-group and --as-uid need --as USER")
        try:
            config = load_config(
                self.kubeconfig,
                context=self.context,
                cluster=self.cluster,
                user=self.user,
                namespace=namespace,
            )
        except ConfigError:
            named = self.kubeconfig or self.context or self.cluster or self.user
            if self.server is None or named:
                raise
            config = Config(server=self.server, namespace=namespace or "default", source="--server")
        changes: dict[str, Any] = {"request_timeout": self.request_timeout}
        if self.server is not None:
            changes |= {"server": self.server, "tls_only": not self.server.startswith("https:")}
        if self.tls_server_name is not None:
            changes["tls_server_name"] = self.tls_server_name
        changes |= self._trust() | self._identity()
        if self.as_user is not None:
            changes["impersonate"] = Impersonation(
                user=self.as_user, uid=self.as_uid or "", groups=self.as_group
            )
        return msgspec.structs.replace(config, **changes)

    def _trust(self) -> dict[str, Any]:
        """Return the trust settings. A flag replaces all of the file's."""
        if not (self.certificate_authority or self.insecure_skip_tls_verify):
            return {}
        return {
            "insecure_skip_tls_verify": self.insecure_skip_tls_verify,
            "certificate_authority": str(self.certificate_authority or ""),
            "certificate_authority_data": b"",
        }

    def _identity(self) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if self.token is not None:  # a token replaces every other kind of credential
            changes |= dict.fromkeys(("token_file", "username", "password"), "")
            changes |= {"token": self.token, "exec": None, "oidc": None}
        for name, file in (
            ("client_certificate", self.client_certificate),
            ("client_key", self.client_key),
        ):
            if file is not None:
                changes |= {name: str(file), f"{name}_data": b""}
        return changes


class Duration(click.ParamType[float]):
    """A kubectl duration, converted to seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the duration in seconds."""
        if isinstance(value, float):
            return value
        try:
            return seconds_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_FILE: Final = click.Path(dir_okay=False, path_type=Path)
_OPTIONS: Final = (
    click.option(
        "--kubeconfig",
        type=_FILE,
        metavar="FILE",
        help="Kubeconfig to use instead of KUBECONFIG and ~/.kube/config.",
    ),
    click.option("--context", metavar="NAME", help="Kubeconfig context to use."),
    click.option("--cluster", metavar="NAME", help="Kubeconfig cluster to use."),
    click.option("--user", metavar="NAME", help="Kubeconfig user to use."),
    click.option("-s", "--server", metavar="URL", help="Address of the API server."),
    click.option(
        "--token",
        metavar="TOKEN",
        help="Bearer token. Other users of this machine can see it in the process list.",
    ),
    click.option(
        "--certificate-authority",
        type=_FILE,
        metavar="FILE",
        help="CA certificate to verify the server.",
    ),
    click.option(
        "--client-certificate", type=_FILE, metavar="FILE", help="Client certificate for TLS."
    ),
    click.option(
        "--client-key", type=_FILE, metavar="FILE", help="Private key of the client certificate."
    ),
    click.option(
        "--insecure-skip-tls-verify",
        is_flag=True,
        help="Do not verify the server's certificate. Insecure.",
    ),
    click.option(
        "--tls-server-name", metavar="NAME", help="Name to expect in the server's certificate."
    ),
    click.option("--as", "as_user", metavar="USER", help="User to impersonate."),
    click.option(
        "--as-group", multiple=True, metavar="GROUP", help="Group to impersonate; may be repeated."
    ),
    click.option("--as-uid", metavar="UID", help="UID to impersonate."),
    click.option(
        "--request-timeout",
        type=Duration(),
        default=0.0,
        metavar="DURATION",
        help="Time limit of one request, such as 30s; does not apply to watches.",
    ),
    click.option(
        "-v",
        "--v",
        "verbosity",
        type=click.IntRange(0, 10),
        default=0,
        metavar="LEVEL",
        help="Log verbosity: 1 for info, 4 and above for debug messages.",
    ),
)
_NAMES: Final = tuple(field.name for field in dataclasses.fields(ConnectionOptions))


def connection_options(command: Command) -> Command:
    """Add kubectl's global flags. Pass them to the command as `connection`."""

    @functools.wraps(command)
    def run(*arguments: Any, **values: Any) -> None:
        connection = ConnectionOptions(**{name: values.pop(name) for name in _NAMES})
        if connection.verbosity:
            # A command with --log-level sets up logging again and overrides this.
            logging.basicConfig(level=connection.log_level, format=_FORMAT)
        command(*arguments, connection=connection, **values)

    decorated: Any = run
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    result: Command = decorated
    return result
