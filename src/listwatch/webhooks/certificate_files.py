"""A certificate in files, such as a mounted Secret of cert-manager, read again after a change."""

import asyncio
from pathlib import Path
from typing import Final

from listwatch.clock import Clock
from listwatch.errors import ConfigError
from listwatch.webhooks.certificates import (
    Authority,
    CertificateError,
    ServingCertificate,
    read_authorities,
    read_certificate,
)
from listwatch.webhooks.rotation import Bundle

#: The files: certificate, private key, and the authority, which may be missing.
_FILES: Final = ("tls.crt", "tls.key", "ca.crt")
#: A certificate with a long chain is much smaller.
_LIMIT: Final = 1 << 20


class FileSource:
    """Reads the files at each look; see `Source`.

    Authorities that the file had before are published until they expire, for replicas that have not
    read the new files yet.

    Args:
        directory: has the files.
        clock: the time.
    """

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._seen: tuple[bytes, bytes, bytes] | None = None
        self._authorities: dict[Authority, None] = {}

    async def look(
        self, bundles: list[Bundle], *, leads: bool
    ) -> tuple[ServingCertificate | None, tuple[Authority, ...] | None]:
        """Return the certificate if the files have changed, and the authorities.

        Raises:
            ConfigError: a file is missing or invalid; the message names it.
        """
        del bundles, leads
        files = await asyncio.to_thread(self._read)
        certificate = None
        if files != self._seen:
            certificate = self._parsed(*files)
            self._seen = files
        now = self._clock.time()
        kept = [one for one in self._authorities if one.not_after > now]
        return certificate, tuple(kept) if files[2] else None

    def _read(self) -> tuple[bytes, bytes, bytes]:
        found = []
        for name in _FILES:
            path = self._directory / name
            try:
                with path.open("rb") as file:
                    content = file.read(_LIMIT)
            except FileNotFoundError:
                if name != "ca.crt":
                    raise ConfigError(
                        f"{path} does not exist: mount the Secret with the certificate there"
                    ) from None
                content = b""
            except OSError as error:
                raise ConfigError(f"{path} can't be read: {error.strerror}") from None
            found.append(content)
        return found[0], found[1], found[2]

    def _parsed(self, certificate: bytes, key: bytes, authority: bytes) -> ServingCertificate:
        try:
            authorities = read_authorities(authority)
        except CertificateError as error:
            raise ConfigError(f"{self._directory / _FILES[2]} is unusable: {error}") from None
        try:
            made = read_certificate(certificate, key, authority)
        except CertificateError as error:
            raise ConfigError(f"{self._directory / _FILES[0]} is unusable: {error}") from None
        self._authorities = dict.fromkeys([*authorities, *self._authorities])
        return made
