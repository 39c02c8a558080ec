"""A control plane that misbehaves on demand, and a record of its requests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from api_client import CORE
from api_client import Client as Bare
from listwatch import ConflictError, DisconnectedError, NotFoundError, UnauthorizedError
from listwatch.apiserver.http.request_log import RequestLog
from listwatch.testing import APIServer, FakeClock, Fault, RecordedRequest, eventually

MAPS = f"{CORE}/configmaps"


def config_map(name: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@pytest.fixture
async def server() -> AsyncIterator[APIServer]:
    async with APIServer(seed=1) as server:
        yield server


# -- after the commit ------------------------------------------------------------------------


async def test_a_write_may_have_happened_although_it_timed_out(server: APIServer) -> None:
    server.add_faults(
        Fault(verb="create", committed=True, status=500, message="etcdserver: leader changed")
    )
    async with Bare(server.embedded) as client:
        status = await client.call("POST", MAPS, {"metadata": {"name": "a"}}, expect=500)
        assert status["message"] == "etcdserver: leader changed"
        await client.call("GET", f"{MAPS}/a", expect=200)


async def test_a_connection_may_end_after_the_commit(server: APIServer) -> None:
    server.add_faults(Fault(verb="create", committed=True, drop=True))
    async with Bare(server.embedded) as client:
        with pytest.raises(aiohttp.ClientError):
            await client.call("POST", MAPS, {"metadata": {"name": "a"}})
        await client.call("GET", f"{MAPS}/a", expect=200)


async def test_a_fault_after_the_commit_hides_a_refusal_too(server: APIServer) -> None:
    server.add_faults(Fault(verb="get", committed=True, status=504))
    async with Bare(server.embedded) as client:
        await client.call("GET", f"{MAPS}/missing", expect=504)
        await client.call("GET", f"{MAPS}/missing", expect=404)


def test_a_fault_after_the_commit_says_what_comes_instead() -> None:
    with pytest.raises(ValueError, match="a committed fault needs a status, drop or silent"):
        Fault(committed=True)


# -- slow admission --------------------------------------------------------------------------


async def test_others_come_first_while_an_admission_is_slow() -> None:
    clock = FakeClock()
    async with APIServer(seed=1, clock=clock) as server, server.client() as client:
        made = await client.create(config_map("a", n="0"))
        server.add_faults(Fault(verb="update", admission_delay=0.2))
        slow = asyncio.create_task(client.update({**made.to_dict(), "data": {"n": "slow"}}))
        await eventually(lambda: server.fault_hits, "the fault has hit")
        await client.patch("configmaps", "a", {"data": {"n": "fast"}}, namespace="default")
        assert not slow.done()
        await clock.advance(0.2)
        with pytest.raises(ConflictError):
            await slow


async def test_a_slow_admission_stores_once(server: APIServer) -> None:
    server.add_faults(Fault(verb="create", admission_delay=0.01))
    async with server.client() as client:
        await client.create(config_map("a", n="0"))
        found = await client.get("configmaps", "a", "default")
        assert found["data"] == {"n": "0"}


# -- too many requests -----------------------------------------------------------------------


async def test_requests_beyond_the_limit_are_told_to_come_again() -> None:
    clock = FakeClock()
    async with (
        APIServer(seed=1, clock=clock) as server,
        Bare(server.embedded) as client,
        Bare(server.embedded) as other,
    ):
        server.limit_in_flight(1)
        server.add_faults(Fault(verb="get", name="slow", delay=0.3))
        slow = asyncio.create_task(client.call("GET", f"{MAPS}/slow", expect=404))
        await eventually(lambda: server.fault_hits, "the fault has hit")
        text = await other.call("GET", MAPS, expect=429)
        assert text == "Too many requests, please try again later.\n"
        await clock.advance(0.3)
        await slow
        await other.call("GET", MAPS, expect=200)
        server.limit_in_flight(0)
        await other.call("GET", MAPS, expect=429)
        server.limit_in_flight(None)
        await other.call("GET", MAPS, expect=200)


async def test_watches_do_not_count_as_requests_in_flight(server: APIServer) -> None:
    server.limit_in_flight(1)
    async with Bare(server.embedded) as client, client.watch(MAPS, "resourceVersion=0"):
        await client.call("GET", MAPS, expect=200)


def test_a_limit_is_not_negative() -> None:
    with APIServer() as server, pytest.raises(ValueError, match="must not be negative"):
        server.limit_in_flight(-1)


# -- the request log -------------------------------------------------------------------------


async def test_requests_are_recorded_in_their_order(server: APIServer) -> None:
    server.record_requests()
    async with server.client() as client:
        await client.create(config_map("a"))
        with pytest.raises(NotFoundError):
            await client.get("configmaps", "b", "default")
        await client.patch("configmaps", "a", {"data": {"x": "y"}}, namespace="default")
    found = [
        (each.verb, each.resource, each.namespace, each.name, each.status)
        for each in server.requests
        if each.resource
    ]
    assert found == [
        ("create", "configmaps", "default", "", 201),
        ("get", "configmaps", "default", "b", 404),
        ("patch", "configmaps", "default", "a", 200),
    ]
    last = server.requests[-1]
    assert (last.method, last.path, last.user) == ("PATCH", f"{MAPS}/a", "kubernetes-admin")
    assert last.user_agent.startswith("listwatch")


async def test_only_the_last_requests_are_kept_and_none_before(server: APIServer) -> None:
    async with Bare(server.embedded) as client:
        await client.call("GET", "/version")
        assert server.requests == []
        server.record_requests(2)
        for name in "abc":
            await client.call("GET", f"{MAPS}/{name}", expect=404)
        assert [each.name for each in server.requests] == ["b", "c"]
        server.record_requests(0)
        await client.call("GET", f"{MAPS}/d", expect=404)
        assert server.requests == []


async def test_a_watch_is_recorded_when_it_begins_and_has_its_status_at_its_end(
    server: APIServer,
) -> None:
    server.record_requests()
    async with Bare(server.embedded) as client:
        async with client.watch(MAPS, "resourceVersion=0"):
            (watch,) = server.requests
            assert (watch.verb, watch.status) == ("watch", 0)
            server.cut_watches()
        await eventually(lambda: server.requests[0].status, "the watch has ended")
        assert server.requests[0].status in {200, 499}


async def test_what_policies_note_for_an_audit_is_recorded(server: APIServer) -> None:
    group = "/apis/admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["*"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "odd"}],
        "auditAnnotations": [{"key": "who", "valueExpression": "request.userInfo.username"}],
    }
    bound = {"policyName": "p", "validationActions": ["Warn"]}
    async with Bare(server.embedded) as client:
        await client.create(f"{group}/validatingadmissionpolicies", "p", spec=spec)
        await client.create(f"{group}/validatingadmissionpolicybindings", "b", spec=bound)
        server.record_requests()
        await client.create(MAPS, "a")
    (found,) = server.requests
    assert found.annotations == {"p/who": "kubernetes-admin"}
    assert [each.endswith(": odd") for each in found.warnings] == [True]


def test_requests_to_a_server_in_another_process_are_recorded() -> None:
    with APIServer(subprocess=True) as server:
        server.record_requests()

        async def ask() -> None:
            async with server.client() as client:
                await client.get("namespaces", "default")

        asyncio.run(ask())
        assert [each.name for each in server.requests if each.resource] == ["default"]
        assert isinstance(server.requests[0], RecordedRequest)


def test_a_log_without_requests_has_none() -> None:
    log = RequestLog(3)
    log.clear()
    assert log.requests() == []


# -- certificates ----------------------------------------------------------------------------


async def test_a_certificate_expires_and_is_renewed() -> None:
    pytest.importorskip("trustme")
    async with APIServer(tls=True) as server:

        async def ask() -> None:
            async with server.client() as client:
                await client.get("namespaces", "default")

        await ask()
        server.expire_certificate()
        with pytest.raises(DisconnectedError, match="certificate has expired"):
            await ask()
        server.renew_certificate()
        await ask()


async def test_a_client_certificate_expires_and_is_renewed_on_an_open_connection() -> None:
    pytest.importorskip("trustme")
    async with APIServer(tls=True) as server, server.client() as client:
        await client.get("namespaces", "default")
        server.expire_client_certificate()
        with pytest.raises(UnauthorizedError):
            await client.get("namespaces", "default")
        server.renew_client_certificate()
        await client.get("namespaces", "default")


@pytest.mark.parametrize(
    "expire", [APIServer.expire_certificate, APIServer.expire_client_certificate]
)
def test_a_server_without_certificates_can_not_expire_them(
    expire: Callable[[APIServer], None],
) -> None:
    with APIServer() as server, pytest.raises(ValueError, match="start it with tls=True"):
        expire(server)
