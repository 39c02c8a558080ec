"""A machine on which worlds run, and the program to run in them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from listwatch.simulation.determinism import Machine, installed
from listwatch.simulation.faults import chosen
from listwatch.simulation.running import Worlds
from listwatch.simulation.world import Setting


@pytest.fixture(scope="package")
def machine() -> Iterator[Machine]:
    with installed() as machine:
        yield machine


@pytest.fixture
def worlds_of(machine: Machine) -> Callable[..., Worlds]:
    def worlds_of(make_app: Any, scenario: Any, **options: Any) -> Worlds:
        options.setdefault("faults", chosen())
        return Worlds(Setting(make_app=make_app, scenario=scenario, **options), machine)

    return worlds_of
