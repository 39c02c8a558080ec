"""Prints changes for people or programs, if there is no command."""

import difflib
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec
import yaml

from listwatch.objects import Object
from listwatch.objects.differences import HIDDEN, shown_differences
from listwatch.observe.changes import Observation, ObservationType
from listwatch.printable import printable, printable_json

_COLOURS = {
    ObservationType.ADDED: "32",
    ObservationType.DELETED: "31",
    ObservationType.UPDATED: "33",
}
_OLD, _NEW, _DIM = "31", "32", "2"


class Format(StrEnum):
    """How changes are printed."""

    #: The header line, and the fields that an update changed.
    HEADERS = ""
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    DIFF = "diff"


class Printer:
    """Formats a change as text. Safe to use from any task.

    `HEADERS` and `DIFF` never show the values of Secrets, only that they changed.

    Args:
        format: the format.
        quiet: without headers.
        coloured: with colours, for a terminal.
        ignore_paths: fields whose changes are not shown, by path; `*` stands for anything. An
            update of nothing else is shown by its header alone.
        managed_fields: also show changes of `metadata.managedFields`.
    """

    def __init__(
        self,
        format: Format = Format.HEADERS,  # noqa: A002 - the option's name
        *,
        quiet: bool = False,
        coloured: bool = False,
        ignore_paths: Sequence[str] = (),
        managed_fields: bool = False,
    ) -> None:
        self._managed_fields = managed_fields
        self._format = format
        self._quiet = quiet
        self._coloured = coloured
        self._ignored = ignore_paths

    @property
    def is_for_machines(self) -> bool:
        """Whether only the format's own text may be printed."""
        return self._format in {Format.JSON, Format.YAML, Format.NAME}

    def text(self, change: Observation, kind: str, header: str) -> str:
        """Return what to print, including the newline.

        Args:
            change: the change.
            kind: the word for its type.
            header: its header line.
        """
        match self._format:
            case Format.JSON:
                return _json_line(change, kind)
            case Format.YAML:
                return f"# {kind}\n{_yaml(change.object)}---\n"
            case Format.NAME:
                return printable(f"{change.resource}/{change.key}", None) + "\n"
            case Format.DIFF:
                return self._header(change, header) + self._diff(change)
            case _:
                return self._header(change, header) + self._fields(change)

    def _header(self, change: Observation, header: str) -> str:
        if self._quiet:
            return ""
        colour = _COLOURS.get(change.type, _DIM)
        return self._paint(header.rstrip("\n"), colour) + "\n"

    def fields(
        self, change: Observation, *, expanded: bool = False
    ) -> Iterator[tuple[str, str, str]]:
        """Yield path, old and new value of each field of an update to show.

        Args:
            change: the change.
            expanded: an object or array that came or went is told by its fields.
        """
        if change.type is ObservationType.DELETED or not (change.object and change.old):
            return
        yield from shown_differences(
            change.old.to_dict(),
            change.object.to_dict(),
            is_secret=change.object.kind == "Secret",
            ignored=self._ignored,
            managed_fields=self._managed_fields,
            expanded=expanded,
        )

    def shown_object(self, change: Observation) -> str:
        """Return the last known object as YAML, without the values of Secrets."""
        obj = change.object
        if obj is not None and not self._managed_fields:
            content = obj.to_dict()
            if isinstance(meta := content.get("metadata"), dict):
                meta.pop("managedFields", None)
            obj = Object.from_dict(content)
        return _yaml(obj, hide_secrets=True)

    def _fields(self, change: Observation) -> str:
        return "".join(
            f"    {path}: {self._paint(old, _OLD)} → {self._paint(new, _NEW)}\n"
            for path, old, new in self.fields(change)
        )

    def _diff(self, change: Observation) -> str:
        new = None if change.type is ObservationType.DELETED else change.object
        old = change.object if change.type is ObservationType.DELETED else change.old
        lines = difflib.unified_diff(
            _yaml(old, hide_secrets=True).splitlines(keepends=True),
            _yaml(new, hide_secrets=True).splitlines(keepends=True),
            printable(f"{change.key} {old.resource_version if old else ''}".rstrip()),
            printable(f"{change.key} {new.resource_version if new else ''}".rstrip()),
            lineterm="\n",
        )
        return "".join(self._paint_line(line) for line in lines)

    def _paint_line(self, line: str) -> str:
        colour = {"-": _OLD, "+": _NEW, "@": _DIM}.get(line[0])
        return line if colour is None else self._paint(line.removesuffix("\n"), colour) + "\n"

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._coloured else text


def _json_line(change: Observation, kind: str) -> str:
    document: dict[str, object] = {"type": kind, "resource": change.resource, "key": change.key}
    for field, obj in (("object", change.object), ("oldObject", change.old)):
        if obj is not None:
            document[field] = msgspec.Raw(obj.json())
    return printable_json(msgspec.json.encode(document).decode()) + "\n"


def _yaml(obj: Object | None, *, hide_secrets: bool = False) -> str:
    if obj is None:
        return ""
    value = obj.to_dict()
    if hide_secrets and obj.kind == "Secret":
        # kubectl's annotation repeats the data
        holders = [(value, "data"), (value, "stringData"), (value["metadata"], "annotations")]
        for holder, field in holders:
            if isinstance(holder.get(field), dict):
                holder[field] = dict.fromkeys(holder[field], HIDDEN)
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if text.replace("\n", "").isprintable():
        return text
    return yaml.safe_dump(value, sort_keys=False)  # escapes everything that is not ASCII
