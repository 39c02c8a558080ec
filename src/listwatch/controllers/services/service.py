"""Services for the controller and providers, and the changes that matter.

The rules are those of `k8s.io/cloud-provider/controllers/service`.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from listwatch.controllers.wire import decode
from listwatch.errors import ListWatchError
from listwatch.objects import Object

#: Keeps a service until its load balancer is gone.
FINALIZER: Final = "service.kubernetes.io/load-balancer-cleanup"
_DEFAULT_AFFINITY_SECONDS: Final = 10_800


class InvalidServiceError(ListWatchError):
    """A service with fields of the wrong types."""


class ServicePort(msgspec.Struct, frozen=True, rename="camel"):
    """A port of a service, in the wire format; `node_port` is 0 if there is none."""

    port: int
    name: str = ""
    protocol: str = "TCP"
    node_port: int = 0
    target_port: int | str | None = None
    app_protocol: str | None = None


class _ClientIP(msgspec.Struct, frozen=True, rename="camel"):
    timeout_seconds: int = _DEFAULT_AFFINITY_SECONDS


class _AffinityConfig(msgspec.Struct, frozen=True):
    client_ip: _ClientIP | None = msgspec.field(default=None, name="clientIP")


class ServiceSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a service's spec that load balancers need."""

    type: str = "ClusterIP"
    ports: tuple[ServicePort, ...] = ()
    load_balancer_class: str | None = None
    load_balancer_ip: str = msgspec.field(default="", name="loadBalancerIP")
    load_balancer_source_ranges: tuple[str, ...] = ()
    session_affinity: str = "None"
    session_affinity_config: _AffinityConfig | None = None
    external_ips: tuple[str, ...] = msgspec.field(default=(), name="externalIPs")
    external_traffic_policy: str = ""
    health_check_node_port: int = 0
    ip_families: tuple[str, ...] = ()
    ip_family_policy: str = ""
    selector: dict[str, str] | None = None

    @property
    def affinity_seconds(self) -> int:
        """Seconds for which an absent client keeps its backend; 0 without affinity."""
        if self.session_affinity != "ClientIP":
            return 0
        config = self.session_affinity_config
        if config is None or config.client_ip is None:
            return _DEFAULT_AFFINITY_SECONDS
        return config.client_ip.timeout_seconds


class PortStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A port of an address; `error` is a reason in CamelCase if it does not work."""

    port: int
    protocol: str = msgspec.field(default="")
    error: str | None = None


class Ingress(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An address or hostname of a load balancer.

    `ip_mode` is "VIP" if packets reach the nodes with this address as their destination, otherwise
    "Proxy".
    """

    ip: str = ""
    hostname: str = ""
    ip_mode: str = ""
    ports: tuple[PortStatus, ...] = ()


class LoadBalancerStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The field `status.loadBalancer` of a service."""

    ingress: tuple[Ingress, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the value of the service's field."""
        value: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return value


class _Meta(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _Status(msgspec.Struct):
    load_balancer: LoadBalancerStatus = msgspec.field(
        default_factory=LoadBalancerStatus, name="loadBalancer"
    )


class _Wire(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder = msgspec.json.Decoder(_Wire)


class Service(msgspec.Struct, frozen=True):
    """One state of a service; shares nothing with a cache.

    Attributes:
        object: the whole object.
        annotations: its annotations.
        spec: its spec.
        status: the status of its load balancer.
    """

    object: Object
    annotations: dict[str, str]
    spec: ServiceSpec
    status: LoadBalancerStatus

    @staticmethod
    def of(obj: Object) -> "Service":
        """Decode a service.

        Raises:
            InvalidServiceError: a field has the wrong type.
        """
        try:
            wire = decode(_decoder, obj.raw)
        except msgspec.MsgspecError as error:
            raise InvalidServiceError(f"Service {obj.key}: {error}") from error
        return Service(obj, wire.metadata.annotations or {}, wire.spec, wire.status.load_balancer)

    @staticmethod
    def unreadable(obj: Object) -> "Service":
        """Return a stand-in for a service that can't be decoded: it asks for nothing."""
        return Service(obj, {}, ServiceSpec(), LoadBalancerStatus())

    @property
    def key(self) -> str:
        """Namespace and name."""
        return self.object.key

    @property
    def uid(self) -> str:
        """The uid of the service."""
        return self.object.uid

    @property
    def is_deleted(self) -> bool:
        """Whether it is being deleted and waits only for its finalizers."""
        return self.object.meta.deletion_timestamp is not None

    @property
    def has_finalizer(self) -> bool:
        """Whether it waits until its load balancer is removed."""
        return FINALIZER in self.object.meta.finalizers


def wants_load_balancer(service: Service, load_balancer_class: str | None = None) -> bool:
    """Return whether a service wants a load balancer of this class; None for the default class."""
    spec = service.spec
    return spec.type == "LoadBalancer" and spec.load_balancer_class == load_balancer_class


def needs_cleanup(service: Service, load_balancer_class: str | None = None) -> bool:
    """Return whether a service has our finalizer and its load balancer must be removed."""
    if not service.has_finalizer:
        return False
    if service.spec.type != "LoadBalancer":
        return True
    # A service of another class belongs to another controller until it is gone.
    return service.is_deleted and wants_load_balancer(service, load_balancer_class)


def is_ours(obj: Object, load_balancer_class: str | None = None) -> bool:
    """Return whether a service has, or may get, a load balancer of this class.

    A service that can't be decoded may have had one while it could.
    """
    try:
        service = Service.of(obj)
    except InvalidServiceError:
        return True
    return wants_load_balancer(service, load_balancer_class) or needs_cleanup(
        service, load_balancer_class
    )


def changes(old: Service, new: Service) -> Iterator[str]:
    """Yield the differences between two states that a load balancer depends on, as text."""
    if old.uid != new.uid:
        yield f"uid: {old.uid} -> {new.uid}"
    before, after = old.spec, new.spec
    if before.ports != after.ports:
        yield "ports"
    for name in (
        "type",
        "load_balancer_class",
        "load_balancer_ip",
        "load_balancer_source_ranges",
        "session_affinity",
        "session_affinity_config",
        "external_ips",
        "external_traffic_policy",
        "health_check_node_port",
        "ip_family_policy",
    ):
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            yield f"{name}: {was} -> {now}"
    if len(before.ip_families) != len(after.ip_families):
        yield f"ip_families: {before.ip_families} -> {after.ip_families}"
    if old.annotations != new.annotations:
        yield "annotations"


def needs_update(old: Service, new: Service) -> bool:
    """Return whether a load balancer made for one state must be ensured again for another."""
    return next(changes(old, new), None) is not None
