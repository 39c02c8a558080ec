"""Events as they are sent: what is reported, and the objects made of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from listwatch.client.typed_objects import object_of
from listwatch.clock import Clock
from listwatch.errors import ListWatchError
from listwatch.runtime.api_time import api_time, micro_time
from listwatch.runtime.event_correlation import Count, Create, ObjectReference, Occurrence

# In bytes, as the server counts.
NOTE_LIMIT: Final = 1024
WORD_LIMIT: Final = 128


class Reporter(msgspec.Struct, frozen=True):
    """Who reports events.

    Attributes:
        component: the reporting controller.
        instance: the reporting instance.
        api: the events' apiVersion.
    """

    component: str
    instance: str
    api: str


def reference(obj: object, field_path: str = "") -> ObjectReference:
    """Return a reference to an object, or a given reference, perhaps with another field path.

    Raises:
        ListWatchError: the object has no kind, apiVersion or name.
        TypeError: it is neither an `Object`, a mapping, nor of a resource type.
    """
    if isinstance(obj, ObjectReference):
        found = msgspec.structs.replace(obj, field_path=field_path or obj.field_path)
    elif not isinstance(obj, Mapping):
        obj = object_of(obj)
        found = ObjectReference(
            obj.api_version,
            obj.kind,
            obj.namespace,
            obj.name,
            obj.uid,
            obj.resource_version,
            field_path,
        )
    else:
        meta = obj.get("metadata") or {}
        found = ObjectReference(
            str(obj.get("apiVersion") or ""),
            str(obj.get("kind") or ""),
            str(meta.get("namespace") or ""),
            str(meta.get("name") or ""),
            str(meta.get("uid") or ""),
            str(meta.get("resourceVersion") or ""),
            field_path,
        )
    if not (found.api_version and found.kind and found.name):
        raise ListWatchError("an event needs an object with apiVersion, kind and metadata.name")
    return found


class ReportsEvents(ABC):
    """The part of a recorder to which events are reported.

    Args:
        clock: the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def event(
        self,
        obj: object,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the field's name
        reason: str,
        message: str,
        *,
        action: str = "",
        related: object = None,
        field_path: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Report an event about an object.

        Args:
            obj: an `Object`, a mapping or an object of a resource type, with kind, apiVersion, name
                and preferably a uid; or an `ObjectReference`.
            type: "Normal" or "Warning".
            reason: one word in CamelCase, for machines, such as "ScaledUp".
            message: for people; cut after 1,024 bytes.
            action: the action taken, in CamelCase; by default the reason.
            related: another object that was involved.
            field_path: the part of the object, such as "spec.containers{web}".
            annotations: of the event, for machines.

        Raises:
            ValueError: another type, or no reason.
            ListWatchError: the object lacks kind, apiVersion or name.
            TypeError: the object is of another type.
        """
        if type not in {"Normal", "Warning"} or not reason:
            raise ValueError(
                f"an event needs a reason and the type Normal or Warning, not {reason!r}, {type!r}"
            )
        self._report(
            Occurrence(
                reference(obj, field_path),
                type,
                cut(reason, WORD_LIMIT),
                cut(message, NOTE_LIMIT),
                cut(action or reason, WORD_LIMIT),
                reference(related) if related is not None else None,
                self._clock.time(),
                self._clock.now(),
                dict(annotations or {}),
            )
        )

    @abstractmethod
    def _report(self, occurrence: Occurrence) -> None:
        """Take what was reported, without waiting."""


def event_body(
    reporter: Reporter, metadata: dict[str, Any], what: Create, first: float
) -> dict[str, Any]:
    """Return an event to create.

    Args:
        reporter: who reports it, and by which API.
        metadata: its name and namespace.
        what: what occurred.
        first: when it first occurred, in seconds since 1970.
    """
    occurrence = what.occurrence
    note = cut(occurrence.message, NOTE_LIMIT)  # "combined …" may have made it longer
    regarding = msgspec.to_builtins(occurrence.regarding)
    if occurrence.annotations:
        metadata = {**metadata, "annotations": dict(occurrence.annotations)}
    event: dict[str, Any] = {
        "metadata": metadata,
        "type": occurrence.type,
        "reason": occurrence.reason,
        "action": occurrence.action,
        "reportingInstance": reporter.instance,
    }
    if occurrence.related is not None:
        event["related"] = msgspec.to_builtins(occurrence.related)
    if reporter.api == "v1":
        return event | {
            "apiVersion": "v1",
            "kind": "Event",
            "involvedObject": regarding,
            "message": note,
            "source": {"component": reporter.component, "host": reporter.instance},
            "reportingComponent": reporter.component,
            "firstTimestamp": api_time(first),
            "lastTimestamp": api_time(occurrence.time),
            "count": what.count,
        }
    return event | {
        "apiVersion": reporter.api,
        "kind": "Event",
        "regarding": regarding,
        "note": note,
        "reportingController": reporter.component,
        "eventTime": micro_time(occurrence.time),
    }


def count_patch(api: str, what: Count) -> dict[str, Any]:
    """Return the patch that writes the count of an event."""
    written = what.written
    if api != "v1":
        last = micro_time(written.last_time)
        return {"series": {"count": written.count, "lastObservedTime": last}}
    patch = {"count": written.count, "lastTimestamp": api_time(written.last_time)}
    if what.occurrence is not None:
        patch["message"] = cut(what.occurrence.message, NOTE_LIMIT)
    return patch


def cut(text: str, limit: int) -> str:
    """Cut a text to this many bytes of UTF-8; half characters become question marks."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    dots = "..." if limit == NOTE_LIMIT else ""
    return data[: limit - len(dots)].decode("utf-8", "ignore") + dots
