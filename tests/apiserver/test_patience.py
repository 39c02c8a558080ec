"""Long evaluations don't block the event loop, and have the same result."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.admission.patience import evaluated
from listwatch.apiserver.user import Question, User
from listwatch.apiserver.webhooks.consultation import Consultation
from listwatch.cel.admission import Evaluation, Vocabulary, compile_as
from listwatch.cel.patience import Patience, TakesLongError
from listwatch.clock import Clock
from listwatch.testing import eventually

GROUP = "/apis/admissionregistration.k8s.io/v1"
MAPS = f"{CORE}/configmaps"
NUMBERS = "[" + ",".join(["1"] * 150) + "]"
#: Costs a good part of the limit of one expression.
DEAR = f"{NUMBERS}.all(a, {NUMBERS}.all(b, a + b == 2))"
#: Costs more than the event loop may spend, but takes little time.
ASKED = "authorizer.path('/healthz').check('get').allowed()"
RULES = {
    "resourceRules": [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["configmaps"],
        }
    ]
}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer(seed=1) as server, Client(server) as client:
        yield client


class Held:
    """Holds what is to run in threads, from its beginning until the release."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_begun = asyncio.Event()
        self.release = threading.Event()
        to_thread = asyncio.to_thread

        async def hold(work: Callable[[], Any]) -> Any:
            def run() -> Any:
                assert self.release.wait(50)
                return work()

            self.has_begun.set()
            return await to_thread(run)

        monkeypatch.setattr(asyncio, "to_thread", hold)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.release.set()


async def bind(client: Client, kind: str, spec: dict[str, Any], **binding: Any) -> None:
    spec = {"matchConstraints": RULES, **spec}
    await client.create(f"{GROUP}/{kind}admissionpolicies", "p", spec=spec)
    bound = {"policyName": "p", **binding}
    await client.create(f"{GROUP}/{kind}admissionpolicybindings", "b", spec=bound)


async def test_others_are_answered_while_a_policy_takes_long(client: Client, held: Held) -> None:
    validations = [{"expression": DEAR}] * 2
    await bind(client, "validating", {"validations": validations}, validationActions=["Deny"])
    long = asyncio.create_task(client.create(MAPS, "a"))
    await held.has_begun.wait()
    await client.call("GET", MAPS, expect=200)
    assert not long.done()
    held.release.set()
    assert (await long)["metadata"]["name"] == "a"


async def test_a_request_that_waited_is_warned_once_and_refused_once(client: Client) -> None:
    validations = [{"expression": f"{ASKED} && false", "message": "no"}]
    await bind(client, "validating", {"validations": validations}, validationActions=["Deny"])
    status = await client.call("POST", MAPS, {"metadata": {"name": "a"}}, expect=422)
    assert status["message"].endswith("denied request: no")
    await client.call("GET", f"{MAPS}/a", expect=404)


async def test_a_mutation_that_waited_is_applied_once(client: Client) -> None:
    counted = (
        f"Object{{data: {{'n': {ASKED} && has(object.data) && 'n' in object.data "
        "? string(int(object.data.n) + 1) : '1'}}"
    )
    patch = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": counted}}
    spec = {"mutations": [patch], "reinvocationPolicy": "Never"}
    await bind(client, "mutating", spec)
    made = await client.create(MAPS, "a")
    assert made["data"] == {"n": "1"}
    changed = await client.merge(f"{MAPS}/a", {"metadata": {"labels": {"a": "b"}}})
    assert changed["data"] == {"n": "2"}


#: Takes some tenths of a second to compile.
LONG = "object.metadata.name != 'x'" + " && true" * 2_000


async def test_a_policy_that_is_long_to_compile_is_made_and_holds_up_nobody(
    client: Client, held: Held
) -> None:
    body = {
        "metadata": {"name": "p"},
        "spec": {"matchConstraints": RULES, "validations": [{"expression": LONG}]},
    }
    path = f"{GROUP}/validatingadmissionpolicies"
    long = asyncio.create_task(client.call("POST", path, body, expect=201))
    await held.has_begun.wait()
    await client.call("GET", MAPS, expect=200)
    assert not long.done()
    held.release.set()
    await long
    bound = {"policyName": "p", "validationActions": ["Deny"]}
    await client.create(f"{GROUP}/validatingadmissionpolicybindings", "b", spec=bound)
    await client.create(MAPS, "a")
    status = await client.call("POST", MAPS, {"metadata": {"name": "x"}}, expect=422)
    assert "denied request: failed expression: object.metadata.name" in status["message"]
    found: Any = {}

    async def checked() -> bool:
        found.update(await client.call("GET", f"{path}/p"))
        return "typeChecking" in found["status"]

    await eventually(checked, "the types in the policy are checked")
    assert found["status"] == {"observedGeneration": 1, "typeChecking": {}}


