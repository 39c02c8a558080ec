"""Third-party libraries that only `make test-adapters` installs."""

import os
from importlib import import_module, metadata
from typing import Any

import pytest


def needed(name: str) -> Any:
    """Import a library; without it, skip the test, or fail if all libraries are required."""
    if os.environ.get("LISTWATCH_ADAPTERS") != "required":
        return pytest.importorskip(name, reason="make test-adapters gets the libraries")
    if name == "kubernetes.aio" and int(metadata.version("kubernetes").split(".")[0]) < 37:
        pytest.skip("kubernetes.aio came with kubernetes 37")
    return import_module(name)
