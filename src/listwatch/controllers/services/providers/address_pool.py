"""Which address each load balancer has."""

import hashlib
import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from listwatch.controllers.services.provider import AddressTakenError, Holders, ProviderError

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

#: How many addresses are tried at most before a pool counts as full.
_TRIES: Final = 4096
# Addresses that are widely used already: what listens on localhost.
_RESERVED: Final = ipaddress.ip_network("127.0.0.0/24")


class AddressPool:
    """Gives each owner an address of its own from a number of networks.

    An owner gets the same address each time as far as it is free, so that it survives a restart
    even where nobody has written it down. What the status of a service tells is given to no other,
    also before the service takes it. Addresses of 127.0.0.0/24 are given only when asked for.

    Args:
        networks: such as "127.0.0.0/8" (usable on Linux without any set-up) or "192.0.2.0/28".

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
        """Return how many addresses are in use."""
        return len(self._owners)

    def candidates(self, owner: str, wanted: str = "", before: str = "") -> Iterator[str]:
        """Yield free addresses for an owner, the best first; none is taken yet.

        Args:
            owner: whose address it will be, such as a uid.
            wanted: the only address that will do; empty for any.
            before: the address that it had; used if it can be.

        Raises:
            ProviderError: the wanted address is not in the pool.
            AddressTakenError: it is another's; or no more is free.
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
        """Let an owner have a free address.

        Raises:
            ProviderError: it is not in the pool.
            AddressTakenError: it is another's.
        """
        self._owners[self._check(owner, address)] = owner

    def release(self, address: str) -> None:
        """Take an address back."""
        self._owners.pop(ipaddress.ip_address(address), None)

    def use_holders(self, holders: Holders) -> None:
        """Give no address that a service's status tells to another one, from now on."""
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
        """Return an address if it is one of the pool's."""
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
            # Network and broadcast addresses are no host's.
            first, usable = (1, size - 2) if size > 2 else (0, size)
            for step in range(min(usable, _TRIES)):
                address = network[first + (start + step) % usable]
                if address not in _RESERVED:
                    yield address
