"""Tools to test programs that use an API server."""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.apiserver.http.faults import (
        Fault,
    )
    from listwatch.apiserver.http.request_log import (
        RecordedRequest,
    )
    from listwatch.apiserver.workloads.failures import (
        PodFailure,
    )
    from listwatch.apiserver.workloads.options import (
        Workloads,
    )
    from listwatch.clock import (
        FakeClock,
    )
    from listwatch.testing.api_server import (
        APIServer,
    )
    from listwatch.testing.fake_controller_source import (
        FakeControllerSource,
        FakeListWatch,
        pod,
    )
    from listwatch.testing.fake_recorder import FakeRecorder
    from listwatch.testing.fault_proxy import (
        FaultProxy,
        FaultProxyStatistics,
    )
    from listwatch.testing.load_balancer_conformance import (
        LoadBalancerConformance,
        ask,
        ask_udp,
        make_service,
        named_server,
        named_udp_server,
    )
    from listwatch.testing.ports import (
        free_port,
    )
    from listwatch.testing.round_trips import (
        assert_round_trips,
        manifests,
    )
    from listwatch.testing.story import (
        Chapter,
        ChapterType,
        Comparison,
        Gap,
        compare,
    )
    from listwatch.testing.waiting import (
        eventually,
    )
    from listwatch.testing.webhook_server import (
        WebhookServer,
    )
    from listwatch.testing.workload import (
        Action,
        ActionType,
        PodGenerator,
        PodWorkload,
    )

__all__ = [
    "APIServer",
    "Action",
    "ActionType",
    "Chapter",
    "ChapterType",
    "Comparison",
    "FakeClock",
    "FakeControllerSource",
    "FakeListWatch",
    "FakeRecorder",
    "Fault",
    "FaultProxy",
    "FaultProxyStatistics",
    "Gap",
    "LoadBalancerConformance",
    "PodFailure",
    "PodGenerator",
    "PodWorkload",
    "RecordedRequest",
    "WebhookServer",
    "Workloads",
    "ask",
    "ask_udp",
    "assert_round_trips",
    "compare",
    "eventually",
    "free_port",
    "make_service",
    "manifests",
    "named_server",
    "named_udp_server",
    "pod",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.apiserver.http.faults": "Fault",
        "listwatch.apiserver.http.request_log": "RecordedRequest",
        "listwatch.apiserver.workloads.failures": "PodFailure",
        "listwatch.apiserver.workloads.options": "Workloads",
        "listwatch.clock": "FakeClock",
        "listwatch.testing.api_server": "APIServer",
        "listwatch.testing.fake_controller_source": "FakeControllerSource FakeListWatch pod",
        "listwatch.testing.fake_recorder": "FakeRecorder",
        "listwatch.testing.fault_proxy": "FaultProxy FaultProxyStatistics",
        "listwatch.testing.load_balancer_conformance": (
            "LoadBalancerConformance ask ask_udp make_service named_server named_udp_server"
        ),
        "listwatch.testing.ports": "free_port",
        "listwatch.testing.round_trips": "assert_round_trips manifests",
        "listwatch.testing.story": "Chapter ChapterType Comparison Gap compare",
        "listwatch.testing.waiting": "eventually",
        "listwatch.testing.webhook_server": "WebhookServer",
        "listwatch.testing.workload": "Action ActionType PodGenerator PodWorkload",
    },
)
