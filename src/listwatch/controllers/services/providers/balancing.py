"""Chooses the backend of a connection: round robin, health and client affinity."""

import ipaddress
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from listwatch.clock import Clock

#: Maximum clients remembered with their backends.
AFFINITY_LIMIT: Final = 100_000
LAST_PORT: Final = 65_535


def is_address(text: str) -> bool:
    """Return whether a text is an IP address. A name would cause a DNS query, or break a file."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


class Backend(NamedTuple):
    """The address of a backend."""

    host: str
    port: int


class Balancer:
    """The backends of one port of a load balancer.

    They take turns. A failed one is skipped until a check succeeds. If all have failed, all are
    tried, because a check may be wrong where a connection works. For one event loop.

    Args:
        clock: measures affinities.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backends: list[Backend] = []
        self._failed: set[Backend] = set()
        self._turn = 0
        self._weights: dict[Backend, int] = {}
        # How far each backend is behind its share of connections, by weight.
        self._credit: dict[Backend, int] = {}
        self._open: dict[Backend, int] = {}
        #: Whether to choose the backend with the fewest connections relative to its weight.
        self.least_connections = False
        #: Seconds for which an absent client keeps its backend; 0 for no affinity.
        self.affinity_seconds = 0
        # Ordered by last use.
        self._affinities: OrderedDict[str, tuple[Backend, float]] = OrderedDict()

    @property
    def backends(self) -> tuple[Backend, ...]:
        """All backends, healthy or not."""
        return tuple(self._backends)

    @property
    def failed(self) -> frozenset[Backend]:
        """The backends that are skipped."""
        return frozenset(self._failed)

    def set_backends(self, backends: Iterable[Backend]) -> frozenset[Backend]:
        """Use these backends from now on; return those that are removed."""
        new = sorted(set(backends))
        gone = frozenset(self._backends).difference(new)
        self._backends = new
        self._failed.difference_update(gone)
        for backend in gone:
            self._weights.pop(backend, None)
            self._credit.pop(backend, None)
        return gone

    def set_weights(self, weights: Mapping[Backend, int]) -> None:
        """Give backends a larger or smaller share than the others, which have 1."""
        self._weights.update(
            (backend, max(1, weight))
            for backend, weight in weights.items()
            if backend in self._backends
        )

    def began(self, backend: Backend) -> None:
        """Record the start of a connection to a backend."""
        self._open[backend] = self._open.get(backend, 0) + 1

    def ended(self, backend: Backend) -> None:
        """Record the end of a connection to a backend."""
        count = self._open.get(backend, 0) - 1
        if count > 0:
            self._open[backend] = count
        else:
            self._open.pop(backend, None)

    def choose(self, client: str, tried: Collection[Backend] = ()) -> Backend | None:
        """Return the backend for a client's next connection, or None if none is left.

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
        """Record whether a backend responds; return whether that changed."""
        if backend not in self._backends or well != (backend in self._failed):
            return False
        if well:
            self._failed.discard(backend)
        else:
            self._failed.add(backend)
        return True

    def _next(self, usable: list[Backend]) -> Backend:
        self._turn += 1
        first = self._turn % len(usable)
        if self.least_connections:
            # Equally busy backends take turns.
            return min(usable[first:] + usable[:first], key=self._load)
        if not self._weights:
            return usable[first]
        return self._by_weight(usable)

    def _load(self, backend: Backend) -> float:
        return self._open.get(backend, 0) / self._weights.get(backend, 1)

    def _by_weight(self, usable: list[Backend]) -> Backend:
        """Return the backend furthest behind its share (nginx's smooth round robin)."""
        weights = {backend: self._weights.get(backend, 1) for backend in usable}
        for backend, weight in weights.items():
            self._credit[backend] = self._credit.get(backend, 0) + weight
        chosen = max(usable, key=lambda backend: self._credit[backend])
        self._credit[chosen] -= sum(weights.values())
        return chosen

    def _forget_old(self, now: float) -> None:
        affinities = self._affinities
        while affinities:
            client, (_, used) = next(iter(affinities.items()))
            if now - used <= self.affinity_seconds and len(affinities) < AFFINITY_LIMIT:
                return
            del affinities[client]
