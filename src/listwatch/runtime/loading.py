"""Finds the program in a file that somebody wrote."""

import runpy
import sys
from pathlib import Path
from typing import Any

from listwatch.errors import ConfigError
from listwatch.runtime.manager import Manager


def load_app(path: Path, **options: Any) -> Manager:
    """Run a Python file, and return the `Manager` that it makes.

    The file has a function `make_app(**options)` that returns one, or one `Manager` among its
    global names. Modules beside the file can be imported by it. Its `if __name__ == "__main__"`
    does not run.

    Args:
        path: the file.
        options: for `make_app`, or for `Manager.configure`.

    Raises:
        ConfigError: there is no such file, or it has none of both, or several.
        Exception: whatever the file raises.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    names = runpy.run_path(str(path), run_name=path.stem)
    make_app = names.get("make_app")
    if callable(make_app):
        app = make_app(**options)
        if not isinstance(app, Manager):
            raise ConfigError(f"{path}: make_app returned a {type(app).__name__}, not a Manager")
        return app
    managers = {id(value): value for value in names.values() if isinstance(value, Manager)}
    if len(managers) != 1:
        found = "no Manager" if not managers else f"{len(managers)} Managers"
        raise ConfigError(
            f"{path}: {found} among its global names; make one, or write make_app(**options)"
        )
    (app,) = managers.values()
    if options:
        app.configure(**options)
    return app
