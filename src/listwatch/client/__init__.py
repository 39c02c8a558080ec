"""Reads, writes and watches any resource of an API server."""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.client.adapters import (
        client_of,
    )
    from listwatch.client.auth import (
        Authenticator,
        Credentials,
    )
    from listwatch.client.client import (
        Client,
        PartialObjectError,
        PatchType,
    )
    from listwatch.client.config import (
        Config,
        ExecConfig,
        Impersonation,
        OIDCConfig,
    )
    from listwatch.client.discovery import (
        Discovery,
        UnknownResourceError,
    )
    from listwatch.client.http import (
        HTTP,
        Request,
        RequestHook,
    )
    from listwatch.client.kubeconfig import (
        in_cluster_config,
        load_config,
        parse_kubeconfig,
    )
    from listwatch.client.list_watch import (
        ResourceListWatch,
    )
    from listwatch.client.tracing import (
        tracing_hook,
    )
    from listwatch.client.waiting import (
        WaitCondition,
    )

__all__ = [
    "HTTP",
    "Authenticator",
    "Client",
    "Config",
    "Credentials",
    "Discovery",
    "ExecConfig",
    "Impersonation",
    "OIDCConfig",
    "PartialObjectError",
    "PatchType",
    "Request",
    "RequestHook",
    "ResourceListWatch",
    "UnknownResourceError",
    "WaitCondition",
    "client_of",
    "in_cluster_config",
    "load_config",
    "parse_kubeconfig",
    "tracing_hook",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.client.adapters": "client_of",
        "listwatch.client.auth": "Authenticator Credentials",
        "listwatch.client.client": "Client PartialObjectError PatchType",
        "listwatch.client.config": "Config ExecConfig Impersonation OIDCConfig",
        "listwatch.client.discovery": "Discovery UnknownResourceError",
        "listwatch.client.http": "HTTP Request RequestHook",
        "listwatch.client.kubeconfig": "in_cluster_config load_config parse_kubeconfig",
        "listwatch.client.list_watch": "ResourceListWatch",
        "listwatch.client.tracing": "tracing_hook",
        "listwatch.client.waiting": "WaitCondition",
    },
)
