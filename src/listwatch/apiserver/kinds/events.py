"""Events, in both of their groups."""

from collections.abc import Mapping
from typing import Any

from listwatch.apiserver.kinds.cells import Cell, age, at, field
from listwatch.apiserver.kinds.kind import Kind, Object, View, paths
from listwatch.schema.causes import Cause, invalid_value, required
from listwatch.selector import qualified_name_problems


def _default_event(obj: Object) -> None:
    obj.setdefault("source", {})
    obj.setdefault("firstTimestamp", None)
    obj.setdefault("lastTimestamp", None)
    obj.setdefault("eventTime", None)
    obj.setdefault("reportingComponent", "")
    obj.setdefault("reportingInstance", "")
    if obj.get("series") is not None:
        obj["series"].setdefault("lastObservedTime", None)


def _default_new_event(obj: Object) -> None:
    obj.setdefault("eventTime", None)


#: Maximum bytes of an event's texts (`pkg/apis/core/validation/events.go`).
_EVENT_LIMITS = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}


def _check_event(obj: View) -> list[Cause]:
    return _check_any_event(obj, "reportingComponent")


def _check_any_event(obj: View, reporter: str) -> list[Cause]:
    """Return the rules that events of both groups violate, in the stored form.

    Args:
        obj: the event.
        reporter: the reporting component's field in the written version.
    """
    namespace = obj["metadata"].get("namespace", "")
    involved = (obj.get("involvedObject") or {}).get("namespace", "")
    timed = bool(obj.get("eventTime"))
    strays = invalid_value("involvedObject.namespace", involved, "does not match event.namespace")
    if not timed:
        fits = involved == namespace if involved else namespace == "default"
        return [] if fits else [strays]
    causes = []
    if not involved and namespace not in {"default", "kube-system"}:
        causes.append(strays)
    controller = obj.get("reportingComponent") or ""
    if not controller:
        causes.append(required(reporter))
    causes += [
        invalid_value(reporter, controller, why) for why in qualified_name_problems(controller)
    ]
    for key, limit in _EVENT_LIMITS.items():
        text = obj.get(key) or ""
        if not text and key != "message":
            causes.append(required(key))
        if len(text.encode()) > limit:
            causes.append(invalid_value(key, "", f"can have at most {limit} characters"))
    return causes


def _check_new_event(obj: View) -> list[Cause]:
    return _check_any_event(obj, "reportingController") + _check_event_series(obj)


def _check_made_event(obj: View) -> list[Cause]:
    causes = []
    if not obj.get("eventTime"):
        causes.append(required("eventTime"))
    kind = obj.get("type") or ""
    if kind not in {"Normal", "Warning"}:
        causes.append(invalid_value("type", "", f"has invalid value: {kind}"))
    causes += [
        invalid_value(key, "", "needs to be unset")
        for key in ("firstTimestamp", "lastTimestamp", "count", "source")
        if obj.get(key)
    ]
    return causes


def _check_event_series(obj: View) -> list[Cause]:
    series = obj.get("series")
    if series is None:
        return []
    causes = []
    if (series.get("count") or 0) < 2:
        causes.append(invalid_value("series.count", "", "should be at least 2"))
    if not series.get("lastObservedTime"):
        causes.append(required("series.lastObservedTime"))
    return causes


def _check_new_event_update(new: View, old: View) -> list[Cause]:
    return [
        invalid_value(key, new.get(key), "field is immutable")
        for key in (
            "involvedObject",
            "reason",
            "message",
            "source",
            "firstTimestamp",
            "lastTimestamp",
            "count",
            "reportingComponent",
            "reportingInstance",
            "action",
            "eventTime",
            "type",
            "related",
            "reason",  # a second time, as in `ValidateEventUpdate`
        )
        if new.get(key) != old.get(key)
    ]


def _event_seen(path: str) -> Cell:
    def cell(event: View, now: float) -> str:
        stamps = [at(event, "series.lastObservedTime")] if path == "last" else []
        stamps += [event.get("lastTimestamp" if path == "last" else "firstTimestamp")]
        stamps += [event.get("eventTime")]
        found = next((stamp for stamp in stamps if stamp), None)
        return age(found, now)

    return cell


def _event_object(event: View, _: float) -> str:
    about = event.get("involvedObject") or event.get("regarding") or {}
    kind, name = str(about.get("kind", "")).lower(), about.get("name", "")
    return f"{kind}/{name}" if name else kind


def _event_source(event: View, _: float) -> str:
    source = event.get("source") or event.get("deprecatedSource") or {}
    component = (
        source.get("component")
        or event.get("reportingComponent")
        or event.get("reportingController", "")
    )
    host = source.get("host") or event.get("reportingInstance", "")
    return ", ".join(filter(None, (component, host)))


def _event_count(event: View, _: float) -> int:
    count = at(event, "series.count") or event.get("count") or event.get("deprecatedCount")
    return int(count or 1)


_EVENT: Mapping[str, Cell] = {
    "Last Seen": _event_seen("last"),
    "Type": field("type"),
    "Reason": field("reason"),
    "Object": _event_object,
    "Subobject": lambda event, _: (event.get("involvedObject") or event.get("regarding") or {}).get(
        "fieldPath", ""
    ),
    "Source": _event_source,
    "Message": lambda event, _: str(event.get("message", event.get("note", ""))).strip(),
    "First Seen": _event_seen("first"),
    "Count": _event_count,
}


_EVENT_FIELDS = {
    **paths(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "type",
    ),
    "source": ("source.component", ""),
}


#: The names in events.k8s.io, with those of the core group (`pkg/apis/events/v1/conversion.go`).
_NEW_EVENT_FIELDS = {
    name.replace("involvedObject.", "regarding.").replace(
        "reportingComponent", "reportingController"
    ): name
    for name in _EVENT_FIELDS
    if name != "source"
}


class EventConverter:
    """Events of `events.k8s.io/v1`, stored as core events."""

    _NAMES = (
        ("regarding", "involvedObject"),
        ("note", "message"),
        ("deprecatedSource", "source"),
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("reportingController", "reportingComponent"),
    )

    _TIMES = ("deprecatedFirstTimestamp", "deprecatedLastTimestamp")

    def inward(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an event in the stored form."""
        result = dict(obj)
        for new, old in self._NAMES:
            if new in result:
                result[old] = result.pop(new)
        result.setdefault("involvedObject", {})
        for key, empty in (
            ("source", {}),
            ("firstTimestamp", None),
            ("lastTimestamp", None),
            ("eventTime", None),
            ("reportingComponent", ""),
            ("reportingInstance", ""),
        ):
            result.setdefault(key, empty)
        return result

    def outward(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return a stored event in the form of the version."""
        result = dict(obj)
        for new, old in self._NAMES:
            if old in result:
                value = result.pop(old)
                if value not in (None, "", 0) or new in self._TIMES:
                    result[new] = value
        if not result.get("reportingInstance"):
            result.pop("reportingInstance", None)
        result.setdefault("eventTime", None)
        return result


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "events": Kind(
        checks_metadata=1,
        create_on_update=True,
        fields=_EVENT_FIELDS,
        defaults=_default_event,
        rule=_check_event,
        cells=_EVENT,
    ),
    "events.k8s.io/events": Kind(
        stored_as="/v1",
        create_on_update=True,
        fields=_EVENT_FIELDS,
        field_names=_NEW_EVENT_FIELDS,
        converters={"v1": EventConverter()},
        defaults=_default_new_event,
        rule=_check_new_event,
        new_rule=_check_made_event,
        update_rule=_check_new_event_update,
        cells=_EVENT,
    ),
}