def definition(rule: str) -> dict[str, Any]:
    """Return the definition of widgets with a rule for their spec."""
    numbers = {"type": "array", "maxItems": 200, "items": {"type": "integer"}}
    spec = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "n": numbers},
        "x-kubernetes-validations": [{"rule": rule, "message": "no"}],
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def widget(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": spec,
    }


DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/widgets"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The functions that ran in threads."""
    record: list[object] = []
    to_thread = asyncio.to_thread

    async def recorded(work: Callable[[], Any]) -> Any:
        record.append(work)
        return await to_thread(work)

    monkeypatch.setattr(asyncio, "to_thread", recorded)
    return record


async def define(client: Client, rule: str) -> None:
    """Define widgets, and wait until they are served."""
    await client.call("POST", DEFINITIONS, definition(rule), expect=201)

    async def served() -> bool:
        found = await client.call("GET", WIDGETS)
        return isinstance(found, dict) and found["kind"] == "WidgetList"

    await eventually(served, "widgets are served")


async def test_rules_that_are_long_to_compile_are_compiled_in_threads(
    client: Client, threads: list[object]
) -> None:
    await define(client, "!has(self.a) || self.a != 'x'" + " && true" * 2_000)
    assert len(threads) == 1
    # The first write compiles them for all later ones.
    await client.call("POST", WIDGETS, widget("a", a="y"), expect=201)
    assert len(threads) == 2
    await client.call("POST", WIDGETS, widget("b", a="x"), expect=422)
    await client.call("POST", WIDGETS, widget("c", a="y"), expect=201)
    assert len(threads) == 2


async def test_others_are_answered_while_rules_are_compiled(client: Client, held: Held) -> None:
    body = definition("self.a != 'x'" + " && true" * 2_000)
    long = asyncio.create_task(client.call("POST", DEFINITIONS, body, expect=201))
    await held.has_begun.wait()
    await client.call("GET", MAPS, expect=200)
    assert not long.done()
    held.release.set()
    await long


async def test_rules_that_are_long_and_wrong_are_refused_with_their_causes(client: Client) -> None:
    rule = "self.nope" + " && true" * 2_000
    status = await client.call("POST", DEFINITIONS, definition(rule), expect=422)
    (cause,) = status["details"]["causes"]
    assert cause["field"].endswith("x-kubernetes-validations[0].rule")
    assert "undefined field 'nope'" in cause["message"]


async def test_rules_that_take_long_are_evaluated_in_a_thread(
    client: Client, threads: list[object]
) -> None:
    await define(client, "!has(self.n) || self.n.all(a, self.n.all(b, a + b > 0))")
    await client.call("POST", WIDGETS, widget("small", n=[1]), expect=201)
    del threads[:]
    await client.call("POST", WIDGETS, widget("smaller", n=[2]), expect=201)
    assert threads == []
    await client.call("POST", WIDGETS, widget("good", n=[1] * 200), expect=201)
    assert len(threads) == 1
    status = await client.call("POST", WIDGETS, widget("bad", n=[1] * 199 + [0]), expect=422)
    assert [cause["field"] for cause in status["details"]["causes"]] == ["spec"]
    assert len(threads) == 2


def conditional(expression: str) -> dict[str, Any]:
    """Return the configuration of an unreachable webhook with a match condition."""
    hook = {
        "name": "a.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "rules": RULES["resourceRules"],
        "matchConditions": [{"name": "c", "expression": expression}],
    }
    return {"metadata": {"name": "hooks"}, "webhooks": [hook]}


HOOKS = f"{GROUP}/validatingwebhookconfigurations"


async def test_conditions_of_a_webhook_that_are_long_are_compiled_in_threads(
    client: Client, threads: list[object]
) -> None:
    condition = "object.metadata.name == 'x'" + " && true" * 2_000
    await client.call("POST", HOOKS, conditional(condition), expect=201)
    assert len(threads) == 1
    # The first write compiles them for all later ones.
    await client.create(MAPS, "a")
    assert len(threads) == 2
    await client.call("POST", MAPS, {"metadata": {"name": "x"}}, expect=500)
    await client.create(MAPS, "b")
    assert len(threads) == 2


