"""A service's requests to its load balancer, parsed for providers."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from listwatch.client.durations import seconds_of
from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.balancing import LAST_PORT, Backend, is_address
from listwatch.controllers.services.providers.listening import (
    Network,
    Rules,
    parse_source_ranges,
)
from listwatch.controllers.services.providers.proxy_protocol import ProxyProtocol
from listwatch.controllers.services.service import (
    Ingress,
    LoadBalancerStatus,
    PortStatus,
    Service,
    ServicePort,
)

#: Annotation of services: networks that may connect, comma-separated, if the field is empty.
SOURCE_RANGES: Final = "service.beta.kubernetes.io/load-balancer-source-ranges"
#: Annotation of services: "round-robin", or "least-connections" for the least busy backend.
BALANCE: Final = "local.listwatch/balance"
_BALANCES: Final = ("round-robin", "least-connections")
#: Annotation of services: maximum connections of each port.
MAX_CONNECTIONS: Final = "local.listwatch/max-connections"
#: Annotation of services: close connections without data after this duration, such as 10m.
IDLE_TIMEOUT: Final = "local.listwatch/idle-timeout"
#: Annotation of services: path that healthy backends answer with 2xx or 3xx.
HEALTH_CHECK_PATH: Final = "local.listwatch/health-check-path"
#: Annotation of services: "v1" or "v2" sends backends the client's address in that version of the
#: PROXY protocol.
PROXY_PROTOCOL: Final = "local.listwatch/proxy-protocol"

_SHORTEST_IDLE: Final = 1.0
# HAProxy's timers end after 24.8 days.
_LONGEST_IDLE: Final = 24 * 86_400.0
# No machine has that many connections.
_LONGEST_NUMBER: Final = 9
# None of these characters has a meaning in HAProxy's configuration.
_PATH: Final = re.compile(r"/[A-Za-z0-9/_.~%?&=+,:@-]{0,1000}")

#: Protocol and port of a listener.
PortKey: TypeAlias = tuple[str, int]


def rules_of(service: Service) -> Rules:
    """Return the rules of all ports of a service: its ranges and its annotations.

    Raises:
        ProviderError: a range is not a network, or an annotation has an invalid value.
    """
    annotations = service.annotations
    return Rules(
        source_ranges=_source_ranges(service),
        proxy_protocol=ProxyProtocol(
            _choice(annotations, PROXY_PROTOCOL, tuple(one.value for one in ProxyProtocol))
        ),
        least_connections=_choice(annotations, BALANCE, _BALANCES) == _BALANCES[1],
        max_connections=_number(annotations, MAX_CONNECTIONS),
        idle_seconds=_seconds(annotations, IDLE_TIMEOUT),
        health_path=_path(annotations, HEALTH_CHECK_PATH),
    )


def _source_ranges(service: Service) -> tuple[Network, ...]:
    ranges = service.spec.load_balancer_source_ranges
    if ranges:
        return parse_source_ranges(ranges)
    parts = (part.strip() for part in service.annotations.get(SOURCE_RANGES, "").split(","))
    return parse_source_ranges([part for part in parts if part], f"annotation {SOURCE_RANGES}")


def _choice(annotations: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """Return an annotation's value; the first choice is the default."""
    text = annotations.get(name, choices[0])
    if text not in choices:
        known = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise ProviderError(f"annotation {name} is {text!r}: it must be {known}")
    return text


def _number(annotations: Mapping[str, str], name: str) -> int:
    text = annotations.get(name, "0").strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > _LONGEST_NUMBER:
        raise ProviderError(f"annotation {name} is {text!r}: it must be a number such as 1000")
    return int(text)


def _seconds(annotations: Mapping[str, str], name: str) -> float:
    try:
        seconds = seconds_of(annotations.get(name, "0").strip())
    except ValueError as error:
        raise ProviderError(f"annotation {name}: {error}") from None
    if seconds and not _SHORTEST_IDLE <= seconds <= _LONGEST_IDLE:
        raise ProviderError(
            f"annotation {name} is {seconds:g} s: it must be {_SHORTEST_IDLE:g} s to "
            f"{_LONGEST_IDLE:g} s, or 0 for no limit"
        )
    return seconds


def _path(annotations: Mapping[str, str], name: str) -> str:
    text = annotations.get(name, "").strip()
    if text and _PATH.fullmatch(text) is None:
        raise ProviderError(f"annotation {name} is {text!r}: it must be a path such as /healthz")
    return text


def ports_of(
    service: Service, protocols: Collection[str] = ("TCP", "UDP")
) -> dict[PortKey, ServicePort]:
    """Return a service's ports.

    Raises:
        ProviderError: a port has another protocol, or there are no ports.
    """
    for port in service.spec.ports:
        if port.protocol not in protocols:
            raise ProviderError(
                f"port {port.port}/{port.protocol}: this provider forwards only "
                f"{' and '.join(protocols)}"
            )
        if not 0 < port.port <= LAST_PORT:
            raise ProviderError(f"port {port.port}/{port.protocol}: ports are 1 to {LAST_PORT}")
    return {(port.protocol, port.port): port for port in service.spec.ports}


def node_port_backends(port: ServicePort, nodes: Sequence[Node], service: Service) -> list[Backend]:
    """Return the backends of a port on the nodes.

    Each is a node's first address of the service's first family that the node has: other addresses
    may have no listener. The proxy's own address may be of another family.
    """
    if not port.node_port:
        return []
    families = [family == "IPv6" for family in service.spec.ip_families or ("IPv4", "IPv6")]
    addresses = (
        next((ip for is_v6 in families for ip in node.internal_ips if (":" in ip) == is_v6), "")
        for node in nodes
    )
    return [Backend(ip, port.node_port) for ip in addresses if is_address(ip)]


def status_of(addresses: Iterable[str], keys: Iterable[PortKey]) -> LoadBalancerStatus:
    """Return the status of a load balancer that serves these ports on each of these addresses."""
    ports = tuple(
        PortStatus(port, protocol)
        for protocol, port in sorted(keys, key=lambda key: (key[1], key[0]))
    )
    return LoadBalancerStatus(
        tuple(Ingress(ip=address, ip_mode="Proxy", ports=ports) for address in addresses)
    )
