"""Worlds, faults, and the search among them."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from listwatch.client import Client, Config
from listwatch.runtime import Manager
from listwatch.simulation.determinism import Machine
from listwatch.simulation.faults import FAULTS, Plan, TokenError, chosen
from listwatch.simulation.report import Report
from listwatch.simulation.running import Worlds
from listwatch.simulation.search import Budget, NotDeterministicError, Search, single_faults
from listwatch.simulation.state import State
from listwatch.simulation.world import World
from simulation.programs import config_map, make_app, make_mended_app, one_parent

WorldsOf = Callable[..., Worlds]


@pytest.fixture
def search_of(machine: Machine, worlds_of: WorldsOf) -> Callable[..., Report]:
    def search_of(make_app: object, scenario: object, worlds: int, **options: object) -> Report:
        budget = Budget(seconds=3600.0, worlds=worlds)
        return Search(worlds_of(make_app, scenario, **options), budget, machine.stopwatch).run()

    return search_of


def test_the_same_token_gives_the_same_digest_of_all_requests_and_answers(
    worlds_of: WorldsOf,
) -> None:
    worlds = worlds_of(make_app, one_parent)
    for token in ("h0.s0", "h0.s5", "h0.s0/4:lost-reply/5:lag", "h0.s0/4:crash-after"):
        digests = {worlds.run(Plan.parse(token)).digest for _ in range(3)}
        assert len(digests) == 1
    assert worlds.run(Plan.parse("h0.s0")).digest != worlds.run(Plan.parse("h0.s5")).digest


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_the_same_token_gives_the_same_digest_ten_thousand_times(worlds_of: WorldsOf) -> None:
    worlds = worlds_of(make_app, one_parent)
    plan = Plan.parse("h0.s7/4:lost-reply")
    assert len({worlds.run(plan).digest for _ in range(10_000)}) == 1


def test_a_stale_read_is_found_and_shrunk_and_replayed(
    machine: Machine, worlds_of: WorldsOf, search_of: Callable[..., Report]
) -> None:
    report = search_of(make_app, one_parent, 200)
    assert report.found is not None
    plan = Plan.parse(report.found.token)
    assert [number for number, _ in plan.strikes] == [4, 5]
    assert plan.strikes[0] == (4, "lost-reply")
    assert [each.oracle for each in report.found.violations] == ["end-state"]
    assert report.found.violations[0].details == ("! secrets default/app-*: 2 instead of 1",)
    text = report.text()
    assert "fails with default/app: DisconnectedError" in text
    assert "at controller: ADDED secrets default/app-" in text
    search = Search(worlds_of(make_app, one_parent), Budget(), machine.stopwatch)
    again = search.replay(plan)
    assert again.found is not None
    assert again.found.violations == report.found.violations


def test_a_program_without_the_bug_has_no_violation_and_the_coverage_is_exact(
    search_of: Callable[..., Report],
) -> None:
    report = search_of(make_mended_app, one_parent, 30)
    assert report.ok
    coverage = report.coverage
    assert coverage.worlds == 30
    assert coverage.singles == coverage.all_singles
    # 2 worlds without faults come first
    assert coverage.singles + coverage.pairs + coverage.schedules == 28
    assert report.text() == f"{coverage.words}; no violation"


def test_every_fault_strikes_at_the_point_that_the_plan_names(worlds_of: WorldsOf) -> None:
    worlds = worlds_of(make_mended_app, one_parent, faults=chosen(["all"]))
    reference = worlds.run(Plan())
    tried = set()
    for number, name in single_faults(reference.points):
        if name in tried:
            continue
        tried.add(name)
        result = worlds.run(Plan(0, ((number, name),)), reference.outcome, keeps_story=True)
        struck = [entry.point for entry in result.entries if entry.lane == "fault" and entry.point]
        assert struck == [number], name
        assert result.violations == [], name
    # nothing here depends on a version
    assert tried == FAULTS.keys() - {"conflict"}


def test_the_program_of_a_crashed_process_takes_no_further_step(worlds_of: WorldsOf) -> None:
    worlds = worlds_of(make_app, one_parent)
    reference = worlds.run(Plan())
    result = worlds.run(Plan.parse("h0.s0/4:crash-after"), reference.outcome, keeps_story=True)
    dead = [entry.words for entry in result.entries].index("controller dies")
    assert {entry.lane for entry in result.entries[dead + 1 :]} == {"controller'", "server", "user"}


def test_a_difference_between_two_runs_is_reported_with_the_request_where_it_begins(
    search_of: Callable[..., Report],
) -> None:
    made = []

    def make_unsteady() -> Manager:
        made.append(1)
        app = Manager("unsteady")
        namespaces = app.reconciler("namespaces").for_("namespaces")

        @namespaces
        async def reconcile(key: str) -> None:
            patch = {"metadata": {"annotations": {"run": str(len(made))}}}
            if namespaces.get(key) is not None:
                await app.client.patch("namespaces", key, patch)

        return app

    with pytest.raises(NotDeterministicError, match="differ from 'controller "):
        search_of(make_unsteady, one_parent, 10)


def test_an_invariant_is_checked_at_every_commit(search_of: Callable[..., Report]) -> None:
    def never_a_child(state: State) -> bool:
        return not state.list("secrets")

    report = search_of(make_app, one_parent, 10, invariants=[never_a_child])
    assert report.found is not None
    assert report.found.token == "h0.s0"
    assert report.found.violations[0].words == "never_a_child"
    assert report.found.violations[0].time < 2.0


def test_work_that_never_rests_is_a_violation_without_faults(
    search_of: Callable[..., Report],
) -> None:
    def make_restless() -> Manager:
        app = Manager("restless")
        maps = app.reconciler("maps", hot_key_interval=0.0).for_("configmaps")

        @maps
        async def reconcile(key: str) -> None:
            if (found := maps.get(key)) is not None and found.name == "app":
                count = str(int((found.get("data") or {}).get("count", "0")) + 1)
                await app.client.patch("configmaps", "app", {"data": {"count": count}})

        return app

    async def scenario(world: World) -> None:
        await world.create(config_map("app"))
        await world.settle()

    report = search_of(make_restless, scenario, 5)
    assert report.found is not None
    assert report.found.violations[0].oracle == "stability"


@pytest.mark.parametrize("token", ["", "s0", "h0.s0/x:lag", "h0.s0/1:no-such-fault", "h0.s0/1"])
def test_a_text_that_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(TokenError, match="token"):
        Plan.parse(token)


def test_a_token_is_the_text_of_its_plan() -> None:
    token = "h3.s17/2:lag/9:crash-after"
    assert Plan.parse(token).token == token


def test_an_unknown_fault_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no fault is called 'leg'; there are crash-before,"):
        chosen(["leg"])


def test_a_client_of_any_making_reaches_the_simulated_server(worlds_of: WorldsOf) -> None:
    made: list[str] = []

    async def main() -> None:
        given = Config(server="https://elsewhere.example.com", namespace="kube-system")
        for client in (Client(given), Client.from_config(), Client.from_config(given)):
            async with client:
                found = await client.get("namespaces", "default")
                made.append(f"{client.config.namespace} {found.name}")

    async def scenario(world: World) -> None:
        await world.settle()

    assert worlds_of(main, scenario).run(Plan()).violations == []
    assert made == ["kube-system default", "default default", "kube-system default"]


def test_a_refused_socket_is_a_violation_even_if_the_program_takes_it_for_a_broken_connection(
    worlds_of: WorldsOf,
) -> None:
    async def main() -> None:
        with contextlib.suppress(Exception):
            await asyncio.open_connection("127.0.0.1", 1)

    async def scenario(world: World) -> None:
        await world.settle()

    violations = worlds_of(main, scenario).run(Plan()).violations
    assert [each.oracle for each in violations] == ["unsupported"]
    assert "use Client.from_config()" in violations[0].words


def test_a_program_without_any_point_has_random_schedules_alone(
    search_of: Callable[..., Report],
) -> None:
    async def main() -> None: ...

    async def scenario(world: World) -> None:
        await world.settle()

    report = search_of(main, scenario, 5, faults=frozenset({"conflict"}))
    assert report.ok
    assert report.coverage.schedules == 3
