"""The writes of a reconcile, recorded from requests and answers."""

import asyncio
import contextlib
import json
from typing import Any

import pytest

from listwatch.client.client import Client
from listwatch.errors import DisconnectedError, InternalServerError, NotFoundError
from listwatch.runtime.recorded_writes import Write, record, recorded
from runtime.lagging_world import Canned, recording_http


async def written(method: str, path: str, answer: Any, **options: Any) -> list[Write]:
    recording = record()
    http = recording_http(Canned(answer))
    with contextlib.suppress(Exception, asyncio.CancelledError):
        await http.request(method, path, **options)
    return recording.end()


PODS = "/api/v1/namespaces/ns/pods"
POD: dict[str, Any] = {"kind": "Pod", "apiVersion": "v1"} | {
    "metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7"}
}
DRY = json.dumps({"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}).encode()
DRY_EVICTION = json.dumps({"kind": "Eviction", "deleteOptions": {"dryRun": ["All"]}}).encode()


@pytest.mark.parametrize(
    ("method", "path", "answer", "options", "known"),
    [
        ("POST", PODS, POD, {}, [("a", "u", "7", False, False)]),
        ("PUT", f"{PODS}/a", POD, {}, [("a", "u", "7", False, False)]),
        ("PATCH", f"{PODS}/a/status", POD, {}, [("a", "u", "7", False, False)]),
        ("PATCH", f"{PODS}/a/scale", POD | {"kind": "Scale"}, {}, [("a", "u", "7", False, False)]),
        ("DELETE", f"{PODS}/a", POD, {}, [("a", "u", "", True, False)]),
        (
            "DELETE",
            f"{PODS}/a",
            {"kind": "Status", "details": {"uid": "u"}},
            {},
            [("a", "u", "", True, False)],
        ),
        ("DELETE", PODS, {"kind": "PodList", "items": [POD]}, {}, [("a", "u", "", True, False)]),
        ("POST", f"{PODS}/a/eviction", {"kind": "Status"}, {}, [("a", "", "", True, False)]),
        ("POST", f"{PODS}/a/eviction", {"kind": "Status"}, {"body": DRY_EVICTION}, []),
        ("POST", f"{PODS}/a/binding", {"kind": "Status"}, {}, [("a", "", "", False, True)]),
        ("POST", f"{PODS}/a/token", {"kind": "TokenRequest"}, {}, []),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"kind": "R"}, {}, []),
        ("GET", f"{PODS}/a", POD, {}, []),
        ("POST", PODS, POD, {"query": [("dryRun", "All")]}, []),
        ("DELETE", f"{PODS}/a", POD, {"body": DRY}, []),
        ("PUT", f"{PODS}/a", DisconnectedError("broke"), {}, [("a", "", "", False, True)]),
        ("PUT", f"{PODS}/a", DisconnectedError("no", refused=True), {}, []),
        ("PUT", f"{PODS}/a", TimeoutError(), {}, [("a", "", "", False, True)]),
        ("PUT", f"{PODS}/a", asyncio.CancelledError(), {}, [("a", "", "", False, True)]),
        ("PUT", f"{PODS}/a", InternalServerError("timeout"), {}, [("a", "", "", False, True)]),
        ("PUT", f"{PODS}/a", NotFoundError("none"), {}, []),
        ("DELETE", f"{PODS}/a", TimeoutError(), {}, [("a", "", "", True, True)]),
        (
            "POST",
            PODS,
            TimeoutError(),
            {"body": json.dumps(POD).encode()},
            [("a", "", "", False, True)],
        ),
        (
            "POST",
            PODS,
            TimeoutError(),
            {"body": b'{"metadata": {"generateName": "a-"}}'},
            [("", "", "", False, True)],
        ),
        ("POST", PODS, TimeoutError(), {"body": b"a: 1"}, [("", "", "", False, True)]),
        ("PUT", f"{PODS}/a", b"no JSON", {}, [("a", "", "", False, True)]),
        (
            "POST",
            PODS,
            b"no JSON",
            {"body": json.dumps(POD).encode()},
            [("a", "", "", False, True)],
        ),
        ("DELETE", f"{PODS}/a", b"no JSON", {}, [("a", "", "", True, False)]),
        ("DELETE", PODS, b"no JSON", {}, [("", "", "", True, True)]),
        ("DELETE", PODS, {"kind": "Status"}, {}, [("", "", "", True, True)]),
        ("DELETE", PODS, {"kind": "PodList", "items": []}, {}, []),
        ("DELETE", PODS, TimeoutError(), {}, [("", "", "", True, True)]),
        ("DELETE", f"{PODS}/a", POD, {"body": b'{"dryRun": ["All"]}'}, []),
        ("DELETE", f"{PODS}/a", POD, {"body": b"dryRun"}, [("a", "u", "", True, False)]),
        (
            "POST",
            f"{PODS}/a/eviction",
            {"kind": "Status"},
            {"body": b'{"dryRun": ["All"]}'},
            [("a", "", "", True, False)],
        ),
        ("POST", PODS, POD, {"body": b'{"dryRun": ["All"]}'}, [("a", "u", "7", False, False)]),
    ],
    ids=str,
)
async def test_every_write_is_recorded_with_what_is_known_of_it(
    method: str,
    path: str,
    answer: Any,
    options: dict[str, Any],
    known: list[tuple[str, str, str, bool, bool]],
) -> None:
    assert [
        (one.target.name, one.uid, one.resource_version, one.is_deletion, one.is_lost)
        for one in await written(method, path, answer, **options)
    ] == known


