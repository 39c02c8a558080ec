"""The load balancer of one service in HAProxy."""

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from listwatch.controllers.services.provider import default_load_balancer_name
from listwatch.controllers.services.providers.frontend import PortKey, ports_of, rules_of
from listwatch.controllers.services.providers.haproxy_config import Frontend, Slot
from listwatch.controllers.services.providers.haproxy_saved import (
    SavedBalancer,
    decode_service,
    encode_service,
)
from listwatch.controllers.services.providers.listening import Rules
from listwatch.controllers.services.providers.pool_provider import LoadBalancer
from listwatch.controllers.services.service import Service, ServicePort

if TYPE_CHECKING:
    from listwatch.controllers.services.providers.udp import UDPListener


class HAProxyBalancer(LoadBalancer):
    """The frontends and UDP listeners of a service.

    Args:
        service: the service.
        addresses: its addresses.
    """

    def __init__(self, service: Service, addresses: Sequence[str]) -> None:
        super().__init__(service, addresses)
        self.frontends: dict[PortKey, Frontend] = {}
        #: Listeners for UDP, which HAProxy does not forward, by address and port.
        self.datagrams: dict[tuple[str, int], UDPListener] = {}
        self._encoded = encode_service(service)

    def saved(self) -> SavedBalancer:
        """Return what the next program needs to know."""
        slots = {one.port: one.slots for one in self.frontends.values()}
        return SavedBalancer(self._encoded, self.addresses, slots)

    def held(self) -> set[tuple[str, str, int]]:
        """Return the address, protocol and port of everything that it listens on."""
        tcp = {(address, *key) for address in self.addresses for key in self.frontends}
        return tcp | {(address, "UDP", port) for address, port in self.datagrams}

    @staticmethod
    def restored(saved: SavedBalancer, health_port: Callable[[Service], int]) -> "HAProxyBalancer":
        """Return a load balancer as it was saved.

        Raises:
            ListWatchError: it has other fields or values than this version knows.
        """
        service = decode_service(saved.service)
        made = HAProxyBalancer(service, saved.addresses)
        made.ports = ports_of(service)
        rules = rules_of(service)
        for key, port in made.ports.items():
            if key[0] == "TCP":
                slots = list(saved.slots.get(port.port, ()))
                made.frontends[key] = made.frontend(port, rules, health_port(service), slots)
        return made

    def frontend(
        self, port: ServicePort, rules: Rules, health_port: int, slots: list[Slot]
    ) -> Frontend:
        """Return a frontend for a port."""
        return Frontend(
            name=f"{_one_line(default_load_balancer_name(self.service))}-{port.port}",
            addresses=self.addresses,
            port=port.port,
            rules=rules,
            affinity_seconds=self.service.spec.affinity_seconds,
            health_port=health_port,
            slots=slots,
        )


def _one_line(name: str) -> str:
    """Return a name without line breaks: no uid can add lines to the configuration."""
    if name.isprintable():
        return name
    return f"a{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:31]}"


def needs_reload(before: HAProxyBalancer, after: HAProxyBalancer) -> bool:
    """Return whether a change needs more than the runtime API."""
    if before.addresses != after.addresses or before.frontends.keys() != after.frontends.keys():
        return True
    return any(
        (old.rules, old.affinity_seconds, old.health_port, len(old.slots))
        != (new.rules, new.affinity_seconds, new.health_port, len(new.slots))
        for old, new in ((before.frontends[key], after.frontends[key]) for key in before.frontends)
    )
