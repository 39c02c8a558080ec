"""Server-side apply: merges a manager's configuration and tracks ownership.

The rules are those of structured-merge-diff (`merge/update.go`, `typed/merge.go`).
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aiohttp.web_response import Response

from listwatch.apiserver import refusal
from listwatch.apiserver.admission.advice import single_owners
from listwatch.apiserver.api.body import decode_value
from listwatch.apiserver.api.configuration import configuration, shown_key
from listwatch.apiserver.api.last_applied import MANAGER, applied_before, renew
from listwatch.apiserver.api.reading import Reader
from listwatch.apiserver.http.call import Call
from listwatch.apiserver.kinds.catalog import kind_of
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.spelling import mark
from listwatch.apiserver.storage.carrying import reset_fields
from listwatch.apiserver.storage.field_sets import (
    Fields,
    applied_fields,
    difference_of_states,
    granular_items,
    intersection,
    item_key,
    minus,
    union,
    without_server_fields,
)
from listwatch.apiserver.storage.managed_fields import Managed, Owner
from listwatch.apiserver.storage.registry import Registry, WriteContext
from listwatch.errors import BadRequestError, ConflictError, StatusError
from listwatch.schema.causes import go_quoted
from listwatch.schema.copying import copy_of
from listwatch.schema.facts import ANY, Form, Schema

Object = dict[str, Any]


def merge_applied(live: Any, wanted: Any, schema: Schema) -> Any:
    """Return the live value with the applied one merged in."""
    if isinstance(wanted, dict) and isinstance(live, dict) and not schema.atomic:
        result = dict(live)
        for key, each in wanted.items():
            if schema.form is Form.STRUCT:
                field = schema.fields.get(key, ANY)
            else:
                field = schema.item or ANY
            result[key] = merge_applied(live[key], each, field) if key in live else each
        return result
    if isinstance(wanted, list) and isinstance(live, list):
        wanted_items = granular_items(wanted, schema)
        live_items = granular_items(live, schema)
        if wanted_items is not None and live_items is not None:
            item = schema.item or ANY
            return [
                merge_applied(live_items[key], wanted_items[key], item)
                if key in live_items and key in wanted_items
                else wanted_items.get(key, live_items.get(key))
                for key in _merged_order(list(live_items), list(wanted_items))
            ]
    return wanted


def _merged_order(live: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the keys of both lists: applied ones in their order, others in between.

    A live item stays before the applied item that followed it, unless that item was moved up. The
    rule is that of `visitListItems` in structured-merge-diff's `typed/merge.go`.
    """
    asked, present = frozenset(wanted), frozenset(live)
    result: list[str] = []
    taken: set[str] = set()
    left, right = deque(live), deque(wanted)
    shared = deque(key for key in wanted if key in present)
    while left or right:
        if left and right and left[0] != right[0] and left[0] in asked and shared:
            if left[0] != shared[0]:
                left.popleft()  # it follows at its applied position
                continue
        elif left and right and left[0] == right[0]:
            if shared:
                shared.popleft()
            taken.add(left.popleft())
            result.append(right.popleft())
            continue
        if left:
            if left[0] not in asked:
                result.append(left.popleft())
                continue
            if left[0] in taken:
                left.popleft()
        if right:
            key = right.popleft()
            taken.add(key)
            result.append(key)
            if shared and shared[0] == key:
                shared.popleft()
    return result


def without_fields(value: Any, fields: Fields, kept: Fields, schema: Schema) -> Any:
    """Return a value without the given fields, except those that others own."""
    if isinstance(value, dict):
        result = {}
        for key, each in value.items():
            mark = f"f:{key}"
            below = fields.get(mark)
            if below is None:
                result[key] = each
                continue
            held = kept.get(mark, {})
            if "." in below and not held:
                continue
            field = schema.fields.get(key, ANY) if schema.form is Form.STRUCT else schema.item
            left = without_fields(each, below, held, field or ANY)
            # also drop a value without an owner that loses its last part
            if left or not each or held:
                result[key] = left
        return result
    if isinstance(value, list) and schema.form is Form.LIST and schema.list_type != "atomic":
        items = []
        for each in value:
            mark = item_key(each, schema)
            below = fields.get(mark)
            if below is None:
                items.append(each)
                continue
            held = kept.get(mark, {})
            if "." in below and not held:
                continue
            items.append(without_fields(each, below, held, schema.item or ANY))
        return items
    return value


def _paths(fields: Fields, prefix: str = "") -> Iterator[str]:
    for key, below in sorted(fields.items()):
        if key == ".":
            yield prefix or "."
            continue
        here = prefix + (f".{key[2:]}" if key.startswith("f:") else shown_key(key))
        yield from _paths(below, here)


def _owner_words(owner: Owner) -> str:
    words = go_quoted(owner.manager)
    if owner.subresource:
        words += f" with subresource {go_quoted(owner.subresource)}"
    if owner.operation == "Update":
        words += f" using {owner.api_version}"
    return words


