"""Options of ports, from a service's spec and annotations."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from controllers.service_cluster import annotated
from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers import frontend
from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.frontend import (
    BALANCE,
    HEALTH_CHECK_PATH,
    IDLE_TIMEOUT,
    MAX_CONNECTIONS,
    PROXY_PROTOCOL,
    SOURCE_RANGES,
)
from listwatch.controllers.services.providers.haproxy_config import PEER, Frontend, Settings, render
from listwatch.controllers.services.providers.haproxy_process import find_program
from listwatch.controllers.services.providers.listening import Rules
from listwatch.testing.load_balancer_conformance import make_service


def rules_of(annotations: dict[str, str], **spec: Any) -> Rules:
    return frontend.rules_of(annotated(make_service(ports=[], **spec), annotations))


def test_ranges_in_the_annotation_count_where_the_field_is_empty() -> None:
    ranges = {SOURCE_RANGES: " 192.0.2.0/24 ,2001:db8::/32,"}
    assert [str(one) for one in rules_of(ranges).source_ranges] == [
        "192.0.2.0/24",
        "2001:db8::/32",
    ]
    rules = rules_of(ranges, loadBalancerSourceRanges=["198.51.100.0/24"])
    assert [str(one) for one in rules.source_ranges] == ["198.51.100.0/24"]
    assert rules_of({SOURCE_RANGES: ""}).source_ranges == ()


def test_annotations_are_options() -> None:
    rules = rules_of(
        {
            BALANCE: "least-connections",
            MAX_CONNECTIONS: "100",
            IDLE_TIMEOUT: "1m30s",
            HEALTH_CHECK_PATH: "/healthz?full=1",
        }
    )
    assert rules == Rules(
        least_connections=True,
        max_connections=100,
        idle_seconds=90.0,
        health_path="/healthz?full=1",
    )
    assert rules_of({BALANCE: "round-robin"}) == Rules()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (SOURCE_RANGES, "everywhere", f"annotation {SOURCE_RANGES}: 'everywhere' is not a network"),
        (BALANCE, "random", "must be round-robin or least-connections"),
        (PROXY_PROTOCOL, "v3", "must be none, v1 or v2"),
        (MAX_CONNECTIONS, "-1", "must be a number such as 1000"),
        (MAX_CONNECTIONS, "1" * 10, "must be a number such as 1000"),
        (MAX_CONNECTIONS, "\u0661", "must be a number such as 1000"),
        (IDLE_TIMEOUT, "soon", "is not a duration"),
        (IDLE_TIMEOUT, "10ms", "it must be 1 s to"),
        (IDLE_TIMEOUT, "9999h", "it must be 1 s to"),
        (HEALTH_CHECK_PATH, "healthz", "must be a path such as /healthz"),
        (HEALTH_CHECK_PATH, "/a b", "must be a path"),
        (HEALTH_CHECK_PATH, "/a\n    server x", "must be a path"),
        (HEALTH_CHECK_PATH, '/"', "must be a path"),
    ],
)
def test_a_value_that_an_annotation_can_not_have_is_told(name: str, value: str, words: str) -> None:
    with pytest.raises(ProviderError, match=words):
        rules_of({name: value})


def everything(**more: Any) -> Frontend:
    rules = Rules(
        least_connections=True,
        max_connections=100,
        idle_seconds=1.5,
        health_path="/healthz?full=1&a=%20",
    )
    made = Frontend(name="web-80", addresses=["127.0.0.9", "::1"], port=8080, rules=rules, **more)
    made.assign([Backend("192.0.2.1", 80), Backend("2001:db8::1", 80)], 2)
    return made


def test_haproxys_configuration_has_every_option() -> None:
    lines = [line.strip() for line in everything(affinity_seconds=0).render(2)]
    assert lines[:5] == [
        "frontend web-80",
        "bind 127.0.0.9:8080",
        "bind [::1]:8080",
        "tcp-request connection reject if { fe_conn gt 100 }",
        "timeout client 1500ms",
    ]
    assert {
        "balance leastconn",
        "timeout server 1500ms",
        "option httpchk GET /healthz?full=1&a=%20",
        "http-check expect status 200-399",
    } <= set(lines)
    on_nodes = [
        line.strip() for line in everything(affinity_seconds=0, health_port=30_001).render(2)
    ]
    assert "option httpchk GET /healthz" in on_nodes
    assert any("check inter 2000ms port 30001" in line for line in on_nodes)


@pytest.mark.needs("haproxy")
def test_haproxy_accepts_every_option(tmp_path: Path) -> None:
    program = find_program("haproxy")
    assert program is not None
    path = tmp_path / "haproxy.cfg"
    settings = Settings(
        runtime_socket=str(tmp_path / "sock"),
        generation=1,
        check_seconds=2,
        peers_socket=str(tmp_path / "peers"),
        state_file=str(tmp_path / "state"),
        old_worker_seconds=60,
    )
    one, other = everything(affinity_seconds=60), everything(affinity_seconds=0, health_port=3001)
    other.name = "other-80"
    path.write_text(render(settings, [one, other]))
    done = subprocess.run(
        [program, "-c", "-L", PEER, "-f", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
