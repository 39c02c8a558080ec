"""Finds the program in a user's file."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple

from listwatch.errors import ConfigError
from listwatch.runtime.held import Loading, current_loading
from listwatch.runtime.manager import Manager

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
#: The options of `Manager.configure`.
_CONFIGURABLE: Final = frozenset(inspect.signature(Manager.configure).parameters) - {"self"}


def load_app(path: Path, **options: Any) -> Manager:
    """Run a Python file, and return its `Manager`, which has not started.

    The file's manager is the result of its function `make_app(**options)`; otherwise the only
    `Manager` among its global names; otherwise the one that it runs. The file can import modules
    from its directory.

    No manager of the file runs while it is loaded: `app.run()` and `app.serve()` log one line and
    return, and `if __name__ == "__main__"` is false.

    Args:
        path: the file.
        options: those of `Manager.configure`, which override the file's, and any others for
            `make_app`.

    Raises:
        ConfigError: the file does not exist, or has no manager or several; an option can't take
            effect; the file enters `async with app:` or ends the process.
        Exception: whatever the file raises.
    """
    return load_program(path, options, {})


def load_names(path: Path) -> Mapping[str, Any]:
    """Run a Python file and return its global names. No manager of it runs, now or later.

    Raises:
        ConfigError: the file does not exist, or ends the process.
        Exception: whatever the file raises.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    loading = Loading(path)
    token = current_loading.set(loading)
    try:
        return _run_file(loading)
    finally:
        current_loading.reset(token)


def load_program(
    path: Path,
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    namespaces: Sequence[str] = (),
    may_run: bool = True,
) -> Manager:
    """Load a program, like `load_app`.

    Args:
        path: the file.
        options: as for `load_app`.
        defaults: options for `make_app` if it accepts them. They need not take effect.
        namespaces: what its sources watch, unless they have namespaces of their own; none for all.
        may_run: whether the program may run afterwards. If False, nothing that the file left
            behind, such as a timer or an exit handler, can start it.

    Raises:
        As `load_app`.
    """
    return load_with_names(path, options, defaults, namespaces=namespaces, may_run=may_run).app


class Program(NamedTuple):
    """A loaded program.

    Attributes:
        app: its manager.
        names: the file's global names.
    """

    app: Manager
    names: Mapping[str, Any]


def load_with_names(
    path: Path,
    options: Mapping[str, Any] = _NONE,
    defaults: Mapping[str, Any] = _NONE,
    *,
    namespaces: Sequence[str] = (),
    may_run: bool = False,
) -> Program:
    """Load a program like `load_program`, and return its global names too."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    loading = Loading(path, namespaces)
    token = current_loading.set(loading)
    try:
        names = _run_file(loading)
        make_app = names.get("make_app")
        if callable(make_app):
            app = _make(path, make_app, options, defaults)
        else:
            app = _program_of(loading, names)
            if unknown := ", ".join(sorted(options.keys() - _CONFIGURABLE)):
                raise ConfigError(f"{path}: it has no make_app that takes {unknown}")
            app.configure(**options)
    finally:
        current_loading.reset(token)
    if may_run:
        loading.chosen = app
    return Program(app, names)


def _run_file(loading: Loading) -> dict[str, Any]:
    """Run the file as its own module, and return its global names."""
    path = loading.path
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = ModuleType(_module_name(path))
    module.__file__ = str(path)
    # Types are looked up by their module's name, so keep it.
    sys.modules[module.__name__] = module
    try:
        exec(_compiled(path), module.__dict__)  # noqa: S102 - the user's own program
    except SystemExit as end:
        if not loading.asked:
            raise ConfigError(
                f"{path}: it exits ({end!r}) while it is loaded: put that below "
                '`if __name__ == "__main__":`'
            ) from None
    return module.__dict__


def _compiled(path: Path) -> CodeType:
    try:
        return compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError) as error:
        if isinstance(error, SyntaxError) and error.lineno:
            raise  # it shows the file and the line
        raise ConfigError(f"{path} is not Python source: {error}") from None


def _module_name(path: Path) -> str:
    """Return a name that hides no importable module, and that is not `__main__`."""
    name = path.stem
    while name == "__main__" or name in sys.stdlib_module_names or _is_importable(name):
        name = f"{name}_program"
    return name


def _is_importable(name: str) -> bool:
    # A module loaded from a file this way has no spec; the next file of that name may replace it.
    module = sys.modules.get(name)
    return module is not None and module.__spec__ is not None


def _program_of(loading: Loading, names: Mapping[str, Any]) -> Manager:
    found: dict[int, tuple[str, Manager]] = {}
    for name, value in names.items():
        if isinstance(value, Manager):
            _ = found.setdefault(id(value), (name, value))
    if len(found) == 1:
        return next(iter(found.values()))[1]
    asked = {id(app): app for app in loading.asked if isinstance(app, Manager)}
    if len(asked) == 1:
        return next(iter(asked.values()))
    which = f" ({', '.join(name for name, _ in found.values())})" if found else ""
    raise ConfigError(
        f"{loading.path}: {len(found) or 'no'} Manager{'s' if found else ''} among its global "
        f"names{which}; make one, or write make_app(**options)"
    )


def _make(
    path: Path,
    make_app: Callable[..., object],
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> Manager:
    signature = inspect.signature(make_app)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())

    def taken(given: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in given.items() if takes_all or k in signature.parameters}

    arguments = taken({**defaults, **options})
    if unknown := ", ".join(sorted(options.keys() - arguments.keys() - _CONFIGURABLE)):
        raise ConfigError(f"{path}: make_app does not take {unknown}")
    try:
        _ = signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{path}: make_app can't be called: {error}") from None
    app = make_app(**arguments)
    if inspect.iscoroutine(app):
        app.close()
        raise ConfigError(f"{path}: make_app is a coroutine function: write it without async")
    if not isinstance(app, Manager):
        raise ConfigError(f"{path}: make_app returned a {type(app).__name__}, not a Manager")
    rest = {name: value for name, value in options.items() if name in _CONFIGURABLE}
    if app.has_client and "config" in arguments:
        rest.pop("config", None)  # make_app has created its client from it
    app.configure(**rest)
    return app
