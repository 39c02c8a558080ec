"""Runs every benchmark in turn: `python bench/run.py [NAME…] [--full]`, or `make bench`.

Each is a separate program that prints its table with the goals. Without `--full` the sizes are
small, so that all of them take a few minutes. Rivals are run by `bench/report.py`,
`bench/faults.py` and `bench/controllers.py --kopf`.
"""

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

#: The small sizes; the programs' defaults are the full ones.
MODEST = {
    "queues_and_store": "--count 20000",
    "workqueues": "--waiting 100000",
    "informers": "--updates 20000 --events 300",
    "tls": "--pods 5000 --updates 10000 --events 50 --runs 1",
    "stages": "--runs 5",
    "many_cores": "--updates 10000 --runs 1",
    "handlers": "--objects 10000 --handlers 1,10",
    "transport": "--count 10000 --runs 1",
    "sync": "--pods 10000 --updates 20000",
    "apiserver": "--quick",
    "start_up": "--runs 5",
    "observe": "--pods 2000 --commands 200",
    "controllers": "--objects 1000",
    "load_balancers": "--rounds 2",
}


def main() -> int:
    """Run them; the exit code says whether all succeeded."""
    parser = argparse.ArgumentParser(description="run the benchmarks, one after the other")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(MODEST)}")
    parser.add_argument("--full", action="store_true", help="the full sizes")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(MODEST)):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(MODEST)}")
    failed = []
    for name in options.names or MODEST:
        words = [] if options.full else shlex.split(MODEST[name])
        print(f"\n== bench/{name}.py {' '.join(words)}".rstrip(), flush=True)
        start = time.monotonic()
        program = Path(__file__).with_name(f"{name}.py")
        if subprocess.run([sys.executable, program, *words], check=False).returncode:
            failed.append(name)
        print(f"({time.monotonic() - start:.0f} s)", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
