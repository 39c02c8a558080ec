"""Runs a command for every object, and one for each surplus name of an outside system.

Does what `ObserveOptions.Run` does, by the command line: `--once`, `--names` and `--delete`.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from listwatch import APIServer


async def make_nodes(server: APIServer, *names: str) -> None:
    """Create nodes."""
    async with server.client() as client:
        for name in names:
            await client.create({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}})


def main() -> None:
    """Sync the files of a directory with the nodes of a cluster."""
    with tempfile.TemporaryDirectory() as temporary, APIServer(subprocess=True) as server:
        asyncio.run(make_nodes(server, "a", "b"))
        mirror = Path(temporary) / "mirror"
        mirror.mkdir()
        (mirror / "gone").touch()
        kubeconfig = Path(temporary) / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        subprocess.run(  # noqa: S603 - the interpreter at hand
            [
                *(sys.executable, "-m", "listwatch.cli", "observe", "nodes"),
                *("--kubeconfig", str(kubeconfig), "--once", "--quiet"),
                *("--names=ls", f"--names={mirror}", "--max-deletes=100%"),
                *("--delete=sh", "--delete=-c", f'--delete=rm {mirror}/"$1"', "--delete=sh"),
                *("--", "sh", "-c", f'touch {mirror}/"$1"', "sh"),
            ],
            check=True,
        )
        print(sorted(path.name for path in mirror.iterdir()))


if __name__ == "__main__":
    main()
