"""The owners of load balancer addresses, from the status of all services."""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from listwatch.cache.deltas import Item
from listwatch.cache.handlers import last_state
from listwatch.cache.store import Indexer
from listwatch.controllers.services.service import FINALIZER, InvalidServiceError, Service
from listwatch.controllers.wire import decode
from listwatch.objects import Object

_INDEX = "addresses"


class _Ingress(msgspec.Struct, gc=False):
    ip: str = ""


class _LoadBalancer(msgspec.Struct):
    ingress: tuple[_Ingress, ...] | None = None


class _Status(msgspec.Struct):
    load_balancer: _LoadBalancer | None = msgspec.field(default=None, name="loadBalancer")


class _Spec(msgspec.Struct):
    type: str | None = None


class _Wire(msgspec.Struct):
    spec: _Spec | None = None
    status: _Status | None = None


_decoder = msgspec.json.Decoder(_Wire)


def addresses_of(obj: Object) -> list[str]:
    """Return the addresses in a service's status, if they are valid.

    They are valid only while the service's load balancer exists or is being removed.
    """
    try:
        wire = decode(_decoder, obj.raw)
    except msgspec.MsgspecError:
        return []
    if wire.status is None or wire.status.load_balancer is None:
        return []
    is_load_balancer = wire.spec is not None and wire.spec.type == "LoadBalancer"
    if not is_load_balancer and FINALIZER not in obj.meta.finalizers:
        return []
    return [each.ip for each in wire.status.load_balancer.ingress or () if each.ip]


class StatusAddresses:
    """The addresses in the status of all services: an index of their cache, and its handler.

    A cache applies a complete list in one step. So in whatever order services are processed, none
    gets an address that is in the status of another.

    Args:
        freed: called when an address was freed.
    """

    def __init__(self, freed: Callable[[], object]) -> None:
        self._freed = freed
        self._indexer: Indexer | None = None

    def index(self, indexer: Indexer) -> None:
        """Read this cache from now on."""
        indexer.add_indexers({_INDEX: addresses_of})
        self._indexer = indexer

    def holders(self, address: str) -> Iterator[Service]:
        """Yield the services whose status has an address, oldest first."""
        if self._indexer is None:
            return
        found: Iterable[Object] = self._indexer.by_index(_INDEX, address)
        for obj in sorted(found, key=_age):
            try:
                yield Service.of(obj)
            except InvalidServiceError:
                yield Service.unreadable(obj)

    # --- The handler's side ---

    def on_add(self, obj: Object, is_in_initial_list: bool) -> None:  # noqa: FBT001 - required by the protocol
        """Do nothing: the index has it."""

    def on_update(self, old: Object, new: Object) -> None:
        """Report the addresses removed from a status."""
        before = set(addresses_of(old))
        if before and (old.uid != new.uid or not before.issubset(addresses_of(new))):
            self._freed()

    def on_delete(self, obj: Item) -> None:
        """Report the addresses of a deleted service."""
        last = last_state(obj)
        if last is None or addresses_of(last):
            self._freed()


def _age(obj: Object) -> tuple[str, str]:
    return str(obj["metadata"].get("creationTimestamp") or ""), obj.uid
