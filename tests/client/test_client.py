"""Each verb sends the right request and returns the server's response."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any

import pytest

from listwatch.backoff import CONFLICT, PUT_OFF
from listwatch.client.client import Client, PartialObjectError, PatchType
from listwatch.client.config import Config
from listwatch.client.discovery import Resource
from listwatch.clock import FakeClock
from listwatch.errors import (
    ConflictError,
    ExpiredError,
    FrameError,
    NotFoundError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnknownResourceError,
)
from listwatch.objects import Object, ObjectDecodeError, ObjectDecoder
from listwatch.testing.scripted_server import ScriptedServer, respond

CM = Resource(version="v1", plural="configmaps", kind="ConfigMap")
NODE = Resource(version="v1", plural="nodes", kind="Node", namespaced=False)
CORE = {
    "kind": "APIResourceList",
    "resources": [
        {"name": "configmaps", "namespaced": True, "kind": "ConfigMap", "shortNames": ["cm"]},
        {"name": "nodes", "namespaced": False, "kind": "Node"},
    ],
}


def config_map(name: str = "c", version: str = "7", **more: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "shop", "resourceVersion": version}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta, **more}


@pytest.fixture(autouse=True)
def discovery(server: ScriptedServer) -> None:
    server.answers["/api"] = {"versions": ["v1"]}
    server.answers["/apis"] = {"groups": []}
    server.answers["/api/v1"] = CORE
    server.answers["/api/v1/namespaces/shop/configmaps"] = config_map()
    server.answers["/api/v1/namespaces/shop/configmaps/c"] = config_map()


async def test_get(server: ScriptedServer, client: Client) -> None:
    obj = await client.get("cm", "c")
    assert obj.to_dict() == config_map()
    assert server.targets[-1] == "GET /api/v1/namespaces/shop/configmaps/c"
    await client.get(CM, "c", "shop", resource_version="0")
    assert server.targets[-1] == "GET /api/v1/namespaces/shop/configmaps/c?resourceVersion=0"
    with pytest.raises(NotFoundError):
        await client.get(CM, "c", "other")
    with pytest.raises(UnknownResourceError):
        await client.get("gadgets", "c")
    with pytest.raises(ValueError, match="name must not be empty"):
        await client.get(CM, "")


async def test_get_of_a_cluster_scoped_object(server: ScriptedServer, client: Client) -> None:
    server.answers["/api/v1/nodes/n"] = {"metadata": {"name": "n"}}
    assert (await client.get("nodes", "n")).kind == "Node"
    with pytest.raises(ValueError, match="nodes have no namespace"):
        await client.get("nodes", "n", "shop")


async def test_managed_fields_stay_in_what_a_single_call_returns(
    server: ScriptedServer, client: Client
) -> None:
    whole = config_map()
    whole["metadata"]["managedFields"] = [{"manager": "m"}]
    server.answers["/api/v1/namespaces/shop/configmaps/c"] = whole
    assert (await client.get(CM, "c")).to_dict() == whole


async def test_create(server: ScriptedServer, client: Client) -> None:
    sent = config_map(data={"k": "ä"})
    obj = await client.create(sent, field_manager="me", field_validation="Strict", dry_run=True)
    assert obj.key == "shop/c"
    assert server.targets[-1] == (
        "POST /api/v1/namespaces/shop/configmaps?fieldManager=me&fieldValidation=Strict&dryRun=All"
    )
    assert server.body() == sent
    await client.create(Object.from_dict(sent))
    assert server.body() == sent
    bare = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"generateName": "x-"}}
    await client.create(bare)
    assert server.targets[-1] == "POST /api/v1/namespaces/shop/configmaps"
    await client.create(bare, resource="cm", namespace="shop")
    assert server.body() == bare


async def test_what_can_not_be_sent_is_refused_before_it_is(
    server: ScriptedServer, client: Client
) -> None:
    with pytest.raises(ObjectDecodeError, match="lacks kind or apiVersion"):
        await client.create({"metadata": {"name": "x"}})
    with pytest.raises(ObjectDecodeError, match="lacks metadata"):
        await client.create({"kind": "ConfigMap", "apiVersion": "v1"})
    with pytest.raises(ObjectDecodeError, match="must be a mapping"):
        await client.create({"kind": "ConfigMap", "apiVersion": "v1", "metadata": []})
    with pytest.raises(ValueError, match=r"set metadata\.name instead"):
        await client.create(config_map(), name="c")
    with pytest.raises(UnknownResourceError, match="no kind 'Gadget' in 'v1'"):
        await client.create({"kind": "Gadget", "apiVersion": "v1", "metadata": {}})
    with pytest.raises(ValueError, match="in namespace 'shop', but 'other'"):
        await client.create(config_map(), namespace="other")
    with pytest.raises(ObjectDecodeError, match=r"lacks metadata.name"):
        await client.update({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {}})
    with pytest.raises(ValueError, match="is not a valid object name"):
        await client.get(CM, "../secrets/s")
    assert not [target for target in server.targets if "/namespaces/" in target]


async def test_update(server: ScriptedServer, client: Client) -> None:
    sent = config_map(data={"k": "v"})
    await client.update(sent, field_manager="me", field_validation="Warn")
    assert server.targets[-1] == (
        "PUT /api/v1/namespaces/shop/configmaps/c?fieldManager=me&fieldValidation=Warn"
    )
    assert server.body() == sent
    server.answers["/api/v1/namespaces/shop/configmaps/c/status"] = config_map(version="8")
    updated = await client.update(Object.from_dict(sent), resource=CM, subresource="status")
    assert updated.resource_version == "8"
    conflict = {"kind": "Status", "reason": "Conflict", "code": 409}
    server.answers["/api/v1/namespaces/shop/configmaps/c"] = respond(conflict, code=409)
    with pytest.raises(ConflictError):
        await client.update(sent)


async def test_update_refuses_an_object_that_lacks_fields(
    server: ScriptedServer, client: Client
) -> None:
    partial = ObjectDecoder(partial=True)(json.dumps(config_map()).encode())
    with pytest.raises(
        PartialObjectError, match="ConfigMap shop/c was read without some of its fields"
    ):
        await client.update(partial)
    assert server.requests == []


@pytest.mark.parametrize(
    ("type_", "patch", "media"),
    [
        (PatchType.MERGE, {"data": {"k": None}}, "application/merge-patch+json"),
        (PatchType.STRATEGIC, {"data": {}}, "application/strategic-merge-patch+json"),
        (PatchType.JSON, [{"op": "remove", "path": "/data"}], "application/json-patch+json"),
        (PatchType.APPLY, {"kind": "ConfigMap"}, "application/apply-patch+yaml"),
    ],
)
async def test_patch(
    server: ScriptedServer, client: Client, type_: PatchType, patch: Any, media: str
) -> None:
    is_apply = type_ is PatchType.APPLY
    await client.patch(CM, "c", patch, type=type_, field_manager="me", force=is_apply)
    force = "&force=true" if is_apply else ""
    path = "/api/v1/namespaces/shop/configmaps/c"
    assert server.targets[-1] == f"PATCH {path}?fieldManager=me{force}"
    assert server.header("content-type") == media
    assert server.body() == patch


async def test_patch_sends_bytes_as_they_are(server: ScriptedServer, client: Client) -> None:
    path = "/api/v1/namespaces/shop/configmaps/c"
    server.answers[f"{path}/scale"] = config_map()
    await client.patch(CM, "c", b'{"a" : 1}', subresource="scale", field_validation="Ignore")
    assert server.targets[-1] == f"PATCH {path}/scale?fieldValidation=Ignore"
    assert server.requests[-1].endswith(b'{"a" : 1}')


async def test_an_apply_needs_an_owner_and_only_it_is_forced(client: Client) -> None:
    with pytest.raises(ValueError, match="needs field_manager="):
        await client.patch(CM, "c", {}, type=PatchType.APPLY)
    with pytest.raises(ValueError, match="only for apply"):
        await client.patch(CM, "c", {}, force=True)


async def test_delete(server: ScriptedServer, client: Client) -> None:
    path = "/api/v1/namespaces/shop/configmaps/c"
    obj = await client.delete(
        "cm",
        "c",
        propagation_policy="Foreground",
        grace_period_seconds=0,
        uid="u",
        resource_version="7",
    )
    assert obj is not None
    assert obj.key == "shop/c"
    assert server.targets[-1] == f"DELETE {path}"
    assert server.body() == {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u", "resourceVersion": "7"},
    }
    server.answers[path] = {
        "kind": "Status",
        "status": "Success",
        "metadata": {},
        "details": {"name": "c"},
    }
    assert await client.delete(CM, "c", dry_run=True) is None
    assert server.targets[-1] == f"DELETE {path}"  # with a body, a server ignores the query
    assert server.body() == {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}


async def test_an_answer_that_is_no_object_is_told(server: ScriptedServer, client: Client) -> None:
    server.answers["/api/v1/namespaces/shop/configmaps/c"] = respond(b"<html>", type_="text/html")
    with pytest.raises(FrameError, match=r"the response to GET .*/configmaps/c is not an object"):
        await client.get(CM, "c")


def page(names: list[str], token: str = "", version: str = "7") -> dict[str, Any]:
    meta = {"resourceVersion": version, "continue": token}
    items = [{"metadata": {"name": name}} for name in names]
    return {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": meta, "items": items}


async def test_list_reads_all_pages_of_one_state(server: ScriptedServer, client: Client) -> None:
    path = "/api/v1/configmaps"
    server.answers[f"{path}?limit=2"] = page(["a", "b"], "t1")
    server.answers[f"{path}?limit=2&continue=t1"] = page(["c", "d"], "t2")
    server.answers[f"{path}?limit=2&continue=t2"] = page(["e"])
    whole = await client.list(CM, page_size=2)
    assert [obj.name for obj in whole.items] == ["a", "b", "c", "d", "e"]
    assert (whole.continue_token, whole.resource_version, whole.remaining) == ("", "7", None)
    assert whole.items[0].kind == "ConfigMap"


async def test_list_begins_anew_when_its_state_has_expired(
    server: ScriptedServer, client: Client
) -> None:
    path = "/api/v1/namespaces/shop/configmaps"
    server.answers[f"{path}?labelSelector=a%3Db&limit=2"] = page(["a", "b"], "t1")
    gone = {"kind": "Status", "reason": "Expired", "code": 410}
    server.answers[f"{path}?labelSelector=a%3Db&limit=2&continue=t1"] = respond(gone, code=410)
    server.answers[f"{path}?labelSelector=a%3Db"] = page(["b", "c"], version="9")
    whole = await client.list(CM, "shop", label_selector="a=b", page_size=2)
    assert [obj.name for obj in whole.items] == ["b", "c"]
    assert whole.resource_version == "9"


async def test_pages_that_lead_nowhere_end_a_list(server: ScriptedServer, client: Client) -> None:
    server.answers["/api/v1/configmaps"] = page(["a"], "again")
    with pytest.raises(FrameError, match="same continue token twice"):
        await client.list(CM, page_size=1)
    assert server.targets.count("GET /api/v1/configmaps?limit=1&continue=again") == 1


# --- Retries -------------------------------------------------------------------------------------


def put_off(code: int, seconds: float) -> bytes:
    return respond(b"later", code=code, type_="text/plain", more=f"Retry-After: {seconds:g}\r\n")


async def settled(clock: FakeClock, call: Awaitable[Any]) -> tuple[Any, float]:
    """Return the result or the exception of the call, and its duration on the clock."""
    begin = clock.now()
    task = asyncio.ensure_future(call)
    while not task.done():
        await asyncio.sleep(0)
        await clock.advance(0.01)
    return task.exception() or task.result(), clock.now() - begin


class Putting:
    """Answer with the given responses first, then with the object."""

    def __init__(self, *first: bytes) -> None:
        self.first = list(first)

    def __call__(self, _request: bytes) -> object:
        return self.first.pop(0) if self.first else config_map()


@pytest.fixture
async def patient(server: ScriptedServer) -> AsyncIterator[tuple[Client, FakeClock]]:
    clock = FakeClock()
    async with Client.from_config(Config(server=server.url, namespace="shop"), clock=clock) as made:
        yield made, clock


PATH = "/api/v1/namespaces/shop/configmaps/c"


@pytest.mark.parametrize("code", [429, 503])
async def test_a_read_that_is_put_off_is_sent_again_in_time(
    server: ScriptedServer, patient: tuple[Client, FakeClock], code: int
) -> None:
    client, clock = patient
    server.answers[PATH] = Putting(put_off(code, 2), put_off(code, 3))
    obj, seconds = await settled(clock, client.get(CM, "c"))
    assert obj.name == "c"
    assert seconds == pytest.approx(5, abs=0.5)
    assert len(server.requests) == 3


async def test_a_write_is_sent_again_only_when_it_was_not_carried_out(
    server: ScriptedServer, patient: tuple[Client, FakeClock]
) -> None:
    client, clock = patient
    server.answers[PATH] = Putting(put_off(429, 1))
    obj, _ = await settled(clock, client.update(config_map(), resource=CM))
    assert obj.name == "c"
    server.answers[PATH] = Putting(put_off(503, 1))
    error, seconds = await settled(clock, client.update(config_map(), resource=CM))
    assert type(error) is ServiceUnavailableError
    assert seconds < 0.5
    assert len(server.requests) == 3


async def test_what_is_put_off_for_ever_or_for_long_is_refused(
    server: ScriptedServer, patient: tuple[Client, FakeClock]
) -> None:
    client, clock = patient
    server.answers[PATH] = put_off(429, 1)
    error, seconds = await settled(clock, client.get(CM, "c"))
    assert type(error) is TooManyRequestsError
    assert seconds == pytest.approx(5, abs=0.5)
    assert len(server.requests) == PUT_OFF.tries
    server.answers[PATH] = put_off(429, 61)
    error, seconds = await settled(clock, client.get(CM, "c"))
    assert type(error) is TooManyRequestsError
    assert len(server.requests) == 7


class Versioned:
    """An object that refuses outdated versions; others change it after the first `others` reads."""

    def __init__(self, value: dict[str, Any], others: int = 0) -> None:
        self.value = value
        self.others = others

    def __call__(self, request: bytes) -> object:
        if request.startswith(b"GET"):
            answer = json.loads(json.dumps(self.value))
            if self.others:
                self.others -= 1
                self.value["metadata"]["finalizers"] = [
                    *self.value["metadata"].get("finalizers", ()),
                    f"others/{self.others}",
                ]
                self._bump()
            return answer
        sent = json.loads(request.split(b"\r\n\r\n", 1)[1])
        if sent["metadata"]["resourceVersion"] != self.value["metadata"]["resourceVersion"]:
            return respond({"kind": "Status", "reason": "Conflict", "code": 409}, code=409)
        if request.startswith(b"PATCH"):
            self.value["metadata"]["finalizers"] = sent["metadata"]["finalizers"] or []
        else:
            self.value = sent
        self._bump()
        return self.value

    def _bump(self) -> None:
        meta = self.value["metadata"]
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)


async def test_update_existing_changes_the_newest_state(
    server: ScriptedServer, patient: tuple[Client, FakeClock]
) -> None:
    client, clock = patient
    stored = Versioned(config_map(data={}), others=3)
    server.answers[PATH] = stored

    def mutate(value: dict[str, Any]) -> None:
        value["data"]["seen"] = ",".join(value["metadata"].get("finalizers", []))

    obj, seconds = await settled(clock, client.update_existing(CM, "c", mutate))
    assert obj["data"]["seen"] == "others/2,others/1,others/0"
    assert 0.3 < seconds < 1
    sent = len(server.requests)
    again, _ = await settled(clock, client.update_existing(CM, "c", mutate))
    assert again.resource_version == obj.resource_version
    assert server.targets[sent:] == [f"GET {PATH}"]  # Nothing changes, so nothing is written.


async def test_update_existing_gives_up_some_time(
    server: ScriptedServer, patient: tuple[Client, FakeClock]
) -> None:
    client, clock = patient
    server.answers[PATH] = Versioned(config_map(), others=100)
    error, seconds = await settled(
        clock, client.update_existing(CM, "c", lambda value: {**value, "data": {"k": "v"}})
    )
    assert type(error) is ConflictError
    assert len([t for t in server.targets if t.startswith("PUT")]) == CONFLICT.tries
    assert seconds == pytest.approx(2.4, abs=0.5)


async def test_finalizers_of_others_stay_and_ones_own_is_there_once(
    server: ScriptedServer, patient: tuple[Client, FakeClock]
) -> None:
    client, clock = patient
    stored = Versioned(config_map(), others=2)
    server.answers[PATH] = stored
    for _ in range(2):
        obj, _ = await settled(clock, client.add_finalizer(CM, "c", "me/x"))
        assert obj.meta.finalizers == ("others/1", "others/0", "me/x")
    stored.others = 1
    for _ in range(2):
        obj, _ = await settled(clock, client.remove_finalizer(CM, "c", "me/x"))
        assert obj.meta.finalizers == ("others/1", "others/0", "others/0")
    patches = [r for r in server.requests if r.startswith(b"PATCH")]
    assert all(b'"resourceVersion":' in request for request in patches)
    del server.answers[PATH]
    assert await client.remove_finalizer(CM, "c", "me/x") is None


async def test_delete_collection(server: ScriptedServer, client: Client) -> None:
    await client.delete_collection(
        CM,
        label_selector="a=b",
        field_selector="metadata.name!=x",
        propagation_policy="Orphan",
        grace_period_seconds=0,
        dry_run=True,
    )
    assert server.targets[-1] == (
        "DELETE /api/v1/namespaces/shop/configmaps"
        "?labelSelector=a%3Db&fieldSelector=metadata.name%21%3Dx"
    )
    assert server.body() == {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "dryRun": ["All"],
        "propagationPolicy": "Orphan",
        "gracePeriodSeconds": 0,
    }


async def test_pages_are_read_when_they_are_asked_for(
    server: ScriptedServer, client: Client
) -> None:
    path = "/api/v1/configmaps"
    server.answers[f"{path}?limit=1"] = page(["a"], "t")
    gone = {"kind": "Status", "reason": "Expired", "code": 410}
    server.answers[f"{path}?limit=1&continue=t"] = respond(gone, code=410)
    async with aclosing(client.pages(CM, page_size=1)) as pages:
        assert [obj.name for obj in (await anext(pages)).items] == ["a"]
        assert len(server.requests) == 1
        with pytest.raises(ExpiredError):
            await anext(pages)


async def test_a_refusal_tells_the_resource_of_the_request(client: Client) -> None:
    with pytest.raises(NotFoundError) as found:
        await client.get("cm", "none", "default")
    assert found.value.resource == "configmaps"
