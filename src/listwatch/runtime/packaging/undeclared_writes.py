"""Finds writes in a program's source that no rule of its roles allows."""

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from listwatch.client.resource import Resource
from listwatch.client.typed_objects import resource_of_type
from listwatch.errors import ConfigError
from listwatch.runtime.packaging.rights import Right, is_granted, split_resource
from listwatch.schema.facts import facts

#: Verbs of the client's methods whose first argument is a resource or an object.
_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "add_finalizer": ("get", "patch"),
    "apply": ("create", "patch"),
    "create": ("create",),
    "delete": ("delete",),
    "delete_collection": ("deletecollection",),
    "patch": ("patch",),
    "remove_finalizer": ("get", "patch"),
    "update": ("update",),
    "update_existing": ("get", "update"),
}
_CLIENTS: Final = frozenset({"client", "unfenced_client"})
#: Verbs one of which writes an object that the source spells out.
_WRITING: Final = ("create", "patch", "update")
_ACTIONS: Final = {
    "add_finalizer": "patches",
    "apply": "creates or patches",
    "create": "creates",
    "delete": "deletes",
    "delete_collection": "deletes",
    "patch": "patches",
    "remove_finalizer": "patches",
    "update": "updates",
    "update_existing": "updates",
}
#: Functions that write the object of a reconcile, with the subresource that they patch.
_OF_RECONCILED: Final = {"update_status": "status", "finalize": ""}


class UndeclaredWrite(NamedTuple):
    """A write that no rule allows.

    Attributes:
        file: the source.
        line: of the write.
        what: the write, in words.
        resource: as `Reconciler.writes` takes it; "" if the source does not say.
        verbs: one of them is missing, or all.
    """

    file: Path
    line: int
    what: str
    resource: str
    verbs: tuple[str, ...]

    def __str__(self) -> str:
        verbs = ", ".join(f'"{verb}"' for verb in self.verbs)
        resource = f'"{self.resource}"' if self.resource else "the resource"
        return (
            f"{self.file}:{self.line}: {self.what}, but no rule allows it: "
            f"declare it with writes({resource}, {verbs})"
        )


def undeclared_writes(
    path: Path, names: Mapping[str, Any], rights: Collection[Right]
) -> list[UndeclaredWrite]:
    """Return the writes in a source file that a program has no right to, in order of lines.

    Only writes whose resource the source spells out are found: as a text, as a type, or as an
    object with apiVersion and kind.

    Args:
        path: the source.
        names: its global names.
        rights: those of the program.
    """
    tree = ast.parse(path.read_bytes(), str(path))
    found = _Writes(path, names, rights)
    writes = [write for node in ast.walk(tree) for write in found.of(node)]
    return sorted(set(writes), key=lambda write: (write.line, write))


class _Writes:
    def __init__(self, path: Path, names: Mapping[str, Any], rights: Collection[Right]) -> None:
        self._path = path
        self._names = names
        self._rights = rights

    def of(self, node: ast.AST) -> Iterator[UndeclaredWrite]:
        """Yield the writes that a node makes, without its inner nodes."""
        if isinstance(node, ast.Dict):
            yield from self._manifest(node)
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute) and function.attr in _VERBS:
                if _is_client(function.value):
                    yield from self._method(node, function.attr)
            elif isinstance(function, ast.Name | ast.Attribute):
                name = function.id if isinstance(function, ast.Name) else function.attr
                if name in _OF_RECONCILED:
                    yield from self._of_reconciled(node, name)

    def _method(self, call: ast.Call, method: str) -> Iterator[UndeclaredWrite]:
        word = self._resource(call.args[0]) if call.args else None
        if word is None:
            return
        part = _text(next((k.value for k in call.keywords if k.arg == "subresource"), None))
        group, plural = word
        resource = f"{plural}/{part}" if part else plural
        missing = [
            right
            for verb in _VERBS[method]
            if not is_granted(right := Right(group, resource, verb), self._rights)
            # A rule for some names may be meant for this object.
            and not any(other[:3] == right[:3] for other in self._rights)
        ]
        if missing:
            verbs = tuple(right.verb for right in missing)
            what = f"client.{method}() {_ACTIONS[method]} {missing[0].qualified}"
            yield UndeclaredWrite(self._path, call.lineno, what, missing[0].qualified, verbs)

    def _manifest(self, node: ast.Dict) -> Iterator[UndeclaredWrite]:
        fields = {_text(key): value for key, value in zip(node.keys, node.values, strict=True)}
        version, kind = _text(fields.get("apiVersion")), _text(fields.get("kind"))
        if not version or not kind or "metadata" not in fields:
            return
        group = version.rpartition("/")[0]
        plural = self._plural(group, kind)
        if plural is None or any(
            is_granted(Right(group, plural, verb), self._rights) for verb in _WRITING
        ):
            return
        resource = Right(group, plural, "").qualified
        what = f"{kind} {version} is written here"
        yield UndeclaredWrite(self._path, node.lineno, what, resource, ("create", "patch"))

    def _of_reconciled(self, call: ast.Call, name: str) -> Iterator[UndeclaredWrite]:
        part = _OF_RECONCILED[name]
        if any(
            right.verb in {"patch", "*"} and right.resource.partition("/")[2] == part
            for right in self._rights
            if right.resource != "events"
        ):
            return
        what = f"{name}() patches {'the status' if part else 'finalizers'}"
        yield UndeclaredWrite(self._path, call.lineno, what, "", ("patch",))

    def _resource(self, node: ast.expr) -> tuple[str, str] | None:
        if (word := _text(node)) is not None:
            try:
                return split_resource(word)
            except ConfigError:  # a short name, or one of several groups
                return None
        if isinstance(node, ast.Call):  # such as Website(...)
            node = node.func
        value = self._names.get(node.id) if isinstance(node, ast.Name) else None
        resource = _resource_of(value)
        return None if resource is None else (resource.group, resource.plural)

    def _plural(self, group: str, kind: str) -> str | None:
        for row in facts().resources:
            if (row["group"], row["kind"]) == (group, kind):
                return str(row["resource"])
        for value in self._names.values():
            resource = _resource_of(value)
            if resource is not None and (resource.group, resource.kind) == (group, kind):
                return resource.plural
        return None


def _resource_of(value: object) -> Resource | None:
    """Return the resource of a type; None if it has none."""
    if not isinstance(value, type):
        return None
    try:
        return resource_of_type(value)
    except TypeError:
        return None


def _is_client(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name in _CLIENTS


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