ENDING = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}


@pytest.mark.parametrize(
    ("path", "more", "spec", "is_gone"),
    [
        (f"{PODS}/a", {}, {}, False),
        (f"{PODS}/a", ENDING, {}, True),
        (f"{PODS}/a", ENDING | {"finalizers": ["a/b"]}, {}, False),
        (f"{PODS}/a", ENDING | {"deletionGracePeriodSeconds": 30}, {}, False),
        ("/api/v1/namespaces/a", ENDING, {"finalizers": ["kubernetes"]}, False),
        ("/api/v1/namespaces/a/finalize", ENDING, {}, True),
    ],
    ids=str,
)
async def test_an_update_that_removes_the_last_finalizer_is_a_deletion(
    path: str, more: dict[str, Any], spec: dict[str, Any], *, is_gone: bool
) -> None:
    answer = POD | {"metadata": POD["metadata"] | more, "spec": spec}
    (write,) = await written("PUT", path, answer)
    assert (write.is_gone, write.is_deletion, write.uid) == (is_gone, is_gone, "u")


async def test_a_task_that_outlives_its_reconcile_piles_up_no_writes() -> None:
    recording = record()
    http = recording_http(Canned(POD))

    async def go_on() -> None:
        for _ in range(3):
            await http.request("PUT", f"{PODS}/a")

    await http.request("PUT", f"{PODS}/a")
    task = asyncio.create_task(go_on())
    assert len(recording.end()) == 1
    await task
    assert not recording.writes


async def test_the_answers_of_a_server_tell_what_is_gone(client: Client) -> None:
    writes = recorded(client)
    meta = {"name": "held", "namespace": "default", "finalizers": ["example.com/x"]}
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    recording = record()
    await writes.create(held)
    await writes.delete("configmaps", "held", "default")
    ending = (await writes.get("configmaps", "held", "default")).to_dict()
    del ending["metadata"]["finalizers"]
    await writes.update(ending)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
    await writes.create(namespace)
    await writes.create({**held, "metadata": {"name": "a", "namespace": "shop"}})
    await writes.delete_collection("configmaps", "shop")
    found = [
        (one.target.name, bool(one.uid), one.is_deletion, one.is_gone, one.is_lost)
        for one in recording.end()
    ]
    assert found == [
        ("held", True, False, False, False),
        ("held", True, True, False, False),
        ("held", True, True, True, False),
        ("shop", True, False, False, False),
        ("a", True, False, False, False),
        ("a", True, True, False, False),
    ]
