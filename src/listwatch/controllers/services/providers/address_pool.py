"""Allocates addresses to load balancers."""

import hashlib
import ipaddress
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from listwatch.controllers.services.provider import AddressTakenError, Holders, ProviderError
from listwatch.controllers.services.providers.claims import Claim, IPAddress, Wish, family_of
from listwatch.controllers.services.providers.pools import Pool, check_apart

_logger = logging.getLogger(__name__)

#: Maximum addresses tried before a range counts as full.
_TRIES: Final = 4096


class AddressPool:
    """Gives services addresses from pools; services that must not share get different ones.

    A service gets the same address each time if it is free, so the address survives a restart even
    without a record. An address in a service's status goes to no other service, even before the
    service takes it. Addresses of 127.0.0.0/24 are given only on request.

    For one event loop.

    Args:
        networks: such as "127.0.0.0/8" (usable on Linux without setup), "192.0.2.0/28" or
            "2001:db8::1-2001:db8::9"; they form the pool "default".
        pools: used instead of `networks`.

    Raises:
        PoolError: not a network; or two pools share a name or an address.
    """

    def __init__(
        self,
        networks: Iterable[str] = ("127.0.0.0/8",),
        *,
        pools: Sequence[Pool] | None = None,
    ) -> None:
        self._pools: Sequence[Pool] = ()
        self._owners: dict[IPAddress, dict[str, Claim]] = {}
        self._held: dict[str, set[IPAddress]] = {}
        self._holders: Holders = lambda _address: ()
        self.set_pools([Pool.of("default", networks)] if pools is None else pools)

    def __len__(self) -> int:
        """Return how many addresses are in use."""
        return len(self._owners)

    @property
    def pools(self) -> Sequence[Pool]:
        """The pools."""
        return self._pools

    def used(self, pool: Pool) -> int:
        """Return the number of addresses of a pool in use."""
        return sum(address in pool for address in self._owners)

    def set_pools(self, pools: Sequence[Pool]) -> None:
        """Use these pools from now on.

        A service with an address that no longer fits keeps it until it asks for another; a warning
        names it.

        Raises:
            PoolError: two share a name or an address; the previous pools stay.
        """
        check_apart(pools)
        self._pools = sorted(pools, key=lambda one: not one.is_specific)
        for address, claim in self.misfits():
            _logger.warning(
                "service %s keeps %s, which no address pool would give it now", claim.key, address
            )

    def misfits(self) -> Iterator[tuple[IPAddress, Claim]]:
        """Yield the addresses in use that no pool would give, each with its claim."""
        for address, owners in self._owners.items():
            for claim in owners.values():
                if not self._fits(claim, address):
                    yield address, claim

    def use_holders(self, holders: Holders) -> None:
        """From now on, give no address in a service's status to another service."""
        self._holders = holders

    def candidates(self, claim: Claim, wish: Wish, before: Sequence[str] = ()) -> Iterator[str]:
        """Yield addresses that a service may have, the best first; takes none.

        Args:
            claim: the service's.
            wish: which of its addresses this is.
            before: its previous addresses; preferred.

        Raises:
            ProviderError: no pool has such an address for this service.
            AddressTakenError: all such addresses are taken.
        """
        if wish.address is not None:
            self._check_fits(claim, wish.address)
            if not self._is_free(claim, wish.address):
                raise AddressTakenError(f"address {wish.address} is in use by another service")
            yield str(wish.address)
            return
        pools = self._serving(claim, wish.family)
        seen: set[IPAddress] = set()
        for address in self._preferred(claim, pools, wish.family, before):
            if address not in seen and self._is_free(claim, address):
                yield str(address)
            seen.add(address)
        start = int.from_bytes(hashlib.sha256(claim.uid.encode()).digest()[:16])
        for one in pools:
            if not one.auto_assign and one.name != claim.pool:
                continue
            for address in one.addresses(wish.family, start, _TRIES):
                if address not in seen and self._is_free(claim, address):
                    yield str(address)
        raise AddressTakenError(
            f"no free {wish.family or 'IP'} address in {_named(pools)}: "
            "delete services of type LoadBalancer, or give the provider a larger range"
        )

    def take(self, claim: Claim, address: str) -> None:
        """Give a service an address from `candidates`, in addition to its others."""
        self._put(claim, ipaddress.ip_address(address))

    def keep(self, claim: Claim, addresses: Iterable[str]) -> None:
        """Record that a service has exactly these addresses, with this claim."""
        kept = {ipaddress.ip_address(address) for address in addresses}
        for address in self._held.get(claim.uid, set()) - kept:
            self._drop(address, claim.uid)
        for address in kept:
            self._put(claim, address)

    def release_all(self, uid: str) -> None:
        """Free all addresses of a service."""
        for address in list(self._held.get(uid, ())):
            self._drop(address, uid)

    def release(self, uid: str, address: str) -> None:
        """Free an address of a service."""
        self._drop(ipaddress.ip_address(address), uid)

    def may_keep(self, claim: Claim, address: str) -> bool:
        """Return whether a service may keep an address.

        It may if it still asks for the same as when it got the address, or if a pool may serve its
        present claim with it. In both cases every other owner must be able to share the address.
        """
        parsed = ipaddress.ip_address(address)
        had = self._owners.get(parsed, {}).get(claim.uid)
        if had is None:
            return False
        unchanged = claim.asks_as(had)
        return (unchanged or self._fits(claim, parsed)) and self._is_free(claim, parsed)

    def _put(self, claim: Claim, address: IPAddress) -> None:
        self._owners.setdefault(address, {})[claim.uid] = claim
        self._held.setdefault(claim.uid, set()).add(address)

    def _drop(self, address: IPAddress, uid: str) -> None:
        owners, held = self._owners.get(address, {}), self._held.get(uid, set())
        owners.pop(uid, None)
        held.discard(address)
        if not owners:
            self._owners.pop(address, None)
        if not held:
            self._held.pop(uid, None)

    # --- Candidates ---

    def _serving(self, claim: Claim, family: str) -> list[Pool]:
        """Return the pools that may serve a service.

        Raises:
            ProviderError: there is none, for a reason that the service's owner can fix.
        """
        named = [one for one in self._pools if one.name == claim.pool] if claim.pool else []
        if claim.pool and not named:
            known = ", ".join(one.name for one in self._pools)
            raise ProviderError(f"there is no address pool {claim.pool}: the pools are {known}")
        pools = [one for one in named or self._pools if one.serves(claim)]
        if not pools:
            raise ProviderError(
                f"no address pool is for this service: {_named(named or self._pools)} is for other "
                "namespaces, labels or classes"
            )
        there = [one for one in pools if next(one.addresses(family, 0, _TRIES), None) is not None]
        if not any(one.auto_assign or one.name == claim.pool for one in there):
            raise ProviderError(
                f"no {family or 'IP'} address is assigned automatically from {_named(pools)}: "
                "add a range to a pool, or change the service's annotations or ipFamilies"
            )
        return there

    def _preferred(
        self, claim: Claim, pools: Sequence[Pool], family: str, before: Sequence[str]
    ) -> Iterator[IPAddress]:
        """Yield a service's previous addresses, then those that it may share."""
        for text in before:
            try:
                address = ipaddress.ip_address(text)
            except ValueError:
                continue
            if family in {"", family_of(address)} and any(address in one for one in pools):
                yield address
        if not claim.sharing:
            return
        for address, owners in list(self._owners.items()):
            shares = any(other.sharing == claim.sharing for other in owners.values())
            if (
                shares
                and family in {"", family_of(address)}
                and any(address in one for one in pools)
            ):
                yield address

    def _fits(self, claim: Claim, address: IPAddress) -> bool:
        return any(
            address in one and one.serves(claim) and claim.pool in {"", one.name}
            for one in self._pools
        )

    def _check_fits(self, claim: Claim, address: IPAddress) -> None:
        if self._fits(claim, address):
            return
        if not any(address in one for one in self._pools):
            raise ProviderError(
                f"address {address} is not in the provider's range {_named(self._pools)}"
            )
        raise ProviderError(
            f"address {address} is of an address pool for other services: see its namespaces, "
            "labels and classes, and the service's annotations"
        )

    # --- Owners ---

    def _is_free(self, claim: Claim, address: IPAddress) -> bool:
        owners = self._owners.get(address, {})
        had = owners.get(claim.uid)
        if had is not None and (had.ports, had.sharing, had.backends) == (
            claim.ports,
            claim.sharing,
            claim.backends,
        ):
            return True
        if not all(claim.may_share(other) for uid, other in owners.items() if uid != claim.uid):
            return False
        for service in self._holders(str(address)):
            if service.uid == claim.uid:
                return True  # the remaining ones are younger
            if service.uid not in owners and not claim.may_share(Claim.in_status(service)):
                return False
        return True


def _named(pools: Iterable[Pool]) -> str:
    """Return the pools as text: their names, or the ranges if there is only the default."""
    return ", ".join(
        ", ".join(one.description for one in each.ranges) if each.name == "default" else each.name
        for each in pools
    )
