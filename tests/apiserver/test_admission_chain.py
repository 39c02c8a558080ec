"""The order of policies and webhooks for a write, and their combined effect."""

import copy
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.admission.chain import Mutator, Round, Validator
from listwatch.apiserver.admission.matching import Attributes
from listwatch.errors import ForbiddenError

MAPS = f"{CORE}/configmaps"
MERGE = {"Content-Type": "application/merge-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


class Recorder:
    """Record each call, label objects, and refuse objects whose label says so."""

    def __init__(self, name: str, log: list[tuple[Any, ...]], *, again: bool = False) -> None:
        self.name = name
        self.seen: list[Attributes] = []
        self._log = log
        self._again = again

    def mutator(self) -> Mutator:
        return self

    def validator(self) -> Validator:
        return self

    def mutate(self, attributes: Attributes, turn: Round) -> None:
        self._note("mutate", attributes)
        turn.wanted = turn.wanted or self._again
        if attributes.obj is not None:
            metadata = dict(attributes.obj["metadata"])
            metadata["labels"] = {**(metadata.get("labels") or {}), self.name: "was-here"}
            attributes.obj = {**attributes.obj, "metadata": metadata}

    def validate(self, attributes: Attributes) -> None:
        self._note("validate", attributes)
        obj = attributes.obj or attributes.old
        assert obj is not None
        if (obj["metadata"].get("labels") or {}).get("refuse") == self.name:
            raise ForbiddenError(f"refused by {self.name}")

    def _note(self, what: str, attributes: Attributes) -> None:
        # Copy it: later mutations must not change the record.
        shown = msgspec.structs.replace(attributes, obj=copy.deepcopy(attributes.obj))
        self.seen.append(shown)
        sub = f"/{attributes.subresource}" if attributes.subresource else ""
        self._log.append((self.name, what, attributes.operation, attributes.resource.name + sub))


class Asked:
    def __init__(self, client: Client, recorder: Recorder, log: list[tuple[Any, ...]]) -> None:
        self.client = client
        self.recorder = recorder
        self.log = log

    def since(self) -> list[Attributes]:
        seen, self.recorder.seen = self.recorder.seen, []
        return seen


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    async with EmbeddedAPIServer(seed=1) as server, Client(server) as client:
        log: list[tuple[Any, ...]] = []
        recorder = Recorder("one", log)
        server.admission.append(recorder)
        binding = {
            "metadata": {"name": "b"},
            "spec": {"policyName": "p", "validationActions": ["Deny"]},
        }
        await client.call("POST", BINDINGS, binding, expect=201)
        yield Asked(client, recorder, log)


async def test_a_creation_is_asked_about_before_and_after_it_is_completed(asked: Asked) -> None:
    made = await asked.client.call("POST", MAPS, {"metadata": {"generateName": "a-"}}, expect=201)
    before, after = asked.since()
    assert (before.operation, before.name, before.namespace) == ("CREATE", "", "default")
    assert before.obj is not None
    assert "uid" not in before.obj["metadata"]
    assert after.obj is not None
    assert after.name == made["metadata"]["name"] == after.obj["metadata"]["name"]
    assert after.obj["metadata"]["uid"] == made["metadata"]["uid"]
    assert (after.obj["kind"], after.obj["apiVersion"]) == ("ConfigMap", "v1")
    assert made["metadata"]["labels"] == {"one": "was-here"}


async def test_what_is_refused_is_not_stored(asked: Asked) -> None:
    labels = {"refuse": "one"}
    await asked.client.call("POST", MAPS, {"metadata": {"name": "a", "labels": labels}}, expect=403)
    await asked.client.call("GET", f"{MAPS}/a", expect=404)
    await asked.client.call("POST", MAPS, {"metadata": {"name": "a"}}, expect=201)
    patch = {"metadata": {"labels": labels}}
    await asked.client.call("PATCH", f"{MAPS}/a", patch, headers=MERGE, expect=403)
    kept = await asked.client.call("GET", f"{MAPS}/a")
    assert kept["metadata"]["labels"] == {"one": "was-here"}


async def test_updates_patches_and_applies_are_updates_with_the_old_state(asked: Asked) -> None:
    client = asked.client
    made = await client.call("POST", MAPS, {"metadata": {"name": "a"}}, expect=201)
    asked.since()
    await client.call("PUT", f"{MAPS}/a?fieldManager=m", {**made, "data": {"a": "1"}})
    await client.call("PATCH", f"{MAPS}/a", {"data": {"b": "2"}}, headers=MERGE)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"c": "3"}, "metadata": {"name": "a"}}
    await client.call("PATCH", f"{MAPS}/a?fieldManager=n", body, headers=APPLY)
    seen = asked.since()
    assert [each.operation for each in seen] == ["UPDATE"] * 6
    states = [(each.old or {}).get("data") for each in seen]
    assert states[::2] == states[1::2] == [None, {"a": "1"}, {"a": "1", "b": "2"}]
    assert seen[0].options == {
        "kind": "UpdateOptions",
        "apiVersion": "meta.k8s.io/v1",
        "fieldManager": "m",
    }


async def test_an_apply_that_creates_is_a_creation(asked: Asked) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    await asked.client.call("PATCH", f"{MAPS}/a?fieldManager=n", body, headers=APPLY, expect=201)
    assert {each.operation for each in asked.since()} == {"CREATE"}


