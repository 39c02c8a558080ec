"""The fixtures for users' tests, in a separate run of pytest."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.control import Control
from listwatch.apiserver.http.faults import Fault
from listwatch.apiserver.kinds.catalog import FAMILIES, built_in
from listwatch.cache.mutation_detector import ENVIRONMENT
from sampling import sampled

_SETTINGS = """\
[pytest]
asyncio_mode = {mode}
asyncio_default_fixture_loop_scope = function
filterwarnings = error
addopts = --strict-markers
"""


def _pytest(
    directory: Path, tests: str, *options: str, mode: str = "auto", settings: str = ""
) -> tuple[int, str]:
    (directory / "pytest.ini").write_text(_SETTINGS.format(mode=mode) + settings)
    (directory / "test_it.py").write_text(tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if name != ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


_TESTS = """
import pytest
from listwatch.testing import Fault
from listwatch.errors import ForbiddenError, InternalServerError

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.asyncio
async def test_each_test_has_a_server_of_its_own(apiserver, client, turn):
    assert [obj.meta.name for obj in (await client.list("configmaps")).items] == []
    await client.create(MAP)
    apiserver.add_faults(Fault(verb="list", status=500))
    with pytest.raises(InternalServerError):
        await client.list("configmaps")


def test_without_asyncio(apiserver):
    assert apiserver.url.startswith("http://127.0.0.1:")
    assert apiserver.embedded.url == apiserver.url


@pytest.mark.apiserver(tokens='t,alice,1\\n', controllers=False)
@pytest.mark.asyncio
async def test_the_marker_says_how_it_runs(client):
    with pytest.raises(ForbiddenError):
        await client.list("configmaps")
"""


@pytest.mark.parametrize("mode", sampled(["auto", "strict"], every=2))
def test_tests_get_a_server_and_a_client_of_their_own(mode: str, tmp_path: Path) -> None:
    code, output = _pytest(tmp_path, _TESTS, mode=mode)
    assert code == 0, output
    assert "4 passed" in output


def test_a_wrong_marker_is_one_clear_line(tmp_path: Path) -> None:
    tests = (
        "import pytest\n"
        "@pytest.mark.apiserver(sed=1)\n"
        "def test_a(apiserver): ...\n"
        "@pytest.mark.apiserver(1)\n"
        "def test_b(apiserver): ...\n"
    )
    code, output = _pytest(tmp_path, tests)
    assert code == 1
    assert "the marker `apiserver`: APIServer.__init__() got an unexpected keyword" in output
    assert "the marker `apiserver` takes keyword arguments alone" in output
    assert "Traceback" not in output


_PAGE = (Path(__file__).parents[2] / "docs/testing.md").read_text()


def test_the_tests_in_the_documentation_pass(tmp_path: Path) -> None:
    blocks: list[str] = re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL)
    (controller,) = [block for block in blocks if "def make_app" in block]
    (tmp_path / "controller.py").write_text(controller)
    tests = "\n".join(block for block in blocks if "def test_" in block)
    code, output = _pytest(tmp_path, tests)
    assert code == 0, output
    assert f"{tests.count('def test_')} passed" in output


def test_every_field_of_a_fault_and_every_control_is_documented() -> None:
    words = set(re.findall(r"[`=(]([a-z_-]+)", _PAGE))
    assert set(Fault.__struct_fields__) <= words
    assert set(Control(EmbeddedAPIServer())._actions) <= words  # the control's commands


def test_the_kinds_with_rules_of_their_own_are_those_that_the_page_names() -> None:
    (row,) = [line for line in _PAGE.splitlines() if line.startswith("| Validation |")]
    named = row.split("the own rules of ")[1].partition(" |")[0]
    kinds = {name: built_in(name) for names in FAMILIES.values() for name in names.split()}
    ruled = {name for name, kind in kinds.items() if kind.rule or kind.new_rule or kind.update_rule}
    found = {each.kind for each in EmbeddedAPIServer().table if each.storage in ruled}
    assert set(re.split(r", | and ", named)) == found | {"CustomResourceDefinition"}


@pytest.mark.proof
def test_nothing_is_loaded_before_a_fixture_is_used(tmp_path: Path) -> None:
    tests = (
        "import sys\n"
        "def test_a():\n"
        "    assert 'listwatch.testing.pytest_plugin' in sys.modules\n"
        "    assert not {'aiohttp', 'yaml', 'msgspec'} & set(sys.modules)\n"
    )
    code, output = _pytest(tmp_path, tests)
    assert code == 0, output


@pytest.mark.proof
def test_without_pytest_asyncio_the_client_says_what_is_missing(tmp_path: Path) -> None:
    """Everything else works. The test hides pytest-asyncio from the import system."""
    hide = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: (\n"
        "    None if name == 'pytest_asyncio' else find(name, package))\n"
        "import pytest\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'no:asyncio', '.']))\n"
    )
    (tmp_path / "test_it.py").write_text(
        "def test_a(apiserver): assert apiserver.url\ndef test_b(client): ...\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hide],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "the fixture `client` is asynchronous and needs pytest-asyncio" in done.stdout
    assert "Traceback" not in done.stdout


def test_the_mutation_detector_is_on_only_where_a_project_asks_for_it(tmp_path: Path) -> None:
    tests = (
        "import os\n\n\ndef test_it():\n    assert 'KUBE_CACHE_MUTATION_DETECTOR' {} os.environ\n"
    )
    code, shown = _pytest(tmp_path, tests.format("not in"))
    assert code == 0, shown
    (tmp_path / "asked").mkdir()
    option = "listwatch_mutation_detector = true\n"
    code, shown = _pytest(tmp_path / "asked", tests.format("in"), settings=option)
    assert code == 0, shown
