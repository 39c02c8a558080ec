"""The command `listwatch check`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from listwatch.client.command_line import CommandError
from listwatch.errors import ListWatchError
from listwatch.printable import printable
from listwatch.resources.checking import (
    UnknownVersionError,
    check_definition,
    check_manifest,
)
from listwatch.schema.parsing import parse_yaml_documents

_DEFINITION: Final = "CustomResourceDefinition"


class UnreadableManifestError(ListWatchError):
    """A file can't be parsed as manifests; the message names the file and the position."""


@click.command("check")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(exists=True, path_type=Path),
)
def check_command(*, files: tuple[Path, ...]) -> None:
    """Check manifests against the CustomResourceDefinitions among them, without a server.

    Each FILE is YAML or JSON, or a directory of such files. Definitions are checked first, then
    every object of a kind that one of them defines: its schema, its metadata and its CEL rules, in
    the server's words. Other objects are listed as not checked.

    The exit code is 1 if anything was refused.
    """
    try:
        documents = [one for path in files for one in _documents(path)]
    except UnreadableManifestError as error:
        raise CommandError(error, 2) from None
    problems, checked, skipped = 0, 0, 0
    definitions: dict[tuple[str, str], Mapping[str, Any]] = {}
    for where, manifest in documents:
        if manifest.get("kind") != _DEFINITION:
            continue
        found = check_definition(manifest)
        for problem in found:
            click.echo(printable(f"{where}: {_name(manifest)}: {problem}", None))
        problems += len(found)
        checked += 1
        if not found:
            spec = manifest["spec"]
            definitions[spec["group"], spec["names"]["kind"]] = manifest
    for where, manifest in documents:
        kind = str(manifest.get("kind"))
        if kind == _DEFINITION:
            continue
        group, slash, _ = str(manifest.get("apiVersion", "")).rpartition("/")
        definition = definitions.get((group, kind)) if slash else None
        if definition is None:
            skipped += 1
            click.echo(
                printable(f"{where}: {_name(manifest)}: not checked, since no file defines it"),
                err=True,
            )
            continue
        try:
            found = check_manifest(definition, manifest)
        except UnknownVersionError as error:
            click.echo(printable(f"{where}: {_name(manifest)}: {error}", None))
            problems += 1
            continue
        for problem in found:
            click.echo(printable(f"{where}: {_name(manifest)}: {problem}", None))
        problems += len(found)
        checked += 1
    click.echo(f"{checked} checked, {problems} problems, {skipped} not checked", err=True)
    if problems:
        raise click.exceptions.Exit(1)


def _documents(path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    if path.is_dir():
        for inner in sorted(path.rglob("*")):
            if inner.suffix in {".yaml", ".yml", ".json"} and inner.is_file():
                yield from _documents(inner)
        return
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableManifestError(f"{path} can't be read: {error.strerror}") from None
    try:
        values = list(parse_yaml_documents(content))
    except (ValueError, ListWatchError) as error:
        raise UnreadableManifestError(f"{path} is not YAML: {error}") from None
    for value in values:
        for one in _items(value):
            if not isinstance(one, Mapping) or not isinstance(one.get("metadata", {}), Mapping):
                raise UnreadableManifestError(f"{path}: a manifest must be an object with metadata")
            yield path, one


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping) and value.get("kind") == "List":
        items = value.get("items")
        return items if isinstance(items, list) else []
    return [value]


def _name(manifest: Mapping[str, Any]) -> str:
    meta = manifest.get("metadata") or {}
    name = meta.get("name") or meta.get("generateName") or "without a name"
    return f"{manifest.get('kind')} {name}"
