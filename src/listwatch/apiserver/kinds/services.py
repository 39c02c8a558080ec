"""What the server gives a Service: cluster IPs and node ports, and what goes when its type changes.

The rules are those of `pkg/registry/core/service`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from listwatch.schema.causes import Cause, invalid_value

Object = dict[str, Any]
_T = TypeVar("_T", str, int)

_FIRST_PORT, _LAST_PORT = 30_000, 32_767
_WITH_NODE_PORTS = frozenset(("NodePort", "LoadBalancer"))
_ADDRESS_FIELDS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")


def _hosts() -> Iterator[str]:
    """Yield the addresses of 10.0.0.0/16 but for the first, which is the server's own."""
    for host in range(2, 65_000):
        yield f"10.0.{host >> 8}.{host & 255}"


class Addresses:
    """Cluster IPs and node ports, each for one service at a time. For one event loop.

    Args:
        services: yields the services that are there.
    """

    def __init__(self, services: Callable[[], Iterable[Object]]) -> None:
        self._services = services
        self._hosts = itertools.cycle(_hosts())
        self._ports = itertools.cycle(range(_FIRST_PORT, _LAST_PORT + 1))
        #: what is given out; also what was, until a look at the services shows that it is free
        self._taken: set[str | int] | None = None

    def _look(self) -> set[str | int]:
        self._taken = set()
        for service in self._services():
            spec = service.get("spec") or {}
            self._taken.update(spec.get("clusterIPs") or ())
            self._taken.update(_node_ports(spec))
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
        """Return an address that is free; None if there is none."""
        return self._next(self._hosts, 65_000)

    def node_port(self) -> int | None:
        """Return a port of the customary range that is free; None if there is none."""
        return self._next(self._ports, _LAST_PORT - _FIRST_PORT + 1)

    def claim(self, wanted: str | int) -> bool:
        """Take an address or a port; False if a service has it."""
        taken = self._look() if self._taken is None else self._taken
        if wanted in taken and wanted in self._look():
            return False
        assert self._taken is not None  # noqa: S101 - looked up above
        self._taken.add(wanted)
        return True


def _node_ports(spec: Object) -> list[int]:
    return [port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")]


def allocate(new: Object, old: Object | None, addresses: Addresses) -> list[Cause]:
    """Give a service, changed in place, what its type needs; returns what it may not have."""
    spec, before = new["spec"], (old or {}).get("spec") or {}
    causes: list[Cause] = []
    if spec["type"] == "ExternalName":
        return causes
    address = spec.get("clusterIP")
    if not address:
        address = spec["clusterIP"] = addresses.cluster_ip()
        if address is None:
            return [invalid_value("spec.clusterIPs", [], "failed to allocate a serviceIP: full")]
    elif address not in {"None", before.get("clusterIP")} and not addresses.claim(address):
        why = f"failed to allocate IP {address}: provided IP is already allocated"
        causes.append(invalid_value("spec.clusterIPs", [address], why))
    spec.setdefault("clusterIPs", [address])
    if address == "None" and not spec.get("selector"):
        # nobody knows where such a service leads, so it may lead to both families
        spec.setdefault("ipFamilyPolicy", "RequireDualStack")
        families = spec.setdefault("ipFamilies", ["IPv4"])
        if spec["ipFamilyPolicy"] != "SingleStack" and len(families) == 1:
            families.append("IPv6" if families == ["IPv4"] else "IPv4")
    elif address == "None":
        spec.setdefault("ipFamilies", ["IPv4"])
    else:
        spec.setdefault("ipFamilies", ["IPv6" if ":" in address else "IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if spec["type"] in _WITH_NODE_PORTS:
        causes += _allocate_ports(spec, set(_node_ports(before)), addresses)
    return causes


def _allocate_ports(spec: Object, own: set[int], addresses: Addresses) -> list[Cause]:
    causes: list[Cause] = []
    automatic = spec.get("allocateLoadBalancerNodePorts") is not False
    for index, port in enumerate(spec.get("ports") or ()):
        where = f"spec.ports[{index}].nodePort"
        wanted = port.get("nodePort")
        if not wanted:
            if automatic:
                found = addresses.node_port()
                if found is None:
                    why = "failed to allocate a nodePort: range is full"
                    return [*causes, invalid_value(where, 0, why)]
                port["nodePort"] = found
            continue
        # ports of two protocols may share a number
        if wanted in own:
            continue
        if not _FIRST_PORT <= wanted <= _LAST_PORT:
            why = (
                "provided port is not in the valid range. The range of valid ports is "
                f"{_FIRST_PORT}-{_LAST_PORT}"
            )
            causes.append(invalid_value(where, wanted, why))
        elif not addresses.claim(wanted):
            causes.append(invalid_value(where, wanted, "provided port is already allocated"))
        own.add(wanted)
    return causes


def carry(new: Object, old: Object) -> None:
    """Keep what an update left out, and drop what goes with the type that a service had."""
    spec, before = new.setdefault("spec", {}), old.get("spec") or {}
    had, has = before.get("type"), spec.get("type")
    if has == "ExternalName":
        if had != has and spec.get("clusterIP") == before.get("clusterIP"):
            for key in _ADDRESS_FIELDS:
                spec.pop(key, None)
    else:
        for key in _ADDRESS_FIELDS:
            if not spec.get(key) and key in before:
                spec[key] = before[key]
    if has in _WITH_NODE_PORTS:
        known = {port.get("port"): port.get("nodePort") for port in before.get("ports") or ()}
        for port in spec.get("ports") or ():
            if known.get(port.get("port")) and not port.get("nodePort"):
                port["nodePort"] = known[port["port"]]
    elif had in _WITH_NODE_PORTS and _node_ports(spec) == _node_ports(before):
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)
        if spec.get("externalTrafficPolicy") == before.get("externalTrafficPolicy"):
            spec.pop("externalTrafficPolicy", None)
    if had == "LoadBalancer" != has:
        key = "allocateLoadBalancerNodePorts"
        if spec.get(key) == before.get(key):
            spec.pop(key, None)