def _conflict(conflicts: Mapping[Owner, Fields]) -> StatusError:
    found = sorted(
        (_owner_words(owner), list(_paths(fields))) for owner, fields in conflicts.items()
    )
    count = sum(len(paths) for _, paths in found)
    if count == 1:
        words, paths = found[0]
        message = f"Apply failed with 1 conflict: conflict with {words}: {paths[0]}"
    else:
        parts = []
        for words, paths in found:
            parts.append(f"conflicts with {words}:")
            parts += [f"- {path}" for path in paths]
        message = f"Apply failed with {count} conflicts: " + "\n".join(parts)
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {words}",
            "field": path,
        }
        for words, paths in found
        for path in paths
    ]
    return ConflictError(message, details={"causes": causes})


def apply_object(
    registry: Registry,
    reader: Reader,
    call: Call,
    resource: APIResource,
    data: bytes,
    context: WriteContext,
) -> Response:
    """Answer an apply: create the object or merge into it, and update the owners."""
    wanted = configuration(call, resource, data)
    wanted = {key: each for key, each in wanted.items() if key not in {"apiVersion", "kind"}}
    by_kubectl = context.manager == MANAGER
    given_version = wanted["metadata"].pop("resourceVersion", None)
    given_uid = wanted["metadata"].get("uid")
    entry = registry.find(resource, call.namespace, call.info.name)
    if entry is None and context.subresource:
        raise refusal.not_found(resource, call.info.name)
    live: Object = {} if entry is None else registry.present(resource, entry)
    if resource.convert is not None and live:
        live = resource.convert.outward(live)
    reset = reset_fields(resource, context.subresource)
    managed = Managed.read((live.get("metadata") or {}).get("managedFields"))
    if live and not managed.sets:
        # earlier writers without a name get a manager, too, as in `skipNonAppliedManager`
        owner = Owner("Update", "before-first-apply", resource.api_version, context.subresource)
        managed.update(owner, None, live, resource.schema, now=registry.now(), reset=reset)
    if entry is not None and (given_version or "0") not in {"0", str(entry.revision)}:
        raise refusal.conflict(resource, entry.name)
    merged = own(
        managed,
        Owner("Apply", context.manager, resource.api_version, context.subresource),
        live,
        wanted,
        resource.schema,
        reset=reset,
        force=call.first("force") in {"true", "1"},
        now=registry.now(),
        allowed=applied_before(live, resource) if by_kubectl else {},
    )
    whole = {"apiVersion": resource.api_version, "kind": resource.kind, **merged}
    try:
        decoded = decode_value(copy_of(whole), resource)
    except BadRequestError as error:
        raise refusal.server_error(error.message) from None
    obj = decoded.obj
    if by_kubectl:
        renew(obj, wanted, resource)
    if kind_of(resource).spelled:
        mark(obj, kind_of(resource).spelled)
    single_owners(obj, context.warnings, patched=True)
    if resource.convert is not None:
        obj = resource.convert.inward(obj)
        live = resource.convert.inward(live) if live else live
    if entry is None:
        if call.namespace:
            registry.check_namespace(resource, call.namespace, call.info.name)
        if given_uid:
            raise refusal.conflict(
                resource,
                call.info.name,
                f"uid mismatch: the provided object specified uid {given_uid}, and no existing "
                "object was found",
            )
        obj["metadata"].pop("resourceVersion", None)
        made = registry.store_new(resource, call.namespace, obj, managed.write(), context)
        return reader.answer_entry(call, resource, made, status=201)
    if given_uid:
        obj["metadata"]["uid"] = given_uid
    if call.namespace:
        obj["metadata"]["namespace"] = call.namespace
    made = registry.store_update(
        resource, entry, registry.present(resource, entry), obj, managed, context
    )
    return reader.answer_entry(call, resource, made)


def own(
    managed: Managed,
    owner: Owner,
    live: Object,
    wanted: Object,
    schema: Schema,
    *,
    reset: tuple[tuple[str, ...], ...],
    force: bool,
    now: str,
    allowed: Fields | None = None,
) -> Object:
    """Return the merged object and update the owners in `managed`.

    Raises:
        ConflictError: 409, another manager owns a field that would change.
    """
    asked = without_server_fields(applied_fields(wanted, schema), reset)
    before = managed.sets.get(owner, {})
    others: Fields = {}
    for other, fields in managed.sets.items():
        if other != owner:
            others = union(others, fields)
    merged = merge_applied(live, wanted, schema)
    dropped = minus(before, asked)
    if dropped:
        merged = without_fields(merged, dropped, union(others, asked), schema)
    changed, removed = difference_of_states(live, merged, schema)
    changed = without_server_fields(changed, reset)
    conflicts: dict[Owner, Fields] = {}
    for other, fields in managed.sets.items():
        if other == owner:
            continue
        both = intersection(fields, changed)
        if both:
            conflicts[other] = both
    left_over = {other: minus(fields, allowed or {}) for other, fields in conflicts.items()}
    if any(left_over.values()) and not force:
        raise _conflict({other: fields for other, fields in left_over.items() if fields})
    for other, fields in list(managed.sets.items()):
        if other == owner:
            continue
        left = minus(fields, removed) if removed else fields
        if other in conflicts:
            left = minus(left, conflicts[other])
        if left:
            managed.sets[other] = left
        else:
            del managed.sets[other]
            managed.times.pop(other, None)
    if asked:
        managed.sets[owner] = asked
        if changed or without_server_fields(removed, reset):
            managed.times[owner] = now
    else:
        managed.sets.pop(owner, None)
        managed.times.pop(owner, None)
    return dict(merged)


__all__ = ["apply_object", "merge_applied", "own", "without_fields"]
