"""Kubeconfig files for tests."""

from pathlib import Path
from typing import Any

import yaml


def write_bearer(path: Path, kubeconfig: str, token: str) -> Path:
    """Write a kubeconfig whose only user has this token and nothing else.

    The client sends tokens of files only over TLS, so the server must use TLS.
    """
    value: dict[str, Any] = yaml.safe_load(kubeconfig)
    value["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(value))
    return path
