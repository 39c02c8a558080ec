"""A program's file, loaded to be packaged: its rights, and what they lack."""

import ast
import sys
from collections.abc import Iterator, Mapping
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from listwatch.client.typed_objects import resource_of_type
from listwatch.runtime.loading import Program, load_with_names
from listwatch.runtime.manager import Manager
from listwatch.runtime.packaging.definitions import definitions_among
from listwatch.runtime.packaging.rbac import (
    READS,
    ProgramRights,
    built_in_scope,
    rights_of_program,
)
from listwatch.runtime.packaging.recorded import read_recorded
from listwatch.runtime.packaging.rights import Right, is_granted
from listwatch.runtime.packaging.undeclared_writes import undeclared_writes

#: Parts of paths that hold the modules of others.
_FOREIGN: Final = frozenset({"site-packages", "dist-packages"})


class PackagedProgram:
    """A program that is loaded, and never run.

    Args:
        path: its file.
        options: those of `Manager.configure`.
        recorded: a file that `pytest --record-rbac` wrote, or None.
        registers: see `rights_of_program`.

    Raises:
        As `load_program`.
        ConfigError: the recorded rights can't be read, or the name of a resource lacks its group.
    """

    def __init__(
        self,
        path: Path,
        options: Mapping[str, Any],
        recorded: Path | None = None,
        *,
        registers: bool = True,
    ) -> None:
        self._path = path
        self._program: Program = load_with_names(path, options)
        #: What the program declares.
        self.declared = rights_of_program(self.app, registers=registers, scopes=self.scope_of)
        self._asked = ProgramRights()
        if recorded is not None:
            self._asked = read_recorded(recorded, self.app.name)

    @property
    def app(self) -> Manager:
        """The program's manager."""
        return self._program.app

    @property
    def file(self) -> str:
        """Name of the file."""
        return self._path.name

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The CustomResourceDefinitions of the program's types."""
        return definitions_among(self.names)

    @property
    def names(self) -> Mapping[str, Any]:
        """The file's global names."""
        return self._program.names

    @property
    def rights(self) -> ProgramRights:
        """What the program declares, and what it was seen to need besides."""
        declared, asked = self.declared, self._asked
        return ProgramRights(
            everywhere=declared.everywhere | self._surplus(asked.everywhere),
            in_namespaces=declared.in_namespaces,
            own=declared.own | self._surplus(asked.own),
        )

    def _surplus(self, asked: set[Right]) -> set[Right]:
        # A right on any object is not asked for where the program has it on one.
        known = self.declared.all
        return {
            right
            for right in asked
            if not is_granted(right, known)
            and not any(right == other._replace(name="") for other in known)
        }

    def warnings(self) -> list[str]:
        """Return what differs between the program's source, its declarations and its tests."""
        rights = self.rights.all
        found = [
            str(write)
            for path, names in self._sources()
            for write in undeclared_writes(path, names, rights)
        ]
        undeclared = self._surplus(self._asked.all)
        found += [
            f"{right.verb} {right.qualified}: tests ask for it, but the program does not declare it"
            for right in sorted(undeclared)
        ]
        if self._asked.all:
            found += [
                f"{right.verb} {right.qualified}: declared, but no test asks for it"
                for right in sorted(self.declared.all)
                if right.verb not in READS
                and not right.resource.endswith("/finalizers")
                and not any(
                    is_granted(right, {asked}) or is_granted(asked, {right})
                    for asked in self._asked.all
                )
            ]
        return found

    def scope_of(self, group: str, plural: str) -> bool | None:
        """Return whether a resource is namespaced; None if neither Kubernetes nor the file says."""
        known = built_in_scope(group, plural)
        if known is not None:
            return known
        for value in self.names.values():
            if isinstance(value, type):
                try:
                    resource = resource_of_type(value)
                except TypeError:
                    continue
                if (resource.group, resource.plural) == (group, plural):
                    return resource.namespaced
        return None

    def _sources(self) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """Yield the program's file, and the modules beside and below it that it imports."""
        folder = self._path.resolve().parent
        seen = {self._path.resolve()}
        waiting: list[tuple[Path, Mapping[str, Any]]] = [(self._path, self.names)]
        while waiting:
            path, names = waiting.pop(0)
            yield path, names
            for module in _imported(path, names):
                file = _file_of(module)
                if (
                    file is not None
                    and file not in seen
                    and file.is_relative_to(folder)
                    and _FOREIGN.isdisjoint(file.parts)
                ):
                    seen.add(file)
                    waiting.append((self._path.parent / file.relative_to(folder), vars(module)))


def _imported(path: Path, names: Mapping[str, Any]) -> Iterator[ModuleType]:
    """Yield the loaded modules that a source imports."""
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            package = str(names.get("__package__") or "")
            base = resolve_name(relative, package) if package or not node.level else ""
            wanted = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (sys.modules[name] for name in wanted if name in sys.modules)


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    return path if path.is_file() else None
