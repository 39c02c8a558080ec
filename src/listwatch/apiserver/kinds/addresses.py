"""Allocates cluster IPs and node ports to services."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Object = dict[str, Any]

#: The range of node ports.
FIRST_PORT, LAST_PORT = 30_000, 32_767
# The lower parts of both ranges are allocated last, because users choose from there (KEP-3668 for
# ports, KEP-3070 for addresses; both define the sizes).
_STATIC_PORTS = 86
_STATIC_HOSTS = 256


def node_ports(spec: Object) -> list[int]:
    """Return the node ports in a service's spec."""
    return [port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")]


_T = TypeVar("_T", str, int)


def _hosts() -> Iterator[str]:
    """Yield the addresses of 10.96.0.0/16, except the first, which is the server's."""
    for host in itertools.chain(range(_STATIC_HOSTS + 1, 65_000), range(2, _STATIC_HOSTS + 1)):
        yield f"10.96.{host >> 8}.{host & 255}"


def _ports() -> Iterator[int]:
    yield from range(FIRST_PORT + _STATIC_PORTS, LAST_PORT + 1)
    yield from range(FIRST_PORT, FIRST_PORT + _STATIC_PORTS)


class Addresses:
    """Cluster IPs and node ports, each for one service at a time. For one event loop.

    Args:
        services: yields the existing services.
    """

    def __init__(self, services: Callable[[], Iterable[Object]]) -> None:
        self._services = services
        self._hosts = itertools.cycle(_hosts())
        self._ports = itertools.cycle(_ports())
        #: allocated addresses and ports; freed ones stay until the services are read again
        self._taken: set[str | int] | None = None

    def _look(self) -> set[str | int]:
        self._taken = set()
        for service in self._services():
            spec = service.get("spec") or {}
            self._taken.update(spec.get("clusterIPs") or ())
            self._taken.update(node_ports(spec))
            if health := spec.get("healthCheckNodePort"):
                self._taken.add(health)
        self._taken.discard("None")
        return self._taken

    def _next(self, candidates: Iterator[_T], count: int) -> _T | None:
        taken = self._look() if self._taken is None else self._taken
        for left, found in enumerate(itertools.islice(candidates, 2 * count)):
            if left == count:
                taken = self._look()
            if found not in taken:
                taken.add(found)
                return found
        return None

    def cluster_ip(self) -> str | None:
        """Return a free address; None if there is none."""
        return self._next(self._hosts, 65_000)

    def node_port(self) -> int | None:
        """Return a free port of the default range; None if there is none."""
        return self._next(self._ports, LAST_PORT - FIRST_PORT + 1)

    def claim(self, wanted: str | int) -> bool:
        """Take an address or port; return False if a service already has it."""
        taken = self._look() if self._taken is None else self._taken
        if wanted in taken and wanted in self._look():
            return False
        assert self._taken is not None  # noqa: S101 - looked up above
        self._taken.add(wanted)
        return True
