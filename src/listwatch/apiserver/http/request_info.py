"""Parses a request: resource, verb and options, from method, path and query."""

import re
from collections.abc import Mapping
from urllib.parse import unquote

import msgspec

from listwatch.apiserver import refusal
from listwatch.schema.causes import Cause, forbidden_value, go_quoted, not_supported
from listwatch.schema.go_words import whole_number
from listwatch.selector import (
    EVERY_FIELD,
    EVERYTHING,
    FieldSelector,
    LabelSelector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)
from listwatch.shard_range import ShardRange

Query = Mapping[str, list[str]]


class RequestInfo(msgspec.Struct, frozen=True):
    """A request as authorization sees it (`apiserver/pkg/endpoints/request`)."""

    path: str
    method: str
    is_resource: bool = False
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    #: the part of the path after the subresource; valid paths have none
    rest: tuple[str, ...] = ()
    legacy_watch: bool = False
    #: whether the path is that of a namespace itself or of its subresource
    of_namespace: bool = False
    #: the single name that a list's or watch's field selector selects
    selected_name: str = ""

    @property
    def authorized_name(self) -> str:
        """The name that the request is authorized for."""
        return self.name or self.selected_name


_COLLECTION_VERBS = {
    "GET": "list",
    "HEAD": "list",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "deletecollection",
}
_OBJECT_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_NAMESPACE_SUBRESOURCES = ("status", "finalize")


def is_watch(query: Query) -> bool:
    """Return whether the query's `watch` is true: anything except false and 0."""
    values = query.get("watch")
    return values is not None and values[0].lower() not in {"false", "0"}


