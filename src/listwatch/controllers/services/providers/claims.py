"""The addresses that a service asks for, and the rules for sharing one."""

import ipaddress
import json
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.service import Service

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Annotation of services: the name of the pool for the addresses.
ADDRESS_POOL: Final = "local.listwatch/address-pool"
#: Annotation of services: the addresses, comma-separated, instead of `loadBalancerIP`.
ADDRESSES: Final = "local.listwatch/addresses"
#: Annotation of services: services with the same key may share an address.
SHARE_ADDRESS: Final = "local.listwatch/share-address"

_ANY: Final = ""


def family_of(address: IPAddress) -> str:
    """Return "IPv4" or "IPv6"."""
    return f"IPv{address.version}"


class Wish(msgspec.Struct, frozen=True):
    """One address of a service.

    Attributes:
        family: "IPv4", "IPv6", or empty for either.
        address: the only acceptable one; None for any.
        required: without it, the service gets no addresses.
    """

    family: str = _ANY
    address: IPAddress | None = None
    required: bool = True

    def accepts(self, address: str) -> bool:
        """Return whether an address is acceptable."""
        parsed = ipaddress.ip_address(address)
        if self.address is not None:
            return parsed == self.address
        return self.family in {_ANY, family_of(parsed)}


class Claim(msgspec.Struct, frozen=True):
    """The properties of a service that decide which addresses it may have.

    Attributes:
        uid: the service's.
        key: of the service, for messages.
        namespace: the service's, for the rules of pools.
        labels: as `namespace`.
        load_balancer_class: as `namespace`.
        wishes: the requested addresses, in the order of the status.
        pool: the pool they must come from; empty for any.
        sharing: the key of services that share an address; empty for none.
        ports: protocols and numbers, which no other service on its addresses may have.
        backends: services that share an address must have the same; empty unless the policy is
            Local.
    """

    uid: str
    key: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = {}
    load_balancer_class: str | None = None
    wishes: tuple[Wish, ...] = (Wish(),)
    pool: str = ""
    sharing: str = ""
    ports: frozenset[tuple[str, int]] = frozenset()
    backends: str = ""

    @staticmethod
    def of(service: Service) -> "Claim":
        """Return a service's claim.

        Raises:
            ProviderError: it asks for invalid addresses, or for a family that it lacks.
        """
        wanted = tuple(_wanted(service))
        return msgspec.structs.replace(_without_wishes(service), wishes=_wishes(service, wanted))

    @staticmethod
    def in_status(service: Service) -> "Claim":
        """Return the claim of a service to the addresses in its status."""
        return _without_wishes(service)

    def may_share(self, other: "Claim") -> bool:
        """Return whether two services may share an address: MetalLB's rule.

        Both must have the same key, no port in common, and the same backends unless all nodes and
        endpoints may serve both (the policy Cluster).
        """
        return (
            bool(self.sharing)
            and self.sharing == other.sharing
            and not self.ports & other.ports
            and self.backends == other.backends
        )

    def asks_as(self, other: "Claim") -> bool:
        """Return whether two states of a service ask for the same addresses."""
        return (self.wishes, self.pool) == (other.wishes, other.pool)


def _without_wishes(service: Service) -> Claim:
    spec, meta = service.spec, service.object.meta
    is_local = spec.external_traffic_policy == "Local"
    return Claim(
        uid=service.uid,
        key=service.key,
        namespace=service.object.namespace,
        labels=dict(meta.labels),
        load_balancer_class=spec.load_balancer_class,
        pool=service.annotations.get(ADDRESS_POOL, "").strip(),
        sharing=service.annotations.get(SHARE_ADDRESS, "").strip(),
        ports=frozenset((port.protocol, port.port) for port in spec.ports),
        backends=json.dumps(spec.selector, sort_keys=True) if is_local else "",
    )


def _wanted(service: Service) -> Iterator[IPAddress]:
    text = service.annotations.get(ADDRESSES, "")
    where = f"annotation {ADDRESSES}"
    if not text:
        text, where = service.spec.load_balancer_ip, "loadBalancerIP"
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            yield ipaddress.ip_address(part)
        except ValueError:
            raise ProviderError(f"{where}: {part!r} is not an IP address") from None


def _wishes(service: Service, wanted: tuple[IPAddress, ...]) -> tuple[Wish, ...]:
    policy, families = service.spec.ip_family_policy, service.spec.ip_families
    if policy == "RequireDualStack":
        families = (*families, *(f for f in ("IPv4", "IPv6") if f not in families))
    elif policy != "PreferDualStack":
        families = families[:1]
    for address in wanted:
        if families and family_of(address) not in families:
            raise ProviderError(
                f"address {address} is {family_of(address)}, and the service is "
                f"{' and '.join(families)}: change the address or ipFamilies"
            )
    wishes = [Wish(family_of(address), address) for address in dict.fromkeys(wanted)]
    named = {wish.family for wish in wishes}
    if not families:
        return tuple(wishes) or (Wish(),)
    required = policy != "PreferDualStack" or len(families) == 1
    wishes += [Wish(family, None, required) for family in families if family not in named]
    return tuple(sorted(wishes, key=lambda wish: families.index(wish.family)))
