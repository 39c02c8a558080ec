"""The address of each load balancer."""

import hashlib
import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from listwatch.controllers.services.provider import AddressTakenError, Holders, ProviderError

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Maximum addresses tried before a pool counts as full.
_TRIES: Final = 4096
# Addresses in wide use already: those of localhost.
_RESERVED: Final = ipaddress.ip_network("127.0.0.0/24")


class AddressPool:
    """Gives each owner its own address from a number of networks.

    An owner gets the same address each time if it is free, so the address survives a restart even
    without a record. An address in a service's status is given to no other owner, even before the
    service takes it. Addresses of 127.0.0.0/24 are given only on request.

    Args:
        networks: such as "127.0.0.0/8" (usable on Linux without setup) or "192.0.2.0/28".

    Raises:
        ValueError: not a network.
    """

    def __init__(self, networks: Iterable[str] = ("127.0.0.0/8",)) -> None:
        self.networks: Sequence[_Network] = [
            ipaddress.ip_network(network, strict=False) for network in networks
        ]
        if not self.networks:
            raise ValueError("give the address pool a network, such as 127.0.0.0/8")
        self._owners: dict[IPAddress, str] = {}
        self._holders: Holders = lambda _address: ()

    def __len__(self) -> int:
        """Return the number of addresses in use."""
        return len(self._owners)

    def candidates(self, owner: str, wanted: str = "", before: str = "") -> Iterator[str]:
        """Yield free addresses for an owner, the best first; takes none.

        Args:
            owner: the owner, such as a uid.
            wanted: the only acceptable address; empty for any.
            before: its previous address; preferred.

        Raises:
            ProviderError: the wanted address is not in the pool.
            AddressTakenError: it belongs to another owner; or no address is free.
        """
        if wanted:
            yield str(self._check(owner, wanted))
            return
        if before and (address := self._parse(before)) and self._is_free(owner, address):
            yield str(address)
        for address in self._tries(owner):
            if str(address) != before and self._is_free(owner, address):
                yield str(address)
        raise AddressTakenError(
            f"no free address in {', '.join(map(str, self.networks))}: "
            "delete services of type LoadBalancer, or give the provider a larger range"
        )

    def take(self, owner: str, address: str) -> None:
        """Give a free address to an owner.

        Raises:
            ProviderError: it is not in the pool.
            AddressTakenError: it belongs to another owner.
        """
        self._owners[self._check(owner, address)] = owner

    def release(self, address: str) -> None:
        """Free an address."""
        self._owners.pop(ipaddress.ip_address(address), None)

    def use_holders(self, holders: Holders) -> None:
        """From now on, give no address in a service's status to another owner."""
        self._holders = holders

    def _check(self, owner: str, text: str) -> IPAddress:
        address = self._parse(text)
        if address is None:
            ranges = ", ".join(map(str, self.networks))
            raise ProviderError(f"address {text} is not in the provider's range {ranges}")
        if not self._is_free(owner, address):
            raise AddressTakenError(f"address {text} is in use by another service")
        return address

    def _parse(self, text: str) -> IPAddress | None:
        """Return an address if it belongs to the pool."""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return None
        return address if any(address in network for network in self.networks) else None

    def _is_free(self, owner: str, address: IPAddress) -> bool:
        holder = self._owners.get(address)
        if holder is None:
            holder = next((each.uid for each in self._holders(str(address))), owner)
        return holder == owner

    def _tries(self, owner: str) -> Iterator[IPAddress]:
        start = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:16])
        for network in self.networks:
            size = network.num_addresses
            # Network and broadcast addresses belong to no host.
            first, usable = (1, size - 2) if size > 2 else (0, size)
            for step in range(min(usable, _TRIES)):
                address = network[first + (start + step) % usable]
                if address not in _RESERVED:
                    yield address
