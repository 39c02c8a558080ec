import json
import subprocess
import sys
from importlib import import_module

import pytest

import listwatch


@pytest.mark.parametrize("name", listwatch.__all__)
def test_a_public_name_is_what_its_module_defines(name: str) -> None:
    home = import_module(listwatch._HOME[name])
    assert getattr(listwatch, name) is getattr(home, name)


def test_the_lists_of_names_agree_and_a_name_that_is_none_is_an_attribute_error() -> None:
    assert sorted(listwatch._HOME) == sorted(listwatch.__all__)
    assert set(listwatch.__all__) <= set(dir(listwatch))
    with pytest.raises(AttributeError, match="module 'listwatch' has no attribute 'Nothing'"):
        _ = listwatch.Nothing


def test_importing_the_package_loads_none_of_its_modules_before_a_name_is_used() -> None:
    program = "import json, sys, listwatch; print(json.dumps(sorted(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert [name for name in json.loads(loaded) if name.startswith("listwatch")] == ["listwatch"]
