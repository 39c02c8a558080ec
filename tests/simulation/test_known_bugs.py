"""The known bugs of examples/simulation: each is found, and none of the mended ones alarms."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from listwatch.runtime.loading import load_names
from listwatch.simulation.determinism import Machine
from listwatch.simulation.report import Report
from listwatch.simulation.running import Worlds
from listwatch.simulation.search import Budget, Search
from listwatch.simulation.state import Mask
from sampling import sampled

EXAMPLES = Path(__file__).parents[2] / "examples/simulation"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "table")


def search(
    name: str, maker: str, worlds: int, machine: Machine, worlds_of: Callable[..., Worlds]
) -> Report:
    names = load_names(EXAMPLES / f"{name}.py")
    options: dict[str, Any] = dict(names.get("OPTIONS", {}))
    if "mask" in options:
        options["mask"] = Mask(options["mask"])
    found = worlds_of(names[maker], names["scenario"], **options)
    return Search(found, Budget(3600.0, worlds), machine.stopwatch).run()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sampled(NAMES, 13))
def test_a_known_bug_is_found_and_its_mended_program_is_not_blamed(
    name: str, machine: Machine, worlds_of: Callable[..., Worlds]
) -> None:
    found = search(name, "make_app", 400, machine, worlds_of).found
    assert found is not None
    assert found.strikes or found.token == "h0.s0"
    mended = search(name, "make_mended_app", 20, machine, worlds_of)
    assert mended.found is None, mended.text()


@pytest.mark.parametrize("name", NAMES)
def test_a_known_bug_is_a_controller_of_at_most_80_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 80
