"""A provider's figures of its load balancers, for metrics and `--status`."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec


class Traffic(msgspec.Struct, frozen=True):
    """Traffic of one load balancer, all of its ports together.

    Attributes:
        open: current connections (TCP) and flows (UDP).
        accepted: total accepted.
        refused: refused because of their source or a limit.
        failed: no backend was available.
        bytes_in: received from clients.
        bytes_out: sent to clients.
    """

    open: int = 0
    accepted: int = 0
    refused: int = 0
    failed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.open + other.open,
            self.accepted + other.accepted,
            self.refused + other.refused,
            self.failed + other.failed,
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
        )


class LoadBalancerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One load balancer.

    Attributes:
        namespace: of the service.
        name: of the service.
        addresses: its addresses.
        backends: its backends, counted for each port.
        failed_backends: the unhealthy ones.
        traffic: of all ports.
    """

    namespace: str
    name: str
    addresses: Sequence[str]
    backends: int
    failed_backends: int
    traffic: Traffic


class ProviderFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All load balancers of a provider.

    Attributes:
        load_balancers: each one.
        pools: addresses used and in total, by pool name.
        misfits: addresses in use that no pool would give now.
        shortages: how often this process could open no more files.
        counters: further counters by name, such as reloads.
        problem: why load balancers do not work now; empty if they do.
    """

    load_balancers: Sequence[LoadBalancerFigures]
    pools: Mapping[str, tuple[int, int]]
    misfits: int = 0
    shortages: int = 0
    counters: Mapping[str, int] = {}
    problem: str = ""


@runtime_checkable
class TellsFigures(Protocol):
    """A provider with figures."""

    def figures(self) -> ProviderFigures:
        """Return current figures, without waiting."""
        ...
