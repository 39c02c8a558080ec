"""Which backend a connection goes to: turns, health, and clients that stay with theirs."""

import ipaddress
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from listwatch.clock import Clock

#: How many clients are remembered with their backends, at most.
AFFINITY_LIMIT: Final = 100_000
LAST_PORT: Final = 65_535


def is_address(text: str) -> bool:
    """Tell whether a text is an IP address: all else would be looked up, or be words of a file."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


class Backend(NamedTuple):
    """Where to connect to."""

    host: str
    port: int


class Balancer:
    """The backends of one port of a load balancer.

    They take turns. One that failed is passed over until a check finds it well; when all have
    failed, all are tried, since a check may be wrong where a connection is right. For one event
    loop.

    Args:
        clock: times affinities.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backends: list[Backend] = []
        self._failed: set[Backend] = set()
        self._turn = 0
        #: Seconds for which a client that is away keeps its backend; 0 for no affinity.
        self.affinity_seconds = 0
        # Ordered by last use.
        self._affinities: OrderedDict[str, tuple[Backend, float]] = OrderedDict()

    @property
    def backends(self) -> tuple[Backend, ...]:
        """All of them, whether well or not."""
        return tuple(self._backends)

    @property
    def failed(self) -> frozenset[Backend]:
        """Those that are passed over."""
        return frozenset(self._failed)

    def set_backends(self, backends: Iterable[Backend]) -> frozenset[Backend]:
        """Use these from now on; return those that are no longer among them."""
        new = sorted(set(backends))
        gone = frozenset(self._backends).difference(new)
        self._backends = new
        self._failed.difference_update(gone)
        return gone

    def choose(self, client: str, tried: Collection[Backend] = ()) -> Backend | None:
        """Return the backend for a client's next connection, or None when none is left.

        Args:
            client: its address.
            tried: backends that have just failed for it.
        """
        well = [b for b in self._backends if b not in self._failed and b not in tried]
        usable = well or [b for b in self._backends if b not in tried]
        if not usable:
            return None
        if not self.affinity_seconds:
            return self._next(usable)
        now = self._clock.now()
        self._forget_old(now)
        kept = self._affinities.get(client)
        backend = kept[0] if kept is not None and kept[0] in usable else self._next(usable)
        self._affinities[client] = (backend, now)
        self._affinities.move_to_end(client)
        return backend

    def report(self, backend: Backend, *, well: bool) -> bool:
        """Note that a backend answers, or does not; return whether that is news."""
        if backend not in self._backends or well != (backend in self._failed):
            return False
        if well:
            self._failed.discard(backend)
        else:
            self._failed.add(backend)
        return True

    def _next(self, usable: list[Backend]) -> Backend:
        self._turn += 1
        return usable[self._turn % len(usable)]

    def _forget_old(self, now: float) -> None:
        affinities = self._affinities
        while affinities:
            client, (_, used) = next(iter(affinities.items()))
            if now - used <= self.affinity_seconds and len(affinities) < AFFINITY_LIMIT:
                return
            del affinities[client]