def parse_request(method: str, raw_path: str, query: Query) -> RequestInfo:
    """Parse a request."""
    parts = [unquote(part) for part in raw_path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= 3:
        group, version, parts = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, parts = parts[1], parts[2], parts[3:]
    else:
        return RequestInfo(raw_path, method, verb=method.lower())
    legacy = parts[0] == "watch" and len(parts) > 1
    if legacy:
        parts = parts[1:]
    namespace = ""
    of_namespace = False
    if parts[0] == "namespaces" and len(parts) > 1:
        namespace = parts[1]
        of_namespace = len(parts) == 2 or parts[2] in _NAMESPACE_SUBRESOURCES
        if len(parts) > 2 and parts[2] not in _NAMESPACE_SUBRESOURCES:
            parts = parts[2:]
    resource = parts[0]
    name = parts[1] if len(parts) > 1 else ""
    subresource = parts[2] if len(parts) > 2 else ""
    verb = (_OBJECT_VERBS if name else _COLLECTION_VERBS).get(method, "")
    if (verb == "list" and is_watch(query)) or legacy:
        verb = "watch"
    return RequestInfo(
        raw_path,
        method,
        is_resource=True,
        verb=verb,
        group=group,
        version=version,
        resource=resource,
        subresource=subresource,
        namespace=namespace,
        name=name,
        rest=tuple(parts[3:]),
        legacy_watch=legacy,
        of_namespace=of_namespace,
        selected_name="" if name else _selected_name(query, verb),
    )


def _selected_name(query: Query, verb: str) -> str:
    """Return the single name that a field selector selects; "" if it may select several."""
    selector = _first(query, "fieldSelector")
    if not selector or verb not in {"list", "watch", "deletecollection"}:
        return ""
    try:
        fields = parse_field_selector(selector)
    except SelectorError:
        return ""  # an invalid selector is refused when the options are parsed
    found = [each for each in fields.requirements if each.field == "metadata.name"]
    return found[0].value if len(found) == 1 and not found[0].negated else ""


_DURATION = re.compile(r"[-+]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)


def check_timeout(query: Query) -> None:
    """Refuse a time-out that is not a Go duration.

    Raises:
        BadRequestError: 400.
    """
    text = _first(query, "timeout")
    if not text or _DURATION.fullmatch(text):
        return
    kind = "missing unit in duration" if re.fullmatch(r"[-+]?[\d.]+", text) else "invalid duration"
    raise refusal.bad_request(
        f"invalid timeout specified in the request URL - time: {kind} {go_quoted(text)}"
    )


_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def timeout_seconds(query: Query) -> float:
    """Return a request's time-out, checked by `check_timeout`; 0 for none."""
    return sum(
        float(number) * _UNITS[unit] for number, unit in _PART.findall(_first(query, "timeout"))
    )


class ListQuery(msgspec.Struct, frozen=True):
    """The options of a list, watch or deletecollection."""

    label_selector: LabelSelector = EVERYTHING
    field_selector: FieldSelector = EVERY_FIELD
    resource_version: str = ""
    match: str = ""
    limit: int = 0
    continue_token: str = ""
    watch: bool = False
    bookmarks: bool = False
    send_initial: bool | None = None
    timeout: int | None = None
    shard: ShardRange | None = None


def _first(query: Query, name: str) -> str:
    values = query.get(name)
    return values[0] if values else ""


def _integer(query: Query, name: str) -> int | None:
    text = _first(query, name)
    if not text:
        return None
    try:
        return whole_number(text)
    except ValueError as error:
        raise refusal.bad_request(str(error)) from None


def _boolean(query: Query, name: str) -> bool | None:
    values = query.get(name)
    if values is None:
        return None
    return values[0].lower() not in {"false", "0"}


def parse_version(text: str) -> int:
    """Return a resource version as a number; "" is 0.

    Raises:
        ValueError: with the server's message.
    """
    if not text:
        return 0
    try:
        return whole_number(text, "ParseUint")
    except ValueError as error:
        raise ValueError(f'resourceVersion: Invalid value: "{text}": {error}') from None


def parse_list_options(query: Query, *, watch: bool) -> ListQuery:
    """Parse and check the options of a list or watch.

    Raises:
        BadRequestError: a selector or number is invalid.
        InvalidError: the options conflict.
    """
    try:
        labels = parse_label_selector(_first(query, "labelSelector"))
        fields = parse_field_selector(_first(query, "fieldSelector"))
        shard_selector = _first(query, "shardSelector")
        shard = ShardRange.parse(shard_selector) if shard_selector else None
    except (SelectorError, ValueError) as error:
        raise refusal.bad_request(str(error)) from None
    options = ListQuery(
        label_selector=labels,
        field_selector=fields,
        resource_version=_first(query, "resourceVersion"),
        match=_first(query, "resourceVersionMatch"),
        limit=_integer(query, "limit") or 0,
        continue_token=_first(query, "continue"),
        watch=watch,
        bookmarks=bool(_boolean(query, "allowWatchBookmarks")),
        send_initial=_boolean(query, "sendInitialEvents"),
        timeout=_integer(query, "timeoutSeconds"),
        shard=shard,
    )
    causes = _watch_causes(options) if watch else _list_causes(options)
    if causes:
        raise refusal.invalid("ListOptions", "meta.k8s.io", "", causes)
    return options


_MATCH = "resourceVersionMatch"


def _list_causes(options: ListQuery) -> list[Cause]:
    causes = []
    match = options.match
    if match:
        if not options.resource_version:
            causes.append(
                forbidden_value(
                    _MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided"
                )
            )
        if options.continue_token:
            causes.append(
                forbidden_value(
                    _MATCH, "resourceVersionMatch is forbidden when continue is provided"
                )
            )
        if match not in {"Exact", "NotOlderThan"}:
            causes.append(not_supported(_MATCH, match, ["Exact", "NotOlderThan", ""]))
        if match == "Exact" and options.resource_version == "0":
            causes.append(
                forbidden_value(
                    _MATCH,
                    'resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
                )
            )
    if options.send_initial is not None:
        causes.append(
            forbidden_value("sendInitialEvents", "sendInitialEvents is forbidden for list")
        )
    return causes


def _watch_causes(options: ListQuery) -> list[Cause]:
    causes = []
    match = options.match
    if options.send_initial is not None:
        if match != "NotOlderThan":
            causes.append(
                forbidden_value(
                    _MATCH,
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                )
            )
    elif match:
        causes.append(
            forbidden_value(
                _MATCH,
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
        )
    if match and match != "NotOlderThan":
        causes.append(not_supported(_MATCH, match, ["NotOlderThan"]))
    if options.continue_token:
        causes.append(
            forbidden_value(_MATCH, "resourceVersionMatch is forbidden when continue is provided")
        )
    return causes
