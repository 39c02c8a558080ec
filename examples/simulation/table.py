"""Searches every known bug of this directory, and the same program mended; prints a table.

python examples/simulation/table.py [--seconds 10] [--mended-worlds 1000] [NAME …]
"""

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

from listwatch.simulation import simulate

HERE = Path(__file__).parent


def names() -> list[str]:
    """Return the names of all known bugs."""
    return sorted(path.stem for path in HERE.glob("*.py") if path != Path(__file__))


def options_of(name: str) -> dict[str, Any]:
    """Return the options of `simulate` for a known bug."""
    found: dict[str, Any] = runpy.run_path(str(HERE / f"{name}.py")).get("OPTIONS", {})
    return found


def main() -> int:
    """Print the table; return 1 if a mended program goes wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each bug")
    parser.add_argument("--mended-worlds", type=int, default=1000, help="worlds of each mended one")
    parser.add_argument("names", nargs="*", help="by default all")
    arguments = parser.parse_args()
    print("| bug | found after | faults | oracle | mended |")
    print("|---|---|---|---|---|")
    is_bad = False
    for name in arguments.names or names():
        file, options = str(HERE / f"{name}.py"), options_of(name)
        bad = simulate(f"{file}:make_app", f"{file}:scenario", seconds=arguments.seconds, **options)
        if bad.problem:
            found = ("not simulated", bad.problem, "")
        elif bad.found is None:
            found = (f"not found in {bad.coverage.worlds} worlds", "", "")
        else:
            after = f"{bad.found.worlds} worlds, {bad.found.seconds:.1f} s"
            faults = " + ".join(strike.split(" ", 1)[0] for strike in bad.found.strikes)
            found = (after, faults or "none", bad.found.violations[0].oracle)
        mended = simulate(
            f"{file}:make_mended_app",
            f"{file}:scenario",
            seconds=600.0,
            worlds=arguments.mended_worlds,
            **options,
        )
        verdict = f"{mended.coverage.worlds} worlds, no violation"
        if not mended.ok:
            is_bad = True
            verdict = mended.problem or (mended.found and mended.found.violations[0].words) or ""
            token = mended.found.token if mended.found else ""
            print(f"{name}, mended: {token}: {verdict}", file=sys.stderr)
        print(f"| {name} | {' | '.join(found)} | {verdict} |", flush=True)
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
