"""The function `simulate`, which runs the worlds in a process of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from listwatch.errors import ConfigError
from listwatch.simulation.faults import Plan, chosen
from listwatch.simulation.report import Report
from listwatch.simulation.worker import Job, Named

if TYPE_CHECKING:
    from listwatch.apiserver.workloads.options import Workloads
    from listwatch.simulation.oracles import Invariant, RequestInvariant
    from listwatch.simulation.world import Scenario

#: Seconds that a worker may take beyond its budget, to start and to shrink what it found.
_GRACE: float = 120.0


def simulate(
    make_app: "Callable[..., object] | str | Path",
    scenario: "Scenario | str | Path",
    *,
    replicas: int = 1,
    setup: Sequence[Mapping[str, Any] | Path] = (),
    workloads: "bool | Workloads" = False,
    seconds: float = 10.0,
    worlds: int = 0,
    faults: Iterable[str] = (),
    without_faults: Iterable[str] = (),
    without_oracles: Iterable[str] = (),
    mask: Iterable[str] = (),
    invariants: "Sequence[Invariant]" = (),
    request_invariants: "Sequence[RequestInvariant]" = (),
    replay: str = "",
    records_rights: bool = False,
) -> Report:
    """Run a program in many simulated worlds, and return what went wrong in the first bad one.

    The worlds run one after the other in a process of their own, whose hash seed is fixed. In each,
    the scenario does the same while other faults strike. See docs/simulation.md.

    Args:
        make_app: makes the program of a process: a function without required parameters that
            returns a `Manager`, a list of them, or a coroutine; or "FILE" or "FILE:NAME", which is
            run anew for each process. A function must be at the top level of a module.
        scenario: `async def scenario(world)`, or "FILE:NAME".
        replicas: number of processes.
        setup: objects that exist before, such as definitions; or files of YAML documents.
        workloads: let Deployments and other workloads have pods that run.
        seconds: real seconds to search.
        worlds: number of worlds to run at most; 0 for no limit.
        faults: names of the faults to try; by default all but a few, "all" for all.
        without_faults: names of faults to leave out.
        without_oracles: names of oracles that say nothing.
        mask: what to leave out of the comparison of end states, as "RESOURCE: status.lastSync", or
            "RESOURCE:" for the whole resource.
        invariants: functions of the `State` at every commit: one objects by an AssertionError, or
            by returning False or a text.
        request_invariants: functions of all requests of the program, called at the end.
        replay: the token of the only world to run.
        records_rights: return the rights that were asked for, in the report's `asked`.

    Raises:
        ConfigError: a function can't be found by name, or the worker failed.
        TokenError: `replay` is no token.
        ValueError: an unknown fault.
    """
    _ = chosen(faults := tuple(faults), without_faults := tuple(without_faults))
    job = Job(
        make_app=_named(make_app),
        scenario=_named(scenario, "scenario"),
        path=tuple(sys.path),
        replicas=replicas,
        setup=tuple(str(each) if isinstance(each, Path) else dict(each) for each in setup),
        workloads=workloads,
        faults=faults,
        without_faults=without_faults,
        without_oracles=tuple(without_oracles),
        mask=tuple(mask),
        invariants=tuple(map(_named, invariants)),
        request_invariants=tuple(map(_named, request_invariants)),
        seconds=seconds,
        worlds=worlds,
        replay=replay,
        hash_seed=Plan.parse(replay).hash_seed if replay else 0,
        records_rights=records_rights,
    )
    return perform_elsewhere(job)


def perform_elsewhere(job: Job) -> Report:
    """Perform a job in a process with its hash seed.

    Raises:
        ConfigError: the process failed.
    """
    environment = {**os.environ, "PYTHONHASHSEED": str(job.hash_seed)}
    worker = subprocess.Popen(
        [sys.executable, "-m", "listwatch.simulation.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        output, errors = worker.communicate(msgspec.json.encode(job), job.seconds + _GRACE)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"a simulated world did not end within {job.seconds + _GRACE:g} s: a step of the "
            "program never ends, or blocks outside the simulation"
        ) from None
    finally:
        if worker.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            _ = worker.wait()
    if worker.returncode or not output:
        words = errors.decode(errors="replace").strip()
        raise ConfigError(f"the simulation failed:\n{words}" if words else "the simulation failed")
    return msgspec.json.decode(output, type=Report)


def _named(function: Callable[..., object] | str | Path, usual: str = "") -> Named:
    if isinstance(function, Path):
        return Named(str(function.absolute()), usual)
    if isinstance(function, str):
        file, _, name = function.partition(":")
        return Named(str(Path(file).absolute()), name or usual)
    name = getattr(function, "__qualname__", "")
    module = getattr(function, "__module__", "")
    if not name or "<" in name:
        raise ConfigError(
            f"{name or function!r} can't be found by name from another process: move it to the "
            "top level of a module"
        )
    found: str | None = getattr(sys.modules.get(module), "__file__", None)
    if found is None:
        raise ConfigError(f"the module {module} of {name} has no file to import in another process")
    if module == "__main__" or not _is_importable(module, found):
        return Named(str(Path(found).absolute()), name)
    return Named("", name, module)


def _is_importable(module: str, file: str) -> bool:
    """Return whether another process with the same path would import the module from the file."""
    parts = module.split(".")
    for folder in sys.path:
        base = Path(folder or ".").joinpath(*parts)
        for found in (base.with_suffix(".py"), base / "__init__.py"):
            if found.is_file():
                return found.resolve() == Path(file).resolve()
    return False
