"""Credentials, and their sources in a configuration and its files."""

import base64
import logging
import os
from pathlib import Path
from typing import Protocol

import msgspec

from listwatch.client.config import Config
from listwatch.errors import ConfigError
from listwatch.version import __version__

_log = logging.getLogger(__name__)


class Certificate(msgspec.Struct, frozen=True):
    """A client certificate and its key, as PEM."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"Certificate(chain=<{len(self.chain)} bytes>, key=<hidden>)"


class Credentials(msgspec.Struct, frozen=True):
    """The credentials of a request.

    Attributes:
        authorization: the header's value; empty for none.
        certificate: for the connection.
    """

    authorization: str = ""
    certificate: Certificate | None = None

    def __repr__(self) -> str:
        return f"Credentials(authorization=<hidden>, certificate={self.certificate!r})"


class Authenticator(Protocol):
    """A source of credentials. For one event loop; any number of its tasks may use it at once."""

    async def credentials(self) -> Credentials:
        """Return the credentials for the next request.

        Raises:
            ConfigError: there are none; a request without them must not be sent.
        """
        ...

    async def renew(self, refused: Credentials) -> bool:
        """Handle a 401 from the server; return whether there are other credentials to try."""
        ...


class FileReader:
    """Reads a file again when it has changed, for rotated tokens and certificates."""

    def __init__(self, path: str, what: str) -> None:
        self._path = Path(path)
        self._what = what
        self._seen: tuple[int, int, int] | None = None
        self._content = b""

    def read(self) -> bytes:
        """Return the content.

        Raises:
            ConfigError: the file can't be read.
        """
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen != self._seen:
                self._content = self._path.read_bytes()
                self._seen = seen
        except (OSError, ValueError) as error:
            self._seen = None
            words = getattr(error, "strerror", None) or "not a valid path"
            raise ConfigError(f"{self._path}: the {self._what} can't be read: {words}") from None
        return self._content

    def forget(self) -> None:
        """Read the file again next time, regardless of its modification time."""
        self._seen = None


class ConfiguredAuthenticator:
    """The credentials in the configuration, or in files that it names."""

    def __init__(self, config: Config) -> None:
        self._static = ""
        self._last = ""  # from the token file
        self._last_certificate: Certificate | None = None
        self._complaints: set[str] = set()  # reported and not yet resolved
        self._token_path = config.token_file
        self._token_file = FileReader(config.token_file, "token") if config.token_file else None
        if config.token:
            self._static = f"Bearer {config.token}"
        elif config.username or config.password:
            try:
                pair = f"{config.username}:{config.password}".encode()
            except UnicodeEncodeError:
                raise ConfigError(
                    f"{config.source}: the username or password has an invalid character (a lone "
                    "surrogate); correct it"
                ) from None
            self._static = f"Basic {base64.b64encode(pair).decode()}"
        self._chain = _pem(config.client_certificate_data, config.client_certificate, "certificate")
        self._key = _pem(config.client_key_data, config.client_key, "key")
        if (self._chain is None) != (self._key is None):
            missing = "key" if self._key is None else "certificate"
            raise ConfigError(f"{config.source}: the client certificate lacks its {missing}")
        if config.username and config.token:
            raise ConfigError(f"{config.source}: both a token and a username; remove one of them")

    async def credentials(self) -> Credentials:
        """Return the current credentials."""
        return Credentials(self._authorization(), self._certificate())

    def _certificate(self) -> Certificate | None:
        if self._chain is None or self._key is None:
            return None
        try:
            read = Certificate(self._chain.read(), self._key.read())
        except ConfigError as error:
            if self._last_certificate is None:
                raise
            self._complain(error, "certificate")
            return self._last_certificate
        self._complaints.discard("certificate")
        self._last_certificate = read
        return read

    def _authorization(self) -> str:
        if self._token_file is None:
            return self._static
        try:
            token = self._token_file.read().decode("ascii").strip()
            problem = ConfigError(f"{self._token_path}: the token file is empty")
        except ConfigError as error:
            token, problem = "", error
        except UnicodeDecodeError:
            token, problem = "", ConfigError(f"{self._token_path}: the token is not ASCII")
        if token:
            self._complaints.discard("token")
            self._last = f"Bearer {token}"
            return self._last
        # As client-go's transport/token_source.go: the last token may still be valid for long.
        last = self._last or self._static
        if not last:
            raise problem
        self._complain(problem, "token")
        return last

    def _complain(self, problem: ConfigError, what: str) -> None:
        if what not in self._complaints:
            self._complaints.add(what)
            _log.warning("%s; the last %s is used", problem, what)

    async def renew(self, refused: Credentials) -> bool:
        """Read the files again; return whether they have changed."""
        for reader in (self._token_file, self._chain, self._key):
            if isinstance(reader, FileReader):
                reader.forget()
        return await self.credentials() != refused


class _Data:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self) -> bytes:
        return self._content


def _pem(data: bytes, path: str, what: str) -> FileReader | _Data | None:
    if data:
        return _Data(data)
    return FileReader(path, f"client {what}") if path else None


def user_agent(config: Config) -> str:
    """Return the User-Agent header: the program's name, and this library's."""
    own = f"listwatch/{__version__}"
    return f"{config.user_agent} {own}" if config.user_agent else f"{own} ({os.uname().sysname})"
