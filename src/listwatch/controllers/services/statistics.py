"""The statistics of a service controller."""

from typing import Final

import msgspec

from listwatch.cache.reflector_statistics import ReflectorStatistics
from listwatch.workqueue.metrics import HistogramStatistics, WorkQueueStatistics

#: Buckets of cloud-provider's histograms of nodes, in seconds: 1 to 16,384.
NODE_BOUNDS: Final = tuple(float(2**power) for power in range(15))
#: Buckets of the time until a service is served, in seconds.
CONVERGENCE_BOUNDS: Final = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)


class ServiceControllerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a service controller; counters start with it.

    Attributes:
        queue: the queue of services.
        reflector: the reflector that feeds it.
        services: services that have, or may have, a load balancer.
        nodes: nodes that load balancers use.
        syncs: services processed.
        ensured: load balancers created or updated.
        deleted: load balancers removed.
        failures: failures of any of these.
        retrying: services that wait for their next try.
        node_syncs: how often the nodes of all load balancers were compared.
        node_errors: load balancers that did not accept new nodes.
        node_sync_seconds: durations of these comparisons.
        convergence_seconds: time from the first sync of a changed service until its status shows
            the change, or its load balancer is removed.
        host_update_seconds: durations of node updates of one load balancer.
    """

    queue: WorkQueueStatistics
    reflector: ReflectorStatistics
    services: int
    nodes: int
    syncs: int
    ensured: int
    deleted: int
    failures: int
    retrying: int
    node_syncs: int
    node_errors: int
    node_sync_seconds: HistogramStatistics
    host_update_seconds: HistogramStatistics
    convergence_seconds: HistogramStatistics
