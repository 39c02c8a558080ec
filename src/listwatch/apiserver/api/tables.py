"""Responses as tables, the form that kubectl prints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from listwatch.apiserver.http.negotiation import event_bytes, partial_bytes
from listwatch.apiserver.kinds.catalog import kind_of
from listwatch.apiserver.kinds.cells import AGE_DESCRIPTION, NAME_DESCRIPTION, age
from listwatch.apiserver.kinds.custom_columns import column_value
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.store import Entry
from listwatch.clock import Clock
from listwatch.schema.facts import facts

Object = Mapping[str, Any]

_DESCRIPTIONS = {
    "Name": NAME_DESCRIPTION,
    "Age": AGE_DESCRIPTION,
    "Created At": AGE_DESCRIPTION,
    "configmaps/Data": (
        "Data contains the configuration data. Each key must consist of alphanumeric characters, "
        "'-', '_' or '.'. Values with non-UTF-8 byte sequences must use the BinaryData field. The "
        "keys stored in Data must not overlap with the keys in the BinaryData field, this is "
        "enforced during validation process."
    ),
}


class TableMaker:
    """Creates tables, with ages as of the creation."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def columns(self, resource: APIResource) -> list[dict[str, Any]]:
        """Return the column definitions of a resource."""
        if resource.custom is not None:
            columns: list[dict[str, Any]] = resource.custom["columns"]
            return columns
        known = facts().columns.get(f"{resource.api_version}/{resource.name}")
        if known is None:
            known = [
                {"name": "Name", "type": "string", "format": "name", "priority": 0},
                {"name": "Created At", "type": "date", "format": "", "priority": 0},
            ]
        return [
            {
                "name": column["name"],
                "type": column["type"],
                "format": column["format"],
                "description": _DESCRIPTIONS.get(
                    f"{resource.name}/{column['name']}", _DESCRIPTIONS.get(column["name"], "")
                ),
                "priority": column["priority"],
            }
            for column in known
        ]

    def row(
        self, resource: APIResource, entry: Entry, include: str, version: str = "v1"
    ) -> dict[str, Any]:
        """Return the row of one object."""
        obj: Object = msgspec.json.decode(entry.data)
        if resource.custom is not None:
            cells = [
                column_value(obj, get, kind, self._clock.time())
                for get, kind in resource.custom["cells"]
            ]
        else:
            cells = self._cells(resource, obj)
        row: dict[str, Any] = {"cells": cells}
        conditions = kind_of(resource).conditions
        if conditions is not None and (found := conditions(obj)):
            row["conditions"] = found
        if include == "Object":
            row["object"] = {
                "kind": resource.kind,
                "apiVersion": resource.api_version,
                **obj,
            }
        elif include == "None":
            row["object"] = None
        elif include == "Metadata":
            row["object"] = msgspec.Raw(partial_bytes(resource, entry.data, version))
        return row

    def _cells(self, resource: APIResource, obj: Object) -> list[Any]:
        known = facts().columns.get(f"{resource.api_version}/{resource.name}")
        metadata = obj["metadata"]
        if known is None:
            return [metadata["name"], metadata.get("creationTimestamp")]
        makers = kind_of(resource).cells
        cells: list[Any] = []
        for column in known:
            name = column["name"]
            if name in makers:
                cells.append(makers[name](obj, self._clock.time()))
            elif name == "Name":
                cells.append(metadata["name"])
            elif name == "Age":
                cells.append(age(metadata.get("creationTimestamp"), self._clock.time()))
            elif name == "Created At":
                cells.append(metadata.get("creationTimestamp"))
            else:
                cells.append(0 if column["type"] == "integer" else "<none>")
        return cells

    def table(
        self,
        resource: APIResource,
        entries: Sequence[Entry],
        metadata: Mapping[str, Any],
        *,
        include: str,
        version: str = "v1",
        columns: bool = True,
    ) -> dict[str, Any]:
        """Return the table of these objects."""
        rows = [self.row(resource, entry, include, version) for entry in entries]
        shown = self.columns(resource)
        # the server's default printer omits an empty list
        bare = not rows and any(column["name"] == "Created At" for column in shown)
        return {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{version}",
            "metadata": dict(metadata),
            "columnDefinitions": shown if columns else None,
            "rows": None if bare else rows,
        }

    def frames(
        self, resource: APIResource, include: str, version: str = "v1"
    ) -> tuple[Callable[[str, Entry], bytes], Callable[[int, bool], bytes]]:
        """Return the encoders of events and bookmarks; only the first frame has the columns."""
        first = True

        def table(entries: Sequence[Entry], revision: int) -> dict[str, Any]:
            nonlocal first
            made = self.table(
                resource,
                entries,
                {"resourceVersion": str(revision)},
                include=include,
                version=version,
                columns=first,
            )
            first = False
            return made

        def make(kind: str, entry: Entry) -> bytes:
            return event_bytes(kind, msgspec.json.encode(table([entry], entry.revision)))

        def bookmark(revision: int, initial_end: bool) -> bytes:  # noqa: FBT001 - one caller
            made = table([], revision)
            metadata: dict[str, Any] = {"resourceVersion": str(revision)}
            if initial_end:
                metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
            made["rows"] = [
                {
                    "cells": self._empty_cells(resource),
                    "object": {
                        "kind": "PartialObjectMetadata",
                        "apiVersion": f"meta.k8s.io/{version}",
                        "metadata": metadata,
                    },
                }
            ]
            return event_bytes("BOOKMARK", msgspec.json.encode(made))

        return make, bookmark

    def _empty_cells(self, resource: APIResource) -> list[Any]:
        empty = Entry("", "", "", 0, {}, b'{"metadata":{"name":""}}')
        cells: list[Any] = self.row(resource, empty, "None")["cells"]
        return cells