async def test_deletions_are_asked_about_with_the_old_state_alone(asked: Asked) -> None:
    client = asked.client
    for name in ("a", "b", "c"):
        await client.call("POST", MAPS, {"metadata": {"name": name}}, expect=201)
    asked.since()
    await client.call("DELETE", f"{MAPS}/a?dryRun=All")
    seen = asked.since()
    assert [(each.operation, each.obj, each.dry_run) for each in seen] == [
        ("DELETE", None, True)
    ] * 2
    assert seen[0].old is not None
    assert seen[0].old["metadata"]["name"] == "a"
    assert (seen[0].options or {})["dryRun"] == ["All"]
    await client.call("DELETE", MAPS)
    names = [(each.name, (each.old or {})["metadata"]["name"]) for each in asked.since()]
    assert [name for name in names if name[1] != "kube-root-ca.crt"] == [
        ("", name) for name in "aabbcc"
    ]


async def test_paths_below_an_object_are_asked_about_as_what_is_written_there(asked: Asked) -> None:
    client = asked.client
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}
    template["spec"]["containers"][0]["image"] = "i"  # type: ignore[index]  # JSON
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    await client.call("POST", deployments, {"metadata": {"name": "d"}, "spec": spec}, expect=201)
    asked.since()
    scaled = await client.call(
        "PATCH", f"{deployments}/d/scale", {"spec": {"replicas": 7}}, headers=MERGE
    )
    before, after = asked.since()
    assert after.kind == ("autoscaling", "v1", "Scale")
    assert after.obj is not None
    assert after.obj["spec"] == {"replicas": 7} == scaled["spec"]
    assert (before.old or {})["spec"] == {"replicas": 1}
    await client.call(
        "PATCH", f"{deployments}/d/status", {"status": {"replicas": 1}}, headers=MERGE
    )
    assert {(each.subresource, each.kind.kind) for each in asked.since()} == {
        ("status", "Deployment")
    }


async def test_bindings_evictions_and_tokens_are_creations(asked: Asked) -> None:
    client = asked.client
    pods = f"{CORE}/pods"
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await client.call("POST", pods, pod, expect=201)
    account = {"metadata": {"name": "s"}}
    await client.call("POST", f"{CORE}/serviceaccounts", account, expect=201)
    asked.since()
    target = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    await client.call("POST", f"{pods}/p/binding", target, expect=201)
    await client.call("POST", f"{pods}/p/eviction", {"metadata": {"name": "p"}}, expect=201)
    await client.call("POST", f"{CORE}/serviceaccounts/s/token", {"spec": {}}, expect=201)
    seen = [(each.operation, each.name, each.subresource, each.kind.kind) for each in asked.since()]
    assert seen == [
        ("CREATE", "p", "binding", "Binding"),
        ("CREATE", "p", "binding", "Binding"),
        ("CREATE", "p", "eviction", "Eviction"),
        ("CREATE", "p", "eviction", "Eviction"),
        ("CREATE", "s", "token", "TokenRequest"),
        ("CREATE", "s", "token", "TokenRequest"),
    ]


async def test_a_namespace_is_asked_about_in_itself(asked: Asked) -> None:
    await asked.client.call("POST", "/api/v1/namespaces", {"metadata": {"name": "n"}}, expect=201)
    assert {(each.namespace, each.name) for each in asked.since()} == {("n", "n")}


async def test_what_configures_admission_is_never_asked_about(asked: Asked) -> None:
    await asked.client.call("DELETE", f"{BINDINGS}/b")
    assert asked.since() == []


async def test_without_configuration_nobody_is_asked(asked: Asked) -> None:
    await asked.client.call("DELETE", f"{BINDINGS}/b")
    await asked.client.call("POST", MAPS, {"metadata": {"name": "a"}}, expect=201)
    assert asked.since() == []


async def test_mutators_of_all_sources_come_first_and_get_a_second_round_if_one_wants_it() -> None:
    async with EmbeddedAPIServer(seed=1) as server, Client(server) as client:
        log: list[tuple[Any, ...]] = []
        server.admission += [Recorder("one", log), Recorder("two", log, again=True)]
        hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        await client.call("POST", hooks, {"metadata": {"name": "h"}}, expect=201)
        await client.call("POST", MAPS, {"metadata": {"name": "a"}}, expect=201)
        assert [each[:2] for each in log] == [
            ("one", "mutate"),
            ("two", "mutate"),
            ("one", "mutate"),
            ("two", "mutate"),
            ("one", "validate"),
            ("two", "validate"),
        ]


async def test_an_object_can_be_renamed_before_it_is_made_but_not_moved() -> None:
    class Renaming(Recorder):
        def mutate(self, attributes: Attributes, _: Round) -> None:
            assert attributes.obj is not None
            metadata = {**attributes.obj["metadata"], **self.given}
            attributes.obj = {**attributes.obj, "metadata": metadata}

        given: dict[str, str]

    async with EmbeddedAPIServer(seed=1) as server, Client(server) as client:
        renaming = Renaming("one", [])
        server.admission.append(renaming)
        hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        await client.call("POST", hooks, {"metadata": {"name": "h"}}, expect=201)
        renaming.given = {"name": "other"}
        made = await client.call("POST", MAPS, {"metadata": {"name": "a"}}, expect=201)
        assert made["metadata"]["name"] == "other"
        patch = {"data": {"a": "b"}}
        renaming.given = {"name": "third"}
        await client.call("PATCH", f"{MAPS}/other", patch, headers=MERGE, expect=422)
        renaming.given = {"namespace": "kube-system"}
        await client.call("POST", MAPS, {"metadata": {"name": "b"}}, expect=400)
