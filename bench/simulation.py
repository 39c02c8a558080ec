"""Worlds per second of the simulator, for the controller of README.md and for examples/website.

python bench/simulation.py [--worlds 200]

The goals, on an idle core: 200 worlds/s for the controller of README.md with three objects, 30 for
examples/website with its Deployment, pods and lease. Seconds are those of the processor, so that a
busy machine changes the result less.
"""

import argparse
import contextlib
import io
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from listwatch.runtime.loading import load_app
from listwatch.simulation.determinism import Machine, installed
from listwatch.simulation.faults import Plan, chosen
from listwatch.simulation.running import Worlds
from listwatch.simulation.search import single_faults
from listwatch.simulation.world import Setting, World, objects_of

if TYPE_CHECKING:
    from listwatch.simulation.oracles import Outcome

ROOT = Path(__file__).resolve().parent.parent
GOALS = {"README.md": 200, "examples/website": 30}


async def three_namespaces(world: World) -> None:
    """Create three namespaces."""
    for number in range(3):
        metadata = {"name": f"team-{number}"}
        await world.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    await world.settle()


async def one_website(world: World) -> None:
    """Create a website, change it, and delete it."""
    website = {"apiVersion": "example.com/v1", "kind": "Website", "metadata": {"name": "shop"}}
    await world.create(website | {"spec": {"image": "nginx:1", "replicas": 2}})
    await world.settle()
    await world.change("websites.example.com", "shop", {"spec": {"replicas": 3}})
    await world.settle()
    await world.delete("websites.example.com", "shop")
    await world.settle()


def readme_controller(folder: Path) -> Path:
    """Write the first controller of README.md to a file."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    file = folder / "controller_of_readme.py"
    _ = file.write_text(next(block for block in blocks if "labeller" in block), encoding="utf-8")
    return file


def measure(setting: Setting, machine: Machine, count: int, clock: Callable[[], float]) -> float:
    """Return the worlds per second of the first single faults."""
    worlds = Worlds(setting, machine)
    reference = worlds.run(Plan())
    outcome: Outcome | None = reference.outcome
    singles = single_faults(reference.points)
    step = max(1, len(singles) // count)
    tried = [singles[number % len(singles)] for number in range(0, count * step, step)]
    began = clock()
    for single in tried:
        result = worlds.run(Plan(0, (single,)), outcome)
        assert not result.violations, result.violations
    return len(tried) / (clock() - began)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=200)
    count = parser.parse_args().worlds

    clock = time.process_time
    with tempfile.TemporaryDirectory() as folder, installed() as machine:
        readme = readme_controller(Path(folder))
        website = ROOT / "examples/website"
        settings = {
            "README.md": Setting(
                make_app=lambda: load_app(readme), scenario=three_namespaces, faults=chosen()
            ),
            "examples/website": Setting(
                make_app=lambda: load_app(website / "controller.py"),
                scenario=one_website,
                setup=objects_of([website / "deploy/crds.yaml"]),
                workloads=True,
                faults=chosen(),
            ),
        }
        print(f"{'program':<20}{'worlds/s':>10}{'goal':>8}")
        for name, setting in settings.items():
            with contextlib.redirect_stdout(io.StringIO()):
                rate = measure(setting, machine, count, clock)
            print(f"{name:<20}{rate:>10.1f}{GOALS[name]:>8}")


if __name__ == "__main__":
    main()
