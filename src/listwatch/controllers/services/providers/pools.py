"""Address pools: their ranges, which services may use them, and their file."""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from listwatch.controllers.services.providers.claims import Claim, IPAddress, family_of
from listwatch.errors import ListWatchError
from listwatch.selector import LabelSelector, SelectorError, parse_label_selector

# Widely used already, by programs that listen on localhost.
_RESERVED: Final = ipaddress.ip_network("127.0.0.0/24")


class PoolError(ListWatchError, ValueError):
    """A pool's description is invalid; the message names the pool."""


class Range(msgspec.Struct, frozen=True):
    """Consecutive addresses, including both ends; `description` is the original text."""

    first: IPAddress
    last: IPAddress
    description: str

    @staticmethod
    def parse(text: str) -> "Range":
        """Return the range for a network, a single address, or two addresses with a hyphen.

        A network's own and broadcast addresses belong to no host and are excluded.

        Raises:
            PoolError: it is none of these.
        """
        text = text.strip()
        first, hyphen, last = text.partition("-")
        try:
            if not hyphen:
                return Range._network(text)
            start, end = ipaddress.ip_address(first.strip()), ipaddress.ip_address(last.strip())
        except ValueError as error:
            raise PoolError(
                f"{text!r} is not a network or range such as 192.0.2.0/28 or 192.0.2.1-192.0.2.9: "
                f"{error}"
            ) from None
        if start.version != end.version or int(start) > int(end):
            raise PoolError(f"{text!r} is not a range: its last address is not after its first")
        return Range(start, end, text)

    @staticmethod
    def _network(text: str) -> "Range":
        network = ipaddress.ip_network(text, strict=False)
        inset = 1 if network.num_addresses > 2 else 0  # point-to-point links have no such addresses
        return Range(network[inset], network[-1 - inset], text)

    @property
    def size(self) -> int:
        """Return the number of addresses."""
        return int(self.last) - int(self.first) + 1

    def __contains__(self, address: IPAddress) -> bool:
        return address.version == self.first.version and (
            int(self.first) <= int(address) <= int(self.last)
        )

    def starting_at(self, number: int, most: int) -> Iterator[IPAddress]:
        """Yield at most `most` addresses, each once, starting with the one at a position."""
        for step in range(min(self.size, most)):
            address = self.first + (number + step) % self.size
            if address not in _RESERVED:
                yield address


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A named set of addresses.

    Attributes:
        name: the value of the annotation `local.listwatch/address-pool`.
        ranges: the addresses, of either family.
        auto_assign: also serve services that name neither the pool nor an address of it.
        namespaces: serve only services in these; empty for all.
        service_selector: serve only services with these labels.
        load_balancer_classes: serve only services of these classes; empty for all.
    """

    name: str
    ranges: tuple[Range, ...]
    auto_assign: bool = True
    namespaces: tuple[str, ...] = ()
    service_selector: LabelSelector = LabelSelector()
    load_balancer_classes: tuple[str, ...] = ()

    @staticmethod
    def of(
        name: str,
        addresses: Iterable[str],
        *,
        auto_assign: bool = True,
        namespaces: Sequence[str] = (),
        service_selector: str = "",
        load_balancer_classes: Sequence[str] = (),
    ) -> "Pool":
        """Return a pool.

        Args:
            name: as the attribute.
            addresses: networks, ranges such as "192.0.2.1-192.0.2.9", and single addresses.
            auto_assign: as the attribute.
            namespaces: as the attribute.
            service_selector: as kubectl's `-l`.
            load_balancer_classes: as the attribute.

        Raises:
            PoolError: an address or the selector is invalid, or there is no address.
        """
        try:
            ranges = tuple(Range.parse(text) for text in addresses)
            selector = parse_label_selector(service_selector)
        except (PoolError, SelectorError) as error:
            raise PoolError(f"address pool {name}: {error}") from None
        if not ranges:
            raise PoolError(f"address pool {name}: give it a network, such as 127.0.0.0/8")
        return Pool(
            name=name,
            ranges=ranges,
            auto_assign=auto_assign,
            namespaces=tuple(namespaces),
            service_selector=selector,
            load_balancer_classes=tuple(load_balancer_classes),
        )

    def __contains__(self, address: IPAddress) -> bool:
        return any(address in one for one in self.ranges)

    @property
    def size(self) -> int:
        """Return the number of addresses."""
        return sum(one.size for one in self.ranges)

    @property
    def is_specific(self) -> bool:
        """Return whether it is for some services only; such pools are tried first."""
        return bool(
            self.namespaces or self.load_balancer_classes or not self.service_selector.is_everything
        )

    def serves(self, claim: Claim) -> bool:
        """Return whether a service may have an address of this pool."""
        return (
            (not self.namespaces or claim.namespace in self.namespaces)
            and (
                not self.load_balancer_classes
                or (claim.load_balancer_class or "") in self.load_balancer_classes
            )
            and self.service_selector.matches(claim.labels)
        )

    def addresses(self, family: str, number: int, most: int) -> Iterator[IPAddress]:
        """Yield addresses of a family, or of both if that is empty."""
        for one in self.ranges:
            if family in {"", family_of(one.first)}:
                yield from one.starting_at(number, most)


class _PoolFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A pool in the file's format."""

    name: str
    addresses: tuple[str, ...]
    auto_assign: bool = True
    namespaces: tuple[str, ...] = ()
    service_selector: str = ""
    load_balancer_classes: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pools: tuple[_PoolFile, ...]


def parse_pools(value: Any) -> list[Pool]:
    """Return the pools in a file's value: `{pools: [{name: …, addresses: […]}]}`.

    Raises:
        PoolError: it is invalid, or two pools share a name or an address.
    """
    try:
        found = msgspec.convert(value, _File)
    except msgspec.ValidationError as error:
        raise PoolError(f"address pools: {error}") from None
    pools = [Pool.of(**msgspec.structs.asdict(one)) for one in found.pools]
    check_apart(pools)
    return pools


def check_apart(pools: Sequence[Pool]) -> None:
    """Refuse pools that share a name or an address.

    Raises:
        PoolError: there are such pools, or no pools at all.
    """
    if not pools:
        raise PoolError("give the address pool a network, such as 127.0.0.0/8")
    names: set[str] = set()
    ranges: list[tuple[int, int, int, str]] = []
    for pool in pools:
        if not pool.name or pool.name in names:
            raise PoolError(f"two address pools are named {pool.name!r}: rename one")
        names.add(pool.name)
        ranges += [(r.first.version, int(r.first), int(r.last), pool.name) for r in pool.ranges]
    ranges.sort()
    furthest = ranges[0]
    for one in ranges[1:]:
        (version, _, last, name), (after, first, end, other) = furthest, one
        if version == after and first <= last and name != other:
            raise PoolError(f"address pools {name} and {other} have addresses in common")
        if (after, end) > (version, last):
            furthest = one


def load_pools(text: bytes) -> list[Pool]:
    """Return the pools of a YAML document.

    Raises:
        PoolError: it is not YAML, or `parse_pools` refuses it.
    """
    import yaml  # noqa: PLC0415 - loaded only for such a file

    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PoolError(" ".join(str(error).split())) from None
    return parse_pools(value)
