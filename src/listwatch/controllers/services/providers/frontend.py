"""What a service wants from its load balancer, in the providers' terms."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeAlias

from listwatch.controllers.services.nodes import Node
from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.balancing import LAST_PORT, Backend, is_address
from listwatch.controllers.services.providers.listening import Rules, parse_source_ranges
from listwatch.controllers.services.providers.proxy_protocol import ProxyProtocol
from listwatch.controllers.services.service import (
    Ingress,
    LoadBalancerStatus,
    PortStatus,
    Service,
    ServicePort,
)

#: An annotation of services: "v1" or "v2" sends backends the client's address in that version of
#: the PROXY protocol.
PROXY_PROTOCOL: Final = "local.listwatch/proxy-protocol"

#: Protocol and port of a listener.
PortKey: TypeAlias = tuple[str, int]


def rules_of(service: Service) -> Rules:
    """Return the rules for all ports of a service.

    Raises:
        ProviderError: a range is not a network, or the annotation has an invalid value.
    """
    text = service.annotations.get(PROXY_PROTOCOL, ProxyProtocol.NONE)
    try:
        version = ProxyProtocol(text)
    except ValueError:
        raise ProviderError(
            f"annotation {PROXY_PROTOCOL} is {text!r}: it must be none, v1 or v2"
        ) from None
    return Rules(parse_source_ranges(service.spec.load_balancer_source_ranges), version)


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

    Each is a node's first address of the first of the service's families that the node has: nothing
    need listen on others. The proxy's own address may be of another family.
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
