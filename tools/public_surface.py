"""Writes docs/public-names.txt: every public name with its signature, to make changes visible.

    python tools/public_surface.py           prints the list
    python tools/public_surface.py --write   writes it

A test compares the file with the code.
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

PACKAGES = (
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
)
#: What a class has of these is as public as the class.
_PRIVATE_BASES = frozenset({"DeclaresSources", "DeclaresWebhooks", "Reads", "ReportsEvents"})
FILE = Path(__file__).parents[1] / "docs" / "public-names.txt"


def public_names(package: str) -> list[str]:
    """Return a package's public names: its `__all__`, or what a module defines."""
    module = import_module(package)
    stated = getattr(module, "__all__", None)
    if stated is not None:
        return sorted(stated)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == package
    )


def surface() -> str:
    """Return the whole list as text."""
    lines = []
    described: dict[int, str] = {}
    for package in PACKAGES:
        for name in public_names(package):
            value = getattr(import_module(package), name)
            full = f"{package}.{name}"
            first = described.setdefault(id(value), full)
            if first != full:
                lines.append(f"{full} is {first}")
                continue
            lines.append(full + _described(value))
            if inspect.isclass(value):
                lines += [f"    {member}" for member in _members(value)]
    return "\n".join(lines) + "\n"


def _described(value: object) -> str:
    if inspect.isclass(value) and issubclass(value, BaseException):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return f"({bases})"
    if callable(value):
        return _signature(value)
    return f" = {value!r}" if isinstance(value, str | int | float) else ""


def _signature(value: object) -> str:
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]  # callable
    except (TypeError, ValueError):
        return "(...)"
    parameters = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in signature.parameters.values()
        if one.name not in {"self", "cls"}
    ]
    texts = []
    star = False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not star:
            texts.append("*")
            star = True
        star = star or one.kind is one.VAR_POSITIONAL
        annotation = signature.parameters[one.name].annotation
        texts.append(str(one).replace("=", " = ", 1).replace(one.name, _typed(one, annotation), 1))
    # An address is meaningless, and differs between processes.
    shown = re.sub(r"( object)? at 0x[0-9a-f]+", "", ", ".join(texts))
    shown = re.sub(r"<function (\S+)>", r"\1", shown)
    result = _annotation(signature.return_annotation)
    return f"({shown})" + (f" -> {result}" if result else "")


def _typed(parameter: inspect.Parameter, annotation: object) -> str:
    text = _annotation(annotation)
    return f"{parameter.name}: {text}" if text else parameter.name


def _annotation(annotation: object) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def _members(kind: type) -> list[str]:
    if issubclass(kind, enum.Enum):
        return [f"{member.name} = {member.value!r}" for member in kind]
    found = []
    parts: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if base is kind or base.__name__ in _PRIVATE_BASES:
            parts |= vars(base)
    for name, value in sorted(parts.items()):
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            found.append(name)
        elif isinstance(value, staticmethod | classmethod):
            found.append(f"{name}{_signature(value.__func__)}")
        elif inspect.isfunction(value):
            mark = "async " if inspect.iscoroutinefunction(value) else ""
            found.append(f"{mark}{name}{_signature(value)}")
        elif inspect.ismemberdescriptor(value) or inspect.isgetsetdescriptor(value):
            found.append(name)
    return found


def main() -> None:
    """Print the list, or write it."""
    text = surface()
    if "--write" in sys.argv[1:]:
        FILE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