async def test_a_changed_configuration_compiles_its_own_conditions_alone(
    client: Client, threads: list[object]
) -> None:
    body = conditional("object.metadata.name == 'x'" + " && true" * 2_000)
    await client.call("POST", HOOKS, body, expect=201)
    await client.create(MAPS, "a")
    await client.call("POST", HOOKS, {**conditional("false"), "metadata": {"name": "b"}})
    del threads[:]
    await client.create(MAPS, "b")
    assert threads == []


async def test_conditions_of_a_webhook_that_take_long_are_evaluated_in_a_thread(
    client: Client, threads: list[object]
) -> None:
    await client.call("POST", HOOKS, conditional(f"{ASKED} && false"), expect=201)
    await client.create(MAPS, "a")
    assert len(threads) == 1


async def test_a_condition_that_takes_long_and_fails_refuses_the_request(
    client: Client, threads: list[object]
) -> None:
    await client.call("POST", HOOKS, conditional(f"{ASKED} && object.nope == 1"), expect=201)
    status = await client.call("POST", MAPS, {"metadata": {"name": "a"}}, expect=403)
    assert "no such key: nope" in status["message"]
    assert len(threads) == 1


async def test_a_policy_that_is_long_and_wrong_is_refused_with_its_causes(client: Client) -> None:
    spec = {"matchConstraints": RULES, "validations": [{"expression": f"{LONG} && nope"}]}
    path = f"{GROUP}/validatingadmissionpolicies"
    body = {"metadata": {"name": "p"}, "spec": spec}
    status = await client.call("POST", path, body, expect=422)
    (cause,) = status["details"]["causes"]
    assert cause["field"] == "spec.validations[0].expression"
    assert "undeclared reference to 'nope'" in cause["message"]


async def test_a_long_check_of_types_ends_with_its_server() -> None:
    async with EmbeddedAPIServer(seed=1) as server, Client(server) as client:
        spec = {"matchConstraints": RULES, "validations": [{"expression": LONG}]}
        path = f"{GROUP}/validatingadmissionpolicies"
        await client.call("POST", path, {"metadata": {"name": "p"}, "spec": spec}, expect=201)
    assert len(asyncio.all_tasks()) == 1


def allowed(_: User, __: Question) -> tuple[bool, str]:
    return True, ""


async def test_what_is_short_is_evaluated_at_once_and_the_rest_in_a_thread() -> None:
    here = threading.current_thread()
    seen: list[bool] = []

    def work(decide: Any, patience: Patience | None) -> str:
        seen.append(threading.current_thread() is here)
        if patience is not None and patience.left < 30_000:
            raise TakesLongError
        assert decide(User("a"), Question("get")) == (True, "")
        return "done"

    async def attempt() -> str:
        return evaluated("key", allowed, work)

    assert await Consultation(Clock()).settle(attempt) == "done"
    assert seen == [True, False]


async def test_an_error_in_the_event_loop_reaches_the_thread() -> None:
    def broken(_: User, __: Question) -> tuple[bool, str]:
        raise ValueError("broken")

    def work(decide: Any, patience: Patience | None) -> str:
        if patience is not None:
            raise TakesLongError
        with pytest.raises(ValueError, match="broken"):
            decide(User("a"), Question("get"))
        return "done"

    async def attempt() -> str:
        return evaluated("key", broken, work)

    assert await Consultation(Clock()).settle(attempt) == "done"


def test_where_nobody_can_wait_everything_is_evaluated_at_once() -> None:
    assert evaluated("key", allowed, lambda _, patience: patience) is None


def test_patience_ends_before_the_budget_and_is_shared() -> None:
    vocabulary = Vocabulary()
    expression = compile_as("[1, 2, 3].all(a, a > 0)", vocabulary.environment())
    patience = Patience(100)
    for _ in range(2):
        assert Evaluation({}, vocabulary, patience=patience).run(expression) is True
    assert 0 < patience.left < 60
    patience.left = 5
    with pytest.raises(TakesLongError):
        Evaluation({}, vocabulary, patience=patience).run(expression)


def test_what_fails_has_its_cost_too() -> None:
    vocabulary = Vocabulary()
    expression = compile_as("[1, 2, 3].map(a, a + 1).map(a, a / 0)", vocabulary.environment())
    evaluation = Evaluation({}, vocabulary, 1000)
    with pytest.raises(Exception, match="division by zero"):
        evaluation.run(expression)
    assert evaluation.remaining < 990
