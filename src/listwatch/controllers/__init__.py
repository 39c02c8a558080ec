"""Load balancers for services without a cloud, and OpenShift's build controllers."""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.controllers.builds.api import (
        BuildsAPI,
        ClientBuilds,
    )
    from listwatch.controllers.builds.factory import (
        BuildControllerFactory,
        BuildPodControllerFactory,
        DeleteController,
    )
    from listwatch.controllers.builds.list_watch import (
        BuildDeleteListWatch,
        BuildPodDeleteListWatch,
    )
    from listwatch.controllers.services.api import (
        ClientServices,
    )
    from listwatch.controllers.services.nodes import (
        Node,
        NodeSet,
    )
    from listwatch.controllers.services.provider import (
        AddressTakenError,
        ImplementedElsewhereError,
        KeepsAddresses,
        LoadBalancerProvider,
        OutlivesController,
        ProviderError,
        RetryAfterError,
        default_load_balancer_name,
    )
    from listwatch.controllers.services.providers.address_pool import (
        AddressPool,
    )
    from listwatch.controllers.services.providers.haproxy import (
        HAProxyProvider,
        HAProxyStatistics,
    )
    from listwatch.controllers.services.providers.local import (
        LocalProvider,
        LocalProviderStatistics,
    )
    from listwatch.controllers.services.providers.pools import (
        Pool,
        PoolError,
    )
    from listwatch.controllers.services.service import (
        Ingress,
        InvalidServiceError,
        LoadBalancerStatus,
        PortStatus,
        Service,
        ServicePort,
        ServiceSpec,
    )
    from listwatch.controllers.services.service_controller import (
        ServiceController,
    )
    from listwatch.controllers.services.statistics import (
        ServiceControllerStatistics,
    )

__all__ = [
    "AddressPool",
    "AddressTakenError",
    "BuildControllerFactory",
    "BuildDeleteListWatch",
    "BuildPodControllerFactory",
    "BuildPodDeleteListWatch",
    "BuildsAPI",
    "ClientBuilds",
    "ClientServices",
    "DeleteController",
    "HAProxyProvider",
    "HAProxyStatistics",
    "ImplementedElsewhereError",
    "Ingress",
    "InvalidServiceError",
    "KeepsAddresses",
    "LoadBalancerProvider",
    "LoadBalancerStatus",
    "LocalProvider",
    "LocalProviderStatistics",
    "Node",
    "NodeSet",
    "OutlivesController",
    "Pool",
    "PoolError",
    "PortStatus",
    "ProviderError",
    "RetryAfterError",
    "Service",
    "ServiceController",
    "ServiceControllerStatistics",
    "ServicePort",
    "ServiceSpec",
    "default_load_balancer_name",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.controllers.builds.api": "BuildsAPI ClientBuilds",
        "listwatch.controllers.builds.factory": (
            "BuildControllerFactory BuildPodControllerFactory DeleteController"
        ),
        "listwatch.controllers.builds.list_watch": "BuildDeleteListWatch BuildPodDeleteListWatch",
        "listwatch.controllers.services.api": "ClientServices",
        "listwatch.controllers.services.nodes": "Node NodeSet",
        "listwatch.controllers.services.provider": (
            "AddressTakenError ImplementedElsewhereError KeepsAddresses LoadBalancerProvider "
            "OutlivesController ProviderError RetryAfterError default_load_balancer_name"
        ),
        "listwatch.controllers.services.providers.address_pool": "AddressPool",
        "listwatch.controllers.services.providers.haproxy": "HAProxyProvider HAProxyStatistics",
        "listwatch.controllers.services.providers.local": "LocalProvider LocalProviderStatistics",
        "listwatch.controllers.services.providers.pools": "Pool PoolError",
        "listwatch.controllers.services.service": (
            "Ingress InvalidServiceError LoadBalancerStatus PortStatus Service "
            "ServicePort ServiceSpec"
        ),
        "listwatch.controllers.services.service_controller": "ServiceController",
        "listwatch.controllers.services.statistics": "ServiceControllerStatistics",
    },
)
