"""The load balancers of HAProxy, saved for the next program that takes it over."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.haproxy_config import Slot
from listwatch.controllers.services.service import Service
from listwatch.objects import Object

# Increased with each incompatible change.
_VERSION: Final = 1
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class SavedError(ProviderError):
    """Saved load balancers can't be read."""


class SavedBalancer(msgspec.Struct, frozen=True):
    """One load balancer; everything else follows from the service.

    Attributes:
        service: the part of the object that a load balancer depends on.
        addresses: its addresses.
        slots: the slots of each TCP port, by number.
    """

    service: msgspec.Raw
    addresses: Sequence[str]
    slots: Mapping[int, Sequence[Slot]]


class Saved(msgspec.Struct, frozen=True):
    """The load balancers of one configuration.

    Attributes:
        generation: the configuration's.
        balancers: its load balancers.
        version: of this format.
    """

    generation: int
    balancers: Sequence[SavedBalancer]
    version: int = _VERSION


_decoder = msgspec.json.Decoder(Saved)
_encoder = msgspec.json.Encoder()


def encode_service(service: Service) -> msgspec.Raw:
    """Return the part of a service that a load balancer depends on."""
    obj = service.object
    annotations = {name: v for name, v in service.annotations.items() if name != _APPLIED}
    metadata = {
        "name": obj.name,
        "namespace": obj.namespace,
        "uid": obj.uid,
        "labels": dict(obj.labels),
        "annotations": annotations,
    }
    return msgspec.Raw(_encoder.encode({"metadata": metadata, "spec": obj.to_dict().get("spec")}))


def decode_service(raw: msgspec.Raw) -> Service:
    """Return a saved service.

    Raises:
        ListWatchError: it is not a service.
    """
    return Service.of(Object.from_dict(msgspec.json.decode(raw)))


def encode(generation: int, balancers: Iterable[SavedBalancer]) -> bytes:
    """Return the content of the file."""
    return _encoder.encode(Saved(generation, list(balancers)))


def decode(content: bytes) -> Saved:
    """Return the load balancers in a file.

    Raises:
        SavedError: it is damaged, or of another version.
    """
    try:
        saved = _decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise SavedError(f"invalid content: {error}") from error
    if saved.version != _VERSION:
        raise SavedError(f"version {saved.version} instead of {_VERSION}")
    return saved
