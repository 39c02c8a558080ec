"""Lets a provider know whose addresses are whose, before anything new is given out."""

from collections.abc import Callable, Sequence

from listwatch.cache.deltas import Item, ReflectorStore
from listwatch.controllers.services.provider import KeepsAddresses
from listwatch.controllers.services.service import (
    FINALIZER,
    InvalidServiceError,
    Service,
)
from listwatch.objects import Object


class ReservingQueue:
    """The services' queue, as the reflector sees it: reserves each address that a status tells.

    A whole list is read before the first of its services is queued, so that nobody gets an address
    that stands in another one's status. Of two services that have one address, the older keeps it.

    Args:
        queue: takes the changes.
        provider: keeps the addresses.
        freed: called when an address was let go.
    """

    def __init__(
        self, queue: ReflectorStore, provider: KeepsAddresses, freed: Callable[[], object]
    ) -> None:
        self._queue = queue
        self._provider = provider
        self._freed = freed
        self._uids: dict[str, str] = {}

    def add(self, obj: Object) -> None:
        """Take a service that is new."""
        let_go = self._reserve(obj)
        self._queue.add(obj)
        self._tell(let_go=let_go)

    def update(self, obj: Object) -> None:
        """Take a service's new state."""
        let_go = self._reserve(obj)
        self._queue.update(obj)
        self._tell(let_go=let_go)

    def delete(self, obj: Item) -> None:
        """Take the end of a service."""
        let_go = self._let_go(obj.key)
        self._queue.delete(obj)
        self._tell(let_go=let_go)

    def replace(self, objs: Sequence[Object], resource_version: str) -> None:
        """Take all services."""
        gone = self._uids.keys() - {obj.key for obj in objs}
        let_go = [self._let_go(key) for key in gone]
        let_go += [self._reserve(obj) for obj in sorted(objs, key=_age)]
        self._queue.replace(objs, resource_version)
        self._tell(let_go=any(let_go))

    def resync(self) -> None:
        """Tell the controller of every service again."""
        self._queue.resync()

    def bookmark(self, resource_version: str) -> None:
        """Take a position."""
        self._queue.bookmark(resource_version)

    def _reserve(self, obj: Object) -> bool:
        try:
            service = Service.of(obj)
        except InvalidServiceError:
            return False  # what it had before stays reserved
        let_go = self._uids.get(obj.key, obj.uid) != obj.uid and self._let_go(obj.key)
        # Elsewhere than on a load balancer that is there, or goes, a status means nothing.
        counts = service.spec.type == "LoadBalancer" or FINALIZER in obj.meta.finalizers
        addresses = [each.ip for each in service.status.ingress if each.ip] if counts else []
        self._uids[obj.key] = obj.uid
        return self._provider.reserve(obj.uid, addresses) or let_go

    def _let_go(self, key: str) -> bool:
        uid = self._uids.pop(key, None)
        return uid is not None and self._provider.reserve(uid, ())

    def _tell(self, *, let_go: bool) -> None:
        if let_go:
            self._freed()


def _age(obj: Object) -> tuple[str, str]:
    return str(obj["metadata"].get("creationTimestamp") or ""), obj.uid
