"""The scale of an object: its replicas in a form shared by all kinds.

The owners of the replicas are those of the object's field, converted to the scale and back as in
`scalehandler.go` of apimachinery/pkg/util/managedfields.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp.web_response import Response, StreamResponse

from listwatch.apiserver import refusal
from listwatch.apiserver.api.apply import own
from listwatch.apiserver.api.body import decode_body, decode_value, media_type_of
from listwatch.apiserver.api.configuration import configuration
from listwatch.apiserver.api.writing import APPLY_PATCH, Writer, read_patch
from listwatch.apiserver.http.call import Call
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.field_sets import Fields, minus
from listwatch.apiserver.storage.managed_fields import Managed, Owner
from listwatch.apiserver.storage.preconditions import check_conditions
from listwatch.apiserver.storage.registry import Registry, WriteContext
from listwatch.apiserver.storage.store import Entry
from listwatch.schema.causes import invalid_value
from listwatch.schema.copying import copy_of
from listwatch.schema.facts import facts
from listwatch.selector import LabelSelector, SelectorError

Object = dict[str, Any]
Handler = Callable[[Call, APIResource], Awaitable[StreamResponse]]

_TYPE: Object = {"kind": "Scale", "apiVersion": "autoscaling/v1"}
_PATH = ("spec", "replicas")
#: Returns the new scale for the current one; the owners are those of its replicas.
_Change = Callable[[Object, Managed], Object]


class Scales:
    """Answers requests to the path /scale. For one event loop."""

    def __init__(self, registry: Registry, writer: Writer) -> None:
        self._registry = registry
        self._writer = writer
        self._of = {
            namespaced: APIResource(
                "autoscaling",
                "v1",
                "scales",
                "Scale",
                schema=facts().schema("autoscaling", "v1", "Scale"),
                namespaced=namespaced,
            )
            for namespaced in (True, False)
        }

    def handler(self, verb: str) -> Handler:
        """Return the handler of a verb: get, update or patch."""
        return {"get": self._get, "update": self._put, "patch": self._patch}[verb]

    async def _get(self, call: Call, resource: APIResource) -> StreamResponse:
        entry = self._registry.get(resource, call.namespace, call.info.name)
        return _answer(call, self._shown(resource, entry))

    async def _put(self, call: Call, resource: APIResource) -> StreamResponse:
        context = self._writer.context(call, "UpdateOptions", "scale")
        scale = self._of[resource.namespaced]
        decoded = decode_body(await call.body(), call.header("Content-Type"), scale)
        self._writer.check_problems(call, scale, decoded.problems)
        given = decoded.obj["metadata"].get("name")
        if given and given != call.info.name:
            raise refusal.bad_request(
                f"the name of the object ({given}) does not match the name on the URL "
                f"({call.info.name})"
            )
        change = self._updated(resource, context, lambda _: decoded.obj)
        return self._store(call, resource, context, change, is_put=True)

    async def _patch(self, call: Call, resource: APIResource) -> StreamResponse:
        context = self._writer.context(call, "PatchOptions", "scale")
        media_type = media_type_of(call.header("Content-Type"))
        if "patch" not in media_type:
            error = refusal.unsupported_media_type("415: Unsupported Media Type")
            error.details = refusal.EMPTY_DETAILS
            raise error
        data = await call.body()
        self._registry.get(resource, call.namespace, call.info.name)
        scale = self._of[resource.namespaced]
        if media_type == APPLY_PATCH:
            return self._store(
                call, resource, context, self._applied(call, resource, context, data)
            )
        patch = read_patch(data, media_type)
        change = self._updated(
            resource,
            context,
            lambda present: self._writer.patched(call, scale, present, patch, media_type),
        )
        return self._store(call, resource, context, change)

    def _updated(
        self, resource: APIResource, context: WriteContext, make: Callable[[Object], Object]
    ) -> _Change:
        def change(present: Object, managed: Managed) -> Object:
            made = make(copy_of(present))
            owner = Owner("Update", context.manager, resource.api_version, "scale")
            before, after = ({"spec": _compact(each)} for each in (present, made))
            schema = self._of[True].schema
            managed.update(owner, before, after, schema, now=self._registry.now())
            return made

        return change

    def _applied(
        self, call: Call, resource: APIResource, context: WriteContext, data: bytes
    ) -> _Change:
        scale = self._of[resource.namespaced]
        wanted = configuration(call, scale, data)

        def change(present: Object, managed: Managed) -> Object:
            merged = own(
                managed,
                Owner("Apply", context.manager, resource.api_version, "scale"),
                {"spec": _compact(present)},
                {"spec": wanted.get("spec") or {}},
                scale.schema,
                reset=(),
                force=call.first("force") in {"true", "1"},
                now=self._registry.now(),
            )
            metadata = {**present["metadata"], **wanted["metadata"]}
            return decode_value({**_TYPE, **merged, "metadata": metadata}, scale).obj

        return change

    def _store(
        self,
        call: Call,
        resource: APIResource,
        context: WriteContext,
        change: _Change,
        *,
        is_put: bool = False,
    ) -> StreamResponse:
        entry = self._registry.get(resource, call.namespace, call.info.name)
        old = self._registry.present(resource, entry)
        managed = Managed.read(old["metadata"].get("managedFields"))
        path = _path(resource.custom["scale"]["specReplicasPath"]) if resource.custom else _PATH
        present = self._shown(resource, entry, lacking=0)
        owners = _carried_out(managed, path)
        scale = change(copy_of(present), owners)
        admission, context = context.admission, msgspec.structs.replace(context, admission=None)
        if admission is not None:
            old_scale = {**_TYPE, **present}
            scale = admission.mutate_whole("UPDATE", {**_TYPE, **scale}, old_scale)
            admission.validate_whole("UPDATE", scale, old_scale)
        replicas = (scale.get("spec") or {}).get("replicas") or 0
        if replicas < 0:
            raise _negative(resource, entry.name, replicas)
        conditions = dict(scale["metadata"])
        conditions["resourceVersion"] = conditions.get("resourceVersion") or str(entry.revision)
        check_conditions(resource, entry, conditions, is_put=is_put)
        new = copy_of(old)
        _put_at(new, path, replicas)
        if managed.sets or owners.sets:
            managed = _carried_back(managed, owners, path)
        made = self._registry.store_update(resource, entry, old, new, managed, context)
        return _answer(call, self._shown(resource, made))

    def _shown(self, resource: APIResource, entry: Entry, *, lacking: int | None = None) -> Object:
        """Return an object's scale; `lacking` is the default for a custom object's replicas."""
        obj = self._registry.present(resource, entry)
        metadata = obj["metadata"]
        shown = {
            key: metadata[key]
            for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            if key in metadata
        }
        if resource.custom is not None:
            return {"metadata": shown, **_custom_scale(resource, obj, lacking)}
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        selector = spec.get("selector") or {}
        if resource.name == "replicationcontrollers":
            selector = {"matchLabels": selector}
        try:
            words = str(LabelSelector.from_dict(selector))
        except SelectorError:
            words = ""
        replicas = spec.get("replicas", 0)
        made: Object = {
            "metadata": shown,
            "spec": {"replicas": replicas} if replicas else {},
            "status": {"replicas": status.get("replicas", 0)},
        }
        if words:
            made["status"]["selector"] = words
        return made


def _answer(call: Call, scale: Object) -> Response:
    call.representation = msgspec.structs.replace(call.representation, transform="")
    return call.answer_value({**_TYPE, **scale})


def _compact(scale: Object) -> Object:
    """Return a scale's spec as Go writes it: without zero replicas."""
    replicas = (scale.get("spec") or {}).get("replicas")
    return {"replicas": replicas} if replicas else {}


