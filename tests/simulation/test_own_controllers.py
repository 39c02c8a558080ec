"""The project's own controllers recover from every single fault."""

from collections.abc import Callable
from typing import Any

import pytest

from listwatch.simulation.determinism import Machine
from listwatch.simulation.faults import Plan
from listwatch.simulation.running import Worlds
from listwatch.simulation.search import Budget, Search
from simulation.own_programs import make_service_controller, make_sharing_app, one_service, two_maps

PROGRAMS = [(make_service_controller, one_service, 1), (make_sharing_app, two_maps, 2)]


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("make_app", "scenario", "replicas"), PROGRAMS)
def test_no_single_fault_breaks_a_controller_of_this_project(
    machine: Machine, worlds_of: Callable[..., Worlds], make_app: Any, scenario: Any, replicas: int
) -> None:
    worlds = worlds_of(make_app, scenario, replicas=replicas)
    report = Search(worlds, Budget(3600.0, 400), machine.stopwatch).run()
    assert report.found is None, report.text()


@pytest.mark.parametrize(("make_app", "scenario", "replicas"), PROGRAMS)
def test_a_controller_of_this_project_is_right_without_faults(
    worlds_of: Callable[..., Worlds], make_app: Any, scenario: Any, replicas: int
) -> None:
    result = worlds_of(make_app, scenario, replicas=replicas).run(Plan())
    assert result.violations == []
    assert len(result.points) > 8
