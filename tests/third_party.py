"""The libraries of others that only `make test-adapters` installs."""

import os
from importlib import import_module, metadata
from typing import Any

import pytest


def needed(name: str) -> Any:
    """Return the library; without it the test is skipped, but fails where all must run."""
    if os.environ.get("LISTWATCH_ADAPTERS") != "required":
        return pytest.importorskip(name, reason="make test-adapters gets the libraries")
    if name == "kubernetes.aio" and int(metadata.version("kubernetes").split(".")[0]) < 37:
        pytest.skip("kubernetes.aio came with kubernetes 37")
    return import_module(name)
