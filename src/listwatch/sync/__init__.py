"""Informers and verbs for programs without asyncio: they run in a thread, and every call waits.

    with connect() as cluster:
        cluster.wait_for("deployments", "web", "Available", seconds=60)
        pods = cluster.informer("pods", namespace="default")
        pods.wait_for_sync()
        print(pods.lister.list("app=web"))
        for change in pods.changes():
            print(change)

Also works in a program with a running event loop, such as a notebook; a call blocks that loop while
it waits.
"""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.sync.cluster import Cluster, connect
    from listwatch.sync.connection import BlockingInformer, Connection, Registration

__all__ = ["BlockingInformer", "Cluster", "Connection", "Registration", "connect"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.sync.cluster": "Cluster connect",
        "listwatch.sync.connection": "BlockingInformer Connection Registration",
    },
)
