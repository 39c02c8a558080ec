"""What is uploaded: a source distribution that builds and is whole, and a wheel."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from listwatch.version import __version__

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and from it the wheel."""
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(target), str(ROOT)],
        capture_output=True,
        check=True,
    )
    return target


@pytest.mark.proof
def test_the_wheel_has_all_modules_and_a_readme_without_dead_links(built: Path) -> None:
    with zipfile.ZipFile(built / f"listwatch-{__version__}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        (metadata,) = [wheel.read(name) for name in names if name.endswith("/METADATA")]
    source = ROOT / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in (source / "listwatch").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= names
    text = metadata.decode()
    assert "# listwatch\n" in text
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == []


@pytest.mark.proof
def test_the_unpacked_source_passes_tests_of_files_and_of_behaviour(
    built: Path, tmp_path: Path
) -> None:
    with tarfile.open(built / f"listwatch-{__version__}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    chosen = ["test_suite.py", "test_documentation.py", "test_public_names.py", "test_clock.py"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not program"),
            *(f"tests/{name}" for name in chosen),
            *("tests/cache/test_store.py", "tests/runtime/test_deploy.py"),
        ],
        cwd=tmp_path / f"listwatch-{__version__}",
        env={"PYTHONPATH": "src", "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
