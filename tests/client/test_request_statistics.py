"""Requests are counted and timed, under client-go's metric names."""

from contextlib import suppress

import pytest

from listwatch.client.config import Config
from listwatch.client.http import HTTP
from listwatch.client.request_statistics import MAX_RESOURCES, RequestStatistics
from listwatch.errors import ListWatchError
from listwatch.testing.scripted_server import ScriptedServer, respond
from metric_samples import samples_of


async def test_requests_are_counted_by_code_verb_and_resource(server: ScriptedServer) -> None:
    pods = "/api/v1/namespaces/ns/pods"
    server.answers[pods] = {"items": []}
    server.answers[f"{pods}/a"] = respond(b"no", code=404, type_="text/plain")
    server.answers["/broken"] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-"
    async with HTTP(Config(server=server.url)) as http:
        for _ in range(2):
            await http.request("GET", pods)
        async with http.stream(pods, [("watch", "1")], watch=True) as body:
            await body.read()
        for path in (f"{pods}/a", "/broken"):
            with suppress(ListWatchError):
                await http.request("GET", path)
        host = server.url.removeprefix("http://")
        samples = samples_of(http.statistics.metrics())
    counted = {key[1:]: value for key, value in samples.items() if "requests_total" in key[0]}
    assert counted == {
        ("200", "GET", host, "LIST", "pods"): 2,
        ("200", "GET", host, "WATCH", "pods"): 1,
        ("404", "GET", host, "GET", "pods"): 1,
        ("<error>", "GET", host, "GET", ""): 1,
    }
    durations = "rest_client_request_duration_seconds_count"
    assert samples[durations, "LIST", host, "pods"] == 2
    assert samples[durations, "WATCH", host, "pods"] == 1
    assert samples[durations, "GET", host, "pods"] == 1


async def test_the_wait_for_the_clients_own_limit_is_measured(server: ScriptedServer) -> None:
    server.answers["/api/v1/nodes"] = {"items": []}
    async with HTTP(Config(server=server.url, qps=1000, burst=1)) as http:
        for _ in range(2):
            await http.request("GET", "/api/v1/nodes")
        samples = samples_of(http.statistics.metrics())
    host = server.url.removeprefix("http://")
    waited = "rest_client_rate_limiter_duration_seconds_count"
    assert samples[waited, "LIST", host, "nodes"] == 2


def test_the_number_of_resources_in_labels_is_bounded() -> None:
    statistics = RequestStatistics("h")
    for number in range(MAX_RESOURCES + 10):
        kind = statistics.kind("GET", f"/api/v1/kind-{number}", (), "")
        statistics.count(kind, "200")
    assert len(statistics.counts) == MAX_RESOURCES + 1
    assert statistics.counts[(kind, "200")] == 10


@pytest.mark.parametrize(("seconds", "bucket"), [(0.004, 0), (0.3, 4), (100.0, 12)])
def test_a_duration_is_counted_in_its_bucket(seconds: float, bucket: int) -> None:
    statistics = RequestStatistics("h")
    kind = statistics.kind("GET", "/version", (), "")
    statistics.took(kind, seconds)
    assert statistics.durations[kind].counts[bucket] == 1
