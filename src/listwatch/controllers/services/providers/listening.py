"""Listening sockets, the rules of a listener, and error messages for both."""

import errno
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from listwatch.accepting import BACKLOG
from listwatch.controllers.services.figures import Traffic
from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.balancing import Backend, Balancer
from listwatch.controllers.services.providers.proxy_protocol import ProxyProtocol

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# Errors when a process or machine lacks resources for a socket.
_SHORTAGES: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)


class AddressInUseError(ProviderError):
    """Another program listens on the address."""


class Rules(msgspec.Struct, frozen=True):
    """A service's rules for all of its ports.

    Attributes:
        source_ranges: networks that may connect; empty for all.
        least_connections: choose the backend with the fewest connections, instead of taking turns.
        max_connections: maximum connections of each port; 0 for no limit. Further ones are refused.
        idle_seconds: close connections after this long without data; 0 for never.
        health_path: path that a healthy backend answers by HTTP; empty to check the port only.
        proxy_protocol: the header sent to backends.
    """

    source_ranges: tuple[Network, ...] = ()
    proxy_protocol: ProxyProtocol = ProxyProtocol.NONE
    least_connections: bool = False
    max_connections: int = 0
    idle_seconds: float = 0.0
    health_path: str = ""

    def allow(self, client: str) -> bool:
        """Return whether a client may connect."""
        if not self.source_ranges:
            return True
        address = ipaddress.ip_address(client)
        return any(address in network for network in self.source_ranges)


class PortListener(Protocol):
    """One served port."""

    balancer: Balancer
    rules: Rules

    def set_backends(self, backends: Iterable[Backend]) -> None:
        """Use these backends from now on; connections to others may end within the drain time."""
        ...

    def close(self, *, drain: bool) -> None:
        """Stop listening; let connections continue for the drain time, or end them at once."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether it is paused because this process can open no more files."""
        ...

    def statistics(self) -> Traffic:
        """Return current statistics."""
        ...


def parse_source_ranges(
    ranges: Sequence[str], where: str = "loadBalancerSourceRanges"
) -> tuple[Network, ...]:
    """Return source ranges as networks.

    Raises:
        ProviderError: a range is not a network.
    """
    networks: list[Network] = []
    for text in ranges:
        try:
            networks.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError:
            raise ProviderError(
                f"{where}: {text!r} is not a network such as 192.0.2.0/24"
            ) from None
    return tuple(networks)


def is_shortage(error: OSError) -> bool:
    """Return whether a socket failed because this machine lacks resources."""
    return error.errno in _SHORTAGES


def bind(kind: socket.SocketKind, address: str, port: int) -> socket.socket:
    """Return a non-blocking socket bound to an address; a TCP socket listens.

    Raises:
        AddressInUseError: another program uses the address.
        ProviderError: it is unavailable for another reason.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        sock = socket.socket(family, kind)
    except OSError as error:
        raise _explained(error, address, port) from error
    try:
        sock.setblocking(False)
        if kind is socket.SOCK_STREAM:
            # Let a restarted program use its address although connections have just ended.
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
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return ProviderError(
            f"can't listen on {where}: too many open files; raise the limit, ulimit -n"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ProviderError(
            f"{address} is not an address of this machine: add it to an interface, or choose a "
            "range within 127.0.0.0/8"
        )
    return ProviderError(f"can't listen on {where}: {error.strerror or error}")
