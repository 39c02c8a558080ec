"""The endpoints of services, from EndpointSlices."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from listwatch.cache.deltas import Item
from listwatch.controllers.services.providers.balancing import LAST_PORT, Backend, is_address
from listwatch.controllers.services.service import ServicePort
from listwatch.controllers.wire import decode
from listwatch.objects import Object, ObjectKey

_logger = logging.getLogger(__name__)

#: On a slice: the name of its service.
SERVICE_NAME: Final = "kubernetes.io/service-name"


class _Conditions(msgspec.Struct, gc=False):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Endpoint(msgspec.Struct):
    addresses: tuple[str, ...] = ()
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)


class _Port(msgspec.Struct, gc=False):
    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class _Slice(msgspec.Struct):
    addressType: str = ""  # noqa: N815 - the name in JSON
    endpoints: tuple[_Endpoint, ...] | None = None
    ports: tuple[_Port, ...] | None = None


_decoder = msgspec.json.Decoder(_Slice)


class Endpoints:
    """All endpoints by service, fed by a reflector of EndpointSlices.

    For one event loop.

    Args:
        on_change: called with the key of each service whose endpoints may have changed.
    """

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._slices: dict[str, tuple[str, _Slice]] = {}
        self._by_service: dict[str, set[str]] = {}
        #: Set once the initial endpoints are known.
        self.synced = asyncio.Event()

    def backends(
        self, service: str, port: ServicePort, families: Sequence[str] = ()
    ) -> list[Backend]:
        """Return the backends of a service's port.

        These are its ready endpoints or, if there are none, those that still serve while they
        terminate (as kube-proxy does, KEP-1669). An endpoint of a dual-stack service is in a slice
        of each family: only the first family with endpoints counts.
        """
        found = list(self._matching(service, port))
        for family in families:
            own = [one for one in found if (":" in one[0].host) == (family == "IPv6")]
            if own:
                found = own
                break
        ready = [backend for backend, conditions in found if conditions.ready is not False]
        return ready or [
            backend
            for backend, conditions in found
            if conditions.serving and conditions.terminating
        ]

    def _matching(self, service: str, port: ServicePort) -> Iterator[tuple[Backend, _Conditions]]:
        for key in self._by_service.get(service, ()):
            slice_ = self._slices[key][1]
            if slice_.addressType not in {"IPv4", "IPv6"}:
                continue
            for own in slice_.ports or ():
                named = (own.name or "", own.protocol or "TCP") == (port.name, port.protocol)
                if not named or own.port is None or not 0 < own.port <= LAST_PORT:
                    continue
                for endpoint in slice_.endpoints or ():
                    for address in endpoint.addresses[:1]:  # the others belong to the same endpoint
                        # A name would cause a DNS query, or break a configuration.
                        if is_address(address):
                            yield Backend(address, own.port), endpoint.conditions

    # --- The reflector's side ---

    def add(self, obj: Object) -> None:
        """Add a new slice."""
        self.update(obj)

    def update(self, obj: Object) -> None:
        """Update a slice."""
        self._tell(self._put(obj))

    def delete(self, obj: Item) -> None:
        """Delete a slice."""
        self._tell(self._drop(obj.key))

    def replace(self, objs: Sequence[Object], resource_version: str) -> None:  # noqa: ARG002 - required by the protocol
        """Replace all slices."""
        listed = {obj.key for obj in objs}
        changed = set[str]()
        for key in [key for key in self._slices if key not in listed]:
            changed |= self._drop(key)
        for obj in objs:
            changed |= self._put(obj)
        self.synced.set()
        self._tell(changed)

    def resync(self) -> None:
        """Do nothing: processing a state twice changes nothing."""

    def bookmark(self, resource_version: str) -> None:
        """Do nothing: the position is not needed."""

    def _put(self, obj: Object) -> set[str]:
        changed = self._drop(obj.key)
        name = obj.labels.get(SERVICE_NAME)
        if not name:
            return changed
        try:
            slice_ = decode(_decoder, obj.raw)
        except msgspec.MsgspecError as error:
            _logger.warning("endpoint slice %s is skipped: %s", obj.key, error)
            return changed
        service = str(ObjectKey(obj.namespace, name))
        self._slices[obj.key] = (service, slice_)
        self._by_service.setdefault(service, set()).add(obj.key)
        return changed | {service}

    def _drop(self, key: str) -> set[str]:
        known = self._slices.pop(key, None)
        if known is None:
            return set()
        service = known[0]
        keys = self._by_service[service]
        keys.discard(key)
        if not keys:
            del self._by_service[service]
        return {service}

    def _tell(self, services: set[str]) -> None:
        for service in services:
            self._on_change(service)
