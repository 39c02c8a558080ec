"""The process in which worlds run, with a fixed hash seed: `python -m listwatch.simulation.worker`.

Reads a job as JSON from standard input, and writes a report as JSON to standard output.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from listwatch.apiserver.workloads.options import Workloads
from listwatch.errors import ConfigError
from listwatch.runtime.loading import load_app, load_names
from listwatch.simulation.determinism import Machine, installed
from listwatch.simulation.faults import Plan, chosen
from listwatch.simulation.report import Coverage, Report
from listwatch.simulation.running import Worlds
from listwatch.simulation.search import Budget, NotDeterministicError, Search
from listwatch.simulation.state import Mask
from listwatch.simulation.world import Setting, objects_of

if TYPE_CHECKING:
    from listwatch.simulation.oracles import Invariant, RequestInvariant


class Named(msgspec.Struct, frozen=True):
    """A function by name.

    Attributes:
        file: the file that it is in; "" to import `module`.
        name: its name there; "" for the program of the file, whatever its name.
        module: the module that it is in.
    """

    file: str
    name: str
    module: str = ""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to simulate."""

    make_app: Named
    scenario: Named
    path: tuple[str, ...] = ()
    replicas: int = 1
    setup: tuple[str | dict[str, Any], ...] = ()
    workloads: bool | Workloads = False
    faults: tuple[str, ...] = ()
    without_faults: tuple[str, ...] = ()
    without_oracles: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    invariants: tuple[Named, ...] = ()
    request_invariants: tuple[Named, ...] = ()
    seconds: float = 10.0
    worlds: int = 0
    replay: str = ""
    hash_seed: int = 0
    records_rights: bool = False


def perform(job: Job, machine: Machine) -> Report:
    """Simulate, and return the report."""
    try:
        setting = _setting(job)
        worlds = Worlds(setting, machine)
        budget = Budget(job.seconds, job.worlds)
        search = Search(worlds, budget, machine.stopwatch, job.hash_seed)
        report = search.replay(Plan.parse(job.replay)) if job.replay else search.run()
    except (ConfigError, NotDeterministicError) as error:
        return Report(Coverage(), problem=str(error))
    report.asked = worlds.asked
    return report


def _setting(job: Job) -> Setting:
    scenario = _function(job.scenario, "scenario")
    names: dict[str, Any] = {}
    if job.scenario.file:
        names = dict(vars(sys.modules.get(job.scenario.file, object)))
    names = getattr(scenario, "__globals__", names)
    given: Any = [_function(each, "") for each in job.invariants]
    of_requests: Any = [_function(each, "") for each in job.request_invariants]
    invariants: list[Invariant] = [*given, *names.get("invariants", ())]
    request_invariants: list[RequestInvariant] = [
        *of_requests,
        *names.get("request_invariants", ()),
    ]
    return Setting(
        make_app=_maker(job.make_app),
        scenario=scenario,
        replicas=job.replicas,
        setup=objects_of(Path(each) if isinstance(each, str) else each for each in job.setup),
        workloads=job.workloads,
        faults=chosen(job.faults, job.without_faults),
        without=frozenset(job.without_oracles),
        mask=Mask(job.mask),
        invariants=invariants,
        request_invariants=request_invariants,
        records_rights=job.records_rights,
    )


def _maker(named: Named) -> Callable[[], object]:
    """Return what makes the program of a process: a file is run anew for each."""
    if not named.file:
        made: Callable[[], object] = _function(named, "make_app")
        return made
    path = Path(named.file)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if named.name in {"", "make_app"}:
        return lambda: load_app(path)

    def make() -> object:
        names = load_names(path)
        function = names.get(named.name)
        if not callable(function):
            raise ConfigError(f"{path} has no function {named.name}")
        return function()

    return make


def _function(named: Named, usual: str) -> Any:
    name = named.name or usual
    if named.file:
        names = load_names(Path(named.file))
        function = names.get(name)
    else:
        function = importlib.import_module(named.module)
        for part in name.split("."):
            function = getattr(function, part, None)
    if not callable(function):
        raise ConfigError(f"{named.file or named.module} has no function {name}")
    return function


@contextlib.contextmanager
def quiet_output() -> Iterator[int]:
    """Discard what the program prints, and yield the descriptor of the real standard output."""
    real = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    _ = os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        yield real
    finally:
        sys.stdout.flush()
        _ = os.dup2(real, 1)
        os.close(real)


def main() -> None:
    """Perform the job on standard input."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.path[:] = [*job.path, *(each for each in sys.path if each not in job.path)]
    with quiet_output() as output, installed() as machine:
        report = msgspec.json.encode(perform(job, machine))
        with os.fdopen(os.dup(output), "wb") as stream:
            _ = stream.write(report)


if __name__ == "__main__":
    main()
