"""Sockets to listen on, what keeps a listener's rules, and the errors of both in words."""

import errno
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from listwatch.accepting import BACKLOG
from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.balancing import Backend, Balancer
from listwatch.controllers.services.providers.proxy_protocol import ProxyProtocol

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# What a process or machine lacks when it can't make a socket.
_SHORTAGES: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)


class AddressInUseError(ProviderError):
    """Another program listens there."""


class PortListenerStatistics(msgspec.Struct, frozen=True):
    """The figures of one listener.

    Attributes:
        open: connections (TCP) or flows (UDP) at present.
        accepted: all that were taken.
        refused: turned away because of their source.
        failed: for which no backend was found.
        bytes_in: received from clients.
        bytes_out: sent to clients.
    """

    open: int
    accepted: int
    refused: int
    failed: int
    bytes_in: int
    bytes_out: int


class Rules(msgspec.Struct, frozen=True):
    """What a service asks for that holds for all of its ports.

    Attributes:
        source_ranges: who may connect; empty for everybody.
        proxy_protocol: the header sent to backends.
    """

    source_ranges: tuple[Network, ...] = ()
    proxy_protocol: ProxyProtocol = ProxyProtocol.NONE

    def allow(self, client: str) -> bool:
        """Tell whether a client may connect."""
        if not self.source_ranges:
            return True
        address = ipaddress.ip_address(client)
        return any(address in network for network in self.source_ranges)


class PortListener(Protocol):
    """One port that is served."""

    balancer: Balancer
    rules: Rules

    def set_backends(self, backends: Iterable[Backend]) -> None:
        """Send to these from now on; what goes elsewhere may end within the drain time."""
        ...

    def close(self, *, drain: bool) -> None:
        """Listen no more; let connections go on for the drain time, or end them at once."""
        ...

    def statistics(self) -> PortListenerStatistics:
        """Return the figures of this moment."""
        ...


def parse_source_ranges(ranges: Sequence[str]) -> tuple[Network, ...]:
    """Return source ranges as networks.

    Raises:
        ProviderError: one is no network.
    """
    networks: list[Network] = []
    for text in ranges:
        try:
            networks.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError:
            raise ProviderError(
                f"loadBalancerSourceRanges: {text!r} is not a network such as 192.0.2.0/24"
            ) from None
    return tuple(networks)


def is_shortage(error: OSError) -> bool:
    """Tell whether a socket failed for what this machine lacks, which is no backend's fault."""
    return error.errno in _SHORTAGES


def bind(kind: socket.SocketKind, address: str, port: int) -> socket.socket:
    """Return a socket bound to an address, without blocking; TCP ones listen.

    Raises:
        AddressInUseError: another program has it.
        ProviderError: it can't be had for another reason.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, kind)
    try:
        sock.setblocking(False)
        if kind is socket.SOCK_STREAM:
            # Connections that have just ended must not keep a restarted program from its address.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        if kind is socket.SOCK_STREAM:
            sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _explained(error, address, port) from error
    return sock


def _explained(error: OSError, address: str, port: int) -> ProviderError:
    where = f"{address} port {port}"
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(f"another program listens on {where}")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return ProviderError(
            f"listening on {where} is not allowed: run as root, or lower "
            "net.ipv4.ip_unprivileged_port_start"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ProviderError(
            f"{address} is not an address of this machine: add it to an interface, or choose a "
            "range within 127.0.0.0/8"
        )
    return ProviderError(f"can't listen on {where}: {error.strerror or error}")
