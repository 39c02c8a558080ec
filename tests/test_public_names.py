"""Exactly the names in the `__all__` of packages are public."""

import ast
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

import pytest

import listwatch

ROOT = Path(__file__).parents[1]
PACKAGES = [
    "listwatch",
    "listwatch.apiserver",
    "listwatch.cache",
    "listwatch.cel",
    "listwatch.client",
    "listwatch.controllers",
    "listwatch.resources",
    "listwatch.runtime",
    "listwatch.simulation",
    "listwatch.sync",
    "listwatch.testing",
    "listwatch.webhooks",
    "listwatch.workqueue",
]

PUBLIC = set(PACKAGES)
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def imported_for_types(package: ModuleType) -> set[str]:
    """Return the names that a package's `__init__` imports for type checkers."""
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("listwatch."):
            names |= {alias.name for alias in node.names}
    return names - {"lazy_names", "__version__"}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_lists_what_it_has_and_type_checkers_see_the_same(name: str) -> None:
    package = import_module(name)
    assert imported_for_types(package) == set(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    assert [one for one in package.__all__ if not hasattr(package, one)] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_no_module_of_a_package_has_the_name_of_something_public(name: str) -> None:
    package = import_module(name)
    # an imported module would replace what is loaded on first use
    modules = {module.name for module in iter_modules(package.__path__)}
    assert modules & set(package.__all__) == set()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_name_that_a_package_has_not_is_an_attribute_error_that_names_both(name: str) -> None:
    package = import_module(name)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'Nothing'"):
        package.Nothing  # noqa: B018 - the look-up is what is tested


def test_there_are_no_other_packages_that_look_public() -> None:
    source = ROOT / "src" / "listwatch"
    stated = {
        f"listwatch.{path.parent.name}"
        for path in source.glob("*/__init__.py")
        if "__all__" in path.read_text(encoding="utf-8")
    }
    assert stated | {"listwatch"} == set(PACKAGES)


def programs() -> Iterator[tuple[str, str]]:
    """Yield every program in documentation, examples and scaffold, with its location."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        for number, block in enumerate(FENCE.finditer(page.read_text(encoding="utf-8"))):
            yield f"{page.relative_to(ROOT)}#{number}", block[1]
    scaffold = ROOT / "src" / "listwatch" / "runtime" / "scaffold"
    for path in [*sorted((ROOT / "examples").rglob("*.py")), *sorted(scaffold.glob("*.py.txt"))]:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


PROGRAMS = list(programs())


@pytest.mark.parametrize("text", [text for _, text in PROGRAMS], ids=[name for name, _ in PROGRAMS])
def test_what_users_are_shown_imports_from_public_packages_alone(text: str) -> None:
    deep = []
    for node in ast.walk(
        compile(text, "program", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ):
        if isinstance(node, ast.Import):
            deep += [a.name for a in node.names if a.name.startswith("listwatch.")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("listwatch"):
            if node.module not in PUBLIC:
                deep.append(str(node.module))
            elif node.module in PACKAGES:
                package = import_module(node.module)
                deep += [
                    f"{node.module}.{alias.name}"
                    for alias in node.names
                    if alias.name not in package.__all__
                    and f"{node.module}.{alias.name}" not in PUBLIC
                ]
    assert [name for name in deep if name not in PUBLIC] == []


def test_importing_the_package_loads_none_of_its_modules_before_a_name_is_used() -> None:
    program = "import json, sys, listwatch; print(json.dumps(sorted(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    mine = [name for name in json.loads(loaded) if name.startswith("listwatch")]
    assert mine == ["listwatch", "listwatch.lazy_names", "listwatch.version"]


def test_the_version_is_that_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{listwatch.__version__}"' in text


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="signatures are written as CPython 3.11 prints them"
)
def test_the_list_of_public_names_is_up_to_date() -> None:
    """`python tools/public_surface.py --write` updates it."""
    tool = runpy.run_path(str(ROOT / "tools" / "public_surface.py"))
    written = (ROOT / "docs" / "public-names.txt").read_text(encoding="utf-8")
    assert tool["surface"]() == written
