"""Programs that some tests need: where to find them and how to install them.

A test says `@pytest.mark.needs("haproxy")`. Without that program it is skipped, and in CI it fails.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

#: Where `tools/fetch_go_clients.py` puts the newest Go clients.
GO_CLIENTS = Path(
    os.environ.get("LISTWATCH_GO_CLIENTS") or Path(__file__).parents[1] / ".go-clients"
)

#: How each program is installed.
REMEDIES: Mapping[str, str] = {
    "haproxy": "apt-get install haproxy",
    "chromium": "apt-get install chromium",
    "kubectl": "apt-get install kubernetes-client, or name one in KUBECTL",
    "kubectl-1.34": "make go-clients",
    "helm": "make go-clients",
}


def find(name: str) -> str | None:
    """Return the program's path; None if it is not on this machine."""
    match name:
        case "kubectl":
            return os.environ.get("KUBECTL") or shutil.which("kubectl")
        case "kubectl-1.34":
            return shutil.which(GO_CLIENTS / "kubectl")
        case "helm":
            return shutil.which(GO_CLIENTS / "helm")
        case "haproxy":
            # Debian's path, often not on PATH
            return shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")
        case "chromium":
            names = ("chromium", "google-chrome", "chrome")
            return next(filter(None, map(shutil.which, names)), None)
    raise ValueError(f"no component is called {name!r}: {', '.join(REMEDIES)}")


def path(name: str) -> str:
    """Return the path of a program; the mark `needs` ensures that it is installed."""
    found = find(name)
    assert found is not None, f"needs {name}: {REMEDIES[name]}"
    return found