def _negative(resource: APIResource, name: str, replicas: int) -> Exception:
    if resource.custom is not None:
        path = resource.custom["scale"]["specReplicasPath"]
        cause = invalid_value(path, replicas, "should be a non-negative integer")
        return refusal.invalid_object(resource, name, [cause])
    cause = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
    return refusal.invalid("Scale", "autoscaling", name, [cause])


# -- owners ----------------------------------------------------------------------------------


def _fields_at(path: tuple[str, ...]) -> Fields:
    fields: Fields = {".": {}}
    for key in reversed(path):
        fields = {f"f:{key}": fields}
    return fields


def _owns(fields: Fields, path: tuple[str, ...]) -> bool:
    for key in path:
        below = fields.get(f"f:{key}")
        if below is None:
            return False
        fields = below
    return "." in fields


def _carried_out(managed: Managed, path: tuple[str, ...]) -> Managed:
    """Convert the owners of an object's replicas to owners of its scale."""
    owners = Managed()
    for owner, fields in managed.sets.items():
        if _owns(fields, path):
            owners.sets[owner] = _fields_at(_PATH)
            if owner in managed.times:
                owners.times[owner] = managed.times[owner]
    return owners


def _carried_back(managed: Managed, owners: Managed, path: tuple[str, ...]) -> Managed:
    """Return an object's owners, updated with those of its scale; new ones have no time."""
    result = Managed()
    replicas = _fields_at(path)
    for owner, fields in managed.sets.items():
        left = fields if owner in owners.sets else minus(fields, replicas)
        if left:
            result.sets[owner] = left
            if owner in managed.times:
                result.times[owner] = managed.times[owner]
    for owner, fields in owners.sets.items():
        if owner not in managed.sets and _owns(fields, _PATH):
            result.sets[owner] = replicas
    return result


# -- custom resources ------------------------------------------------------------------------


def _path(path: str) -> tuple[str, ...]:
    return tuple(path.removeprefix(".").split("."))


def _at(obj: Any, path: str) -> Any:
    for key in _path(path):
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def _put_at(obj: Object, path: tuple[str, ...], value: int) -> None:
    *parents, last = path
    for key in parents:
        obj = obj.setdefault(key, {})
    obj[last] = value


def _custom_scale(resource: APIResource, obj: Object, lacking: int | None) -> Object:
    """Return spec and status of a custom object's scale.

    Args:
        resource: defines their paths.
        obj: the object.
        lacking: the default for an object without replicas.

    Raises:
        StatusError: 500, the object has no replicas and there is no default.
    """
    assert resource.custom is not None  # noqa: S101 - called for custom resources only
    paths = resource.custom["scale"]
    replicas = _at(obj, paths["specReplicasPath"])
    if replicas is None:
        replicas = lacking
    if replicas is None:
        raise refusal.internal_error(
            f'the spec replicas field "{paths["specReplicasPath"]}" does not exist'
        )
    scale: Object = {
        "spec": {"replicas": replicas} if replicas else {},
        "status": {"replicas": _at(obj, paths["statusReplicasPath"]) or 0},
    }
    selector_path = paths.get("labelSelectorPath")
    selector = _at(obj, selector_path) if selector_path else None
    if selector:
        scale["status"]["selector"] = selector
    return scale
