"""The Secret in which replicas share their certificates."""

import base64
import binascii
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from listwatch.errors import NotFoundError
from listwatch.objects import Object
from listwatch.webhooks.certificates import (
    CertificateError,
    ServingCertificate,
    read_certificate,
)
from listwatch.webhooks.rotation import Stored

if TYPE_CHECKING:
    from listwatch.client.client import Client

_logger = logging.getLogger(__name__)

SECRETS: Final = "secrets"
#: The keys of a certificate, its private key and its authority in a Secret.
FIELDS: Final = ("tls.crt", "tls.key", "ca.crt")
_NEXT: Final = "next."


class ReadSecret(msgspec.Struct, frozen=True):
    """The Secret as it was read.

    Attributes:
        obj: None if there is none.
        stored: None if there is nothing usable in it.
    """

    obj: Object | None
    stored: Stored | None


class SecretStore:
    """Reads and writes the Secret.

    Its methods raise what the client raises.

    Args:
        client: sends the requests.
        namespace: of the Secret.
        name: of the Secret.
    """

    def __init__(self, client: "Client", namespace: str, name: str) -> None:
        self._client = client
        self.namespace = namespace
        self.name = name

    async def read(self) -> ReadSecret:
        """Return what is stored."""
        try:
            found = await self._client.get(SECRETS, self.name, self.namespace)
        except NotFoundError:
            return ReadSecret(None, None)
        try:
            return ReadSecret(found, _read(found.get("data") or {}))
        except CertificateError as error:
            _logger.warning(
                "Secret %s/%s has no usable certificate and is written anew: %s",
                self.namespace,
                self.name,
                error,
            )
            return ReadSecret(found, None)

    async def write(self, before: ReadSecret, stored: Stored) -> None:
        """Write what is to be stored.

        Raises:
            ConflictError: somebody else wrote or created the Secret since it was read.
            NotFoundError: it was deleted since.
        """
        data = {key: base64.b64encode(value).decode() for key, value in _fields(stored).items()}
        if before.obj is None:
            await self._client.create(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "type": "Opaque",
                    "metadata": {"name": self.name, "namespace": self.namespace},
                    "data": data,
                }
            )
        else:
            await self._client.update({**before.obj.to_dict(), "data": data})


def _fields(stored: Stored) -> dict[str, bytes]:
    fields = _of(stored.serving, "")
    return fields if stored.next is None else fields | _of(stored.next, _NEXT)


def _of(certificate: ServingCertificate, prefix: str) -> dict[str, bytes]:
    values = (certificate.certificate, certificate.key, certificate.authority.pem)
    return {prefix + field: value for field, value in zip(FIELDS, values, strict=True)}


def _read(data: Any) -> Stored:
    serving = _one(data, "")
    if serving is None:
        raise CertificateError(f"it lacks one of {', '.join(FIELDS)}")
    return Stored(serving, _one(data, _NEXT))


def _one(data: Any, prefix: str) -> ServingCertificate | None:
    values = [data.get(prefix + field) for field in FIELDS]
    if not all(isinstance(value, str) for value in values):
        return None
    try:
        certificate, key, authority = map(base64.b64decode, values)
    except (binascii.Error, ValueError):
        raise CertificateError("its data is not base64") from None
    return read_certificate(certificate, key, authority)
