"""Create, update, patch and delete, from request to response."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp.web_response import Response, StreamResponse

from listwatch.apiserver import refusal
from listwatch.apiserver.access.escalation import Escalation
from listwatch.apiserver.api.admission import Gate
from listwatch.apiserver.api.apply import apply_object
from listwatch.apiserver.api.body import (
    Decoded,
    decode_body,
    decode_value,
    media_type_of,
    unsupported,
)
from listwatch.apiserver.api.patch import (
    OPERATIONS_LIMIT,
    PatchContentError,
    PatchError,
    PatchFormatError,
    json_patch,
    merge_patch,
    strategic_merge,
)
from listwatch.apiserver.api.reading import Reader, check_fields
from listwatch.apiserver.http.call import Call, warnings_of
from listwatch.apiserver.http.negotiation import JSON, PROTOBUF, YAML
from listwatch.apiserver.http.request_info import parse_list_options
from listwatch.apiserver.kinds.catalog import kind_of
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.spelling import mark
from listwatch.apiserver.storage.deletion import DeleteOptions, Deletion, delete
from listwatch.apiserver.storage.registry import Registry, WriteContext
from listwatch.apiserver.storage.store import Entry
from listwatch.apiserver.user import User
from listwatch.apiserver.webhooks.consultation import BATCH, ask_all
from listwatch.errors import BadRequestError, InvalidError, RequestEntityTooLargeError
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required
from listwatch.schema.fast_typed import QuickDecoder
from listwatch.schema.go_words import go_words, restored, unrestorable, whole_number
from listwatch.schema.parsing import parse_json, parse_yaml

Object = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
#: Deletions before other tasks run.
_TURN = 100
_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)


class Writer:
    """Answers writes. For one event loop."""

    def __init__(
        self, registry: Registry, reader: Reader, escalation: Escalation, gate: Gate
    ) -> None:
        self.registry = registry
        self._escalation = escalation
        self._gate = gate
        self._reader = reader
        self._quick = QuickDecoder()

    # -- options -----------------------------------------------------------------------------

    def context(self, call: Call, kind: str, subresource: str = "") -> WriteContext:
        """Parse and check the options of a write, such as CreateOptions, from the query."""
        causes: list[Cause] = []
        dry_run = call.query.get("dryRun") or []
        if not _is_dry_run(dry_run):
            causes.append(_bad_dry_run(dry_run))
        manager = call.first("fieldManager")
        if len(manager.encode()) > 128:
            causes.append(
                Cause(
                    "fieldManager",
                    "FieldValueTooLong",
                    "Too long: may not be more than 128 bytes",
                )
            )
        elif not manager.isprintable():
            causes.append(
                invalid_value("fieldManager", manager, "should only contain printable characters")
            )
        validation = call.first("fieldValidation")
        if validation not in {"", "Ignore", "Warn", "Strict"}:
            causes.append(
                not_supported("fieldValidation", validation, ["", "Ignore", "Strict", "Warn"])
            )
        if kind == "PatchOptions":
            causes = self._patch_causes(call, manager) + causes
        if causes:
            raise refusal.invalid(kind, "meta.k8s.io", "", causes)
        return WriteContext(
            manager=call.manager,
            dry_run=bool(dry_run),
            subresource=subresource,
            guard=self._escalation.guard(call.user, call.info),
            warnings=call.warnings,
            admission=self._gate.open(call, subresource=subresource, dry_run=bool(dry_run)),
        )

    @staticmethod
    def _patch_causes(call: Call, manager: str) -> list[Cause]:
        is_apply = media_type_of(call.header("Content-Type")) == APPLY_PATCH
        if is_apply and not manager:
            return [required("fieldManager", "is required for apply patch")]
        if not is_apply and "force" in call.query:
            return [forbidden_value("force", "may not be specified for non-apply patch")]
        return []

    @classmethod
    def check_problems(cls, call: Call, resource: APIResource, problems: Sequence[str]) -> None:
        """Warn about unknown and repeated fields, or refuse them, as the options say."""
        strict = cls._strict_problems(call, problems)
        if not strict:
            return
        if resource.custom is not None:
            raise refusal.bad_request(strict)
        raise refusal.bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: {strict}"
        )

    @staticmethod
    def _strict_problems(call: Call, problems: Sequence[str]) -> str:
        """Warn about unknown and repeated fields, or return why the options refuse them."""
        validation = call.first("fieldValidation") or "Warn"
        if problems and validation == "Strict":
            return f"strict decoding error: {', '.join(dict.fromkeys(problems))}"
        if validation == "Warn":
            call.warnings += warnings_of(problems)
        return ""

    # -- create and update -------------------------------------------------------------------

    async def create(self, call: Call, resource: APIResource) -> Response:
        """Answer a POST to a collection."""
        context = self.context(call, "CreateOptions")
        decoded = self._decode(call, resource, await call.body())
        self._check_namespace(call, resource, decoded.obj)
        if not isinstance(decoded.obj["metadata"], dict):
            raise refusal.bad_request("metadata must be an object")
        sign = kind_of(resource).sign
        if sign is not None:
            sign(decoded.obj, _facts_of(call.user))
        entry = self.registry.create(
            resource,
            call.namespace,
            self._inward(resource, decoded.obj),
            context,
        )
        return self._reader.answer_entry(call, resource, entry, status=201)

    def _decode(self, call: Call, resource: APIResource, data: bytes) -> Decoded:
        decoded = decode_body(data, call.header("Content-Type"), resource, self._quick)
        self.check_problems(call, resource, decoded.problems)
        spelled = kind_of(resource).spelled
        if spelled:
            mark(decoded.obj, spelled, data)
        return decoded

    @staticmethod
    def _inward(resource: APIResource, obj: Object) -> Object:
        return obj if resource.convert is None else resource.convert.inward(obj)

    @staticmethod
    def _check_namespace(call: Call, resource: APIResource, obj: Object) -> None:
        given = obj["metadata"].get("namespace")
        if given and given != (call.namespace):
            if not resource.namespaced:
                del obj["metadata"]["namespace"]
                return
            raise refusal.bad_request(
                "the namespace of the provided object does not match the namespace sent on the "
                "request"
            )

    async def update(self, call: Call, resource: APIResource, subresource: str = "") -> Response:
        """Answer a PUT to an object or its status."""
        context = self.context(call, "UpdateOptions", subresource)
        info = call.info
        decoded = self._decode(call, resource, await call.body())
        obj = decoded.obj
        metadata = obj["metadata"]
        self._check_namespace(call, resource, obj)
        name = metadata.get("name")
        if not name:
            raise refusal.bad_request(
                f"the name of the object ({info.name} based on URL) was undeterminable: name must "
                "be provided"
            )
        if name != info.name:
            raise refusal.bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({info.name})"
            )
        if resource.namespaced:
            metadata["namespace"] = info.namespace
        else:
            metadata.pop("namespace", None)
        obj = self._inward(resource, obj)
        entry, created = self.registry.update(
            resource,
            call.namespace,
            info.name,
            lambda _old, _entry: obj,
            context,
            is_put=True,
        )
        return self._reader.answer_entry(call, resource, entry, status=201 if created else 200)

    # -- patch -------------------------------------------------------------------------------

    async def patch(self, call: Call, resource: APIResource, subresource: str = "") -> Response:
        """Answer a PATCH of an object or its status."""
        media_type = call.header("Content-Type").partition(";")[0].strip().lower()
        if media_type not in _PATCH_TYPES:
            error = refusal.unsupported_media_type("415: Unsupported Media Type")
            error.details = refusal.EMPTY_DETAILS
            raise error
        if media_type == STRATEGIC_PATCH and resource.custom is not None:
            raise refusal.unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: "
                f"{JSON_PATCH}, {MERGE_PATCH}, {APPLY_PATCH}"
            )
        data = await call.body()
        context = self.context(call, "PatchOptions", subresource)
        info = call.info
        namespace = call.namespace
        if media_type == APPLY_PATCH:
            return apply_object(self.registry, self._reader, call, resource, data, context)
        if self.registry.find(resource, namespace, info.name) is None:
            raise refusal.not_found(resource, info.name)
        patch = read_patch(data, media_type)

        def produce(old: Object | None, entry: Entry | None) -> Object:
            assert old is not None  # noqa: S101 - found above, with no await since
            assert entry is not None  # noqa: S101 - as above
            return self.patched(call, resource, old, patch, media_type)

        entry, _ = self.registry.update(
            resource, namespace, info.name, produce, context, is_put=False
        )
        return self._reader.answer_entry(call, resource, entry)

    def patched(
        self, call: Call, resource: APIResource, old: Object, patch: Any, media_type: str
    ) -> Object:
        """Return an object with a patch applied, decoded, and checked against the path.

        Raises:
            InvalidError: 422, the patch does not fit, or the result has the wrong type.
            BadRequestError: 400, the result is another object.
        """
        if resource.convert is not None:
            old = resource.convert.outward(old)
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **old}
        patched = apply_patch(whole, patch, media_type, resource.schema)
        if not isinstance(patched, dict):
            raise failed_patch()
        try:
            decoded = decode_value(patched, resource)
        except BadRequestError as error:
            marker = f"cannot be handled as a {resource.kind}: "
            if resource.custom is None and marker in error.message:
                why = error.message.partition(marker)[2]
                if media_type == STRATEGIC_PATCH:
                    words = unrestorable(patched, resource.schema)
                    again = restored(patched, resource.schema)
                    if not words and again != patched:
                        return self._checked(call, resource, decode_value(again, resource).obj)
                    words = words or why
                    cause = invalid_value("patch", go_words(patch), words)
                    raise refusal.invalid("", "", "", [cause]) from None
                raise _undecodable_patch(whole, patched, why) from None
            raise
        strict = self._strict_problems(call, [*_operation_problems(patch), *decoded.problems])
        if strict:
            if media_type != STRATEGIC_PATCH:
                raise _undecodable_patch(whole, patched, strict)
            cause = invalid_value("patch", go_words(patch), strict)
            raise refusal.invalid("", "", "", [cause])
        return self._checked(call, resource, decoded.obj)

    def _checked(self, call: Call, resource: APIResource, obj: Object) -> Object:
        """Return a patched object, which must match the path."""
        metadata = obj["metadata"]
        name = metadata.get("name")
        if name != call.info.name:
            raise refusal.bad_request(
                f"the name of the object ({name or ''}) does not match the name on the URL "
                f"({call.info.name})"
                if name
                else f"the name of the object ({call.info.name} based on URL) was undeterminable: "
                "name must be provided"
            )
        if resource.namespaced and metadata.get("namespace") != call.info.namespace:
            if metadata.get("namespace"):
                raise refusal.bad_request(
                    "the namespace of the provided object does not match the namespace sent on "
                    "the request"
                )
            metadata["namespace"] = call.info.namespace
        if kind_of(resource).spelled:
            mark(obj, kind_of(resource).spelled)
        return self._inward(resource, obj)

    # -- delete ------------------------------------------------------------------------------

    def delete_options(
        self, call: Call, resource: APIResource, data: bytes, known: Object | None = None
    ) -> DeleteOptions:
        """Parse and check the options of a delete: those of the body, otherwise those of the query.

        A body overrides the whole query, including options that it omits, as in `DeleteResource` of
        apiserver/pkg/endpoints/handlers.

        Args:
            call: the request.
            resource: the resource.
            data: the body, empty without one.
            known: the options, if another body contained them.

        Raises:
            BadRequestError: the body is not a DeleteOptions.
            InvalidError: 422, an option has an invalid value.
        """
        if known is not None:
            given = dict(known)
        elif data:
            given = self._delete_body(call, resource, data)
        else:
            given = _delete_query(call)
        causes: list[Cause] = []
        policy, orphan = given.get("propagationPolicy"), given.get("orphanDependents")
        if policy is not None and orphan is not None:
            causes.append(
                invalid_value(
                    "propagationPolicy",
                    policy,
                    "orphanDependents and deletionPropagation cannot be both set",
                )
            )
        if policy not in {None, "Foreground", "Background", "Orphan"}:
            causes.append(
                not_supported(
                    "propagationPolicy", policy, ["Foreground", "Background", "Orphan", "nil"]
                )
            )
        dry_run = given.get("dryRun") or []
        if not _is_dry_run(dry_run):
            causes.append(_bad_dry_run(dry_run))
        if causes:
            raise refusal.invalid("DeleteOptions", "meta.k8s.io", "", causes)
        if policy is None and orphan is not None:
            policy = "Orphan" if orphan else "Background"
        conditions = given.get("preconditions") or {}
        return DeleteOptions(
            grace_period=given.get("gracePeriodSeconds"),
            propagation=policy,
            uid=conditions.get("uid"),
            resource_version=conditions.get("resourceVersion"),
            dry_run=bool(dry_run),
            # admission has already seen the eviction itself
            admission=None
            if known is not None
            else self._gate.open(call, given, dry_run=bool(dry_run)),
        )

    @staticmethod
    def _delete_body(call: Call, resource: APIResource, data: bytes) -> Object:
        media_type = media_type_of(call.header("Content-Type"))
        try:
            if media_type == JSON:
                value = parse_json(data)
            elif media_type == YAML:
                value = parse_yaml(data)
            elif media_type == PROTOBUF:
                from listwatch.apiserver.http.protobuf import (  # noqa: PLC0415 - rarely needed
                    decode_delete_options,
                )

                value = decode_delete_options(data)
            else:
                raise unsupported(resource)
        except ValueError as error:
            raise refusal.bad_request(
                "couldn't get version/kind; json parse error: " + str(error)
            ) from None
        try:
            options = msgspec.convert(value or {}, type=_DeleteBody)
        except msgspec.ValidationError as error:
            raise refusal.bad_request(
                f'DeleteOptions in version "v1" cannot be handled as a DeleteOptions: {error}'
            ) from None
        if options.kind not in {None, "", "DeleteOptions"}:
            version = options.apiVersion or "v1"
            raise refusal.bad_request(
                f'no kind "{options.kind}" is registered for version "{version}" in scheme '
                '"pkg/apis/meta/internalversion/scheme/register.go:27"'
            )
        return {
            key: found for key, found in msgspec.to_builtins(options).items() if found is not None
        }

    async def delete(self, call: Call, resource: APIResource) -> Response:
        """Answer a DELETE of an object."""
        options = self.delete_options(call, resource, await call.body())
        info = call.info
        namespace = call.namespace
        self._warn_of_dependents(call, resource, options)
        deleted = delete(self.registry, resource, namespace, info.name, options)
        return self.answer_deleted(call, resource, deleted)

    @staticmethod
    def _warn_of_dependents(call: Call, resource: APIResource, options: DeleteOptions) -> None:
        warning = kind_of(resource).deletion_warning
        if warning and options.propagation is None:
            call.warnings.append(warning)

    def answer_deleted(self, call: Call, resource: APIResource, deleted: Deletion) -> Response:
        """Respond with the remaining object, or a Status if there is none."""
        entry = deleted.entry
        if not deleted.gone or kind_of(resource).returns_deleted:
            return self._reader.answer_entry(call, resource, entry)
        details: Object = {"name": entry.name}
        if resource.group:
            details["group"] = resource.group
        details |= {"kind": resource.name, "uid": entry.uid}
        return call.answer_value(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            }
        )

    async def delete_collection(self, call: Call, resource: APIResource) -> StreamResponse:
        """Answer a DELETE of a collection."""
        options = self.delete_options(call, resource, await call.body())
        chosen = parse_list_options(call.query, watch=False)
        fields = check_fields(resource, chosen.field_selector)
        chosen = msgspec.structs.replace(chosen, field_selector=fields)
        self._warn_of_dependents(call, resource, options)
        namespace = call.namespace
        entries, metadata = await self._reader.select(resource, namespace, chosen)
        if resource.mirror is not None:
            # here a webhook converts many objects at once, not one with each deletion
            for start in range(0, len(entries), BATCH):
                await call.settled(
                    partial(self._read_all, resource, entries[start : start + BATCH])
                )
        for number, entry in enumerate(entries, 1):
            present = self.registry.find(resource, entry.namespace, entry.name)
            if present is not None and present.uid == entry.uid:
                await call.settled(
                    partial(delete, self.registry, resource, entry.namespace, entry.name, options)
                )
            if number % _TURN == 0:
                await asyncio.sleep(0)
        return await self._reader.answer_list(call, resource, entries, metadata)

    def _read_all(self, resource: APIResource, entries: Sequence[Entry]) -> list[Object]:
        """Return the current states of objects, without those that are gone."""
        found = (self.registry.find(resource, each.namespace, each.name) for each in entries)
        present = [each for each in found if each is not None]
        return ask_all([partial(self.registry.read, resource, each) for each in present])


class _Preconditions(msgspec.Struct):
    uid: str | None = None
    resourceVersion: str | None = None  # noqa: N815 - the name in JSON


class _DeleteBody(msgspec.Struct):
    apiVersion: str | None = None  # noqa: N815 - the name in JSON
    kind: str | None = None
    gracePeriodSeconds: int | None = None  # noqa: N815 - the name in JSON
    propagationPolicy: str | None = None  # noqa: N815 - the name in JSON
    orphanDependents: bool | None = None  # noqa: N815 - the name in JSON
    preconditions: _Preconditions | None = None
    dryRun: list[str] | None = None  # noqa: N815 - the name in JSON


def _delete_query(call: Call) -> Object:
    """Return the options of a delete from the query."""
    given: Object = {}
    if "gracePeriodSeconds" in call.query:
        given["gracePeriodSeconds"] = _int(call.first("gracePeriodSeconds"))
    if "propagationPolicy" in call.query:
        given["propagationPolicy"] = call.first("propagationPolicy")
    if "orphanDependents" in call.query:
        given["orphanDependents"] = call.first("orphanDependents") not in {"false", "0"}
    if "dryRun" in call.query:
        given["dryRun"] = call.query["dryRun"]
    # as in Convert_url_Values_To_v1_DeleteOptions of apimachinery; in the body they are nested
    conditions = {key: call.first(key) for key in ("uid", "resourceVersion") if call.first(key)}
    if conditions:
        given["preconditions"] = conditions
    return given


def _is_dry_run(values: Sequence[str]) -> bool:
    """Return whether the values of `dryRun` mean a dry run; no values don't."""
    return not values or set(values) == {"All"}


def _bad_dry_run(values: Sequence[str]) -> Cause:
    return not_supported("dryRun", list(values), ["All"])


def _int(text: str) -> int:
    try:
        return whole_number(text)
    except ValueError as error:
        raise refusal.bad_request(str(error)) from None


def _facts_of(user: User) -> Object:
    return {
        "username": user.name,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {key: list(values) for key, values in user.extra.items()},
    }


def read_patch(data: bytes, media_type: str) -> Any:
    """Decode the body of a patch.

    Raises:
        BadRequestError: the body is not of that media type.
    """
    try:
        patch = parse_json(data)
    except ValueError as error:
        raise refusal.bad_request(f"error decoding patch: {error}") from None
    if media_type == JSON_PATCH:
        if not isinstance(patch, list):
            word = _json_type(patch)
            raise refusal.bad_request(
                f"error decoding patch: json: cannot unmarshal {word} into Go value of type "
                "[]handlers.jsonPatchOp"
            )
        bad = next((each for each in patch if not isinstance(each, dict | None)), None)
        if bad is not None:
            raise refusal.bad_request(
                f"error decoding patch: json: cannot unmarshal {_json_type(bad)} into Go value of "
                "type handlers.jsonPatchOp"
            )
        if len(patch) > OPERATIONS_LIMIT:
            raise RequestEntityTooLargeError(
                "The allowed maximum operations in a JSON patch is "
                f"{OPERATIONS_LIMIT}, got {len(patch)}"
            )
    elif not isinstance(patch, dict):
        word = _json_type(patch)
        raise refusal.bad_request(
            f"error decoding patch: json: cannot unmarshal {word} into Go value of type "
            "map[string]interface {}"
        )
    return patch


_OPERATION_KEYS = frozenset(("op", "path", "from", "value"))


def _operation_problems(patch: Any) -> list[str]:
    """Return problems about ignored fields in a JSON patch's operations."""
    if not isinstance(patch, list):
        return []
    return [
        f'json patch unknown field "[{index}].{key}"'
        for index, each in enumerate(patch)
        for key in sorted(each.keys() - _OPERATION_KEYS)
    ]


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "bool"}
    return names.get(type(value), "null" if value is None else "number")


def apply_patch(whole: Mapping[str, Any], patch: Any, media_type: str, schema: Any) -> Any:
    """Return an object with a patch applied.

    Raises:
        InvalidError: 422, the patch does not fit.
        BadRequestError: a directive of a strategic merge has the wrong form.
        StatusError: 500, a directive is wrong in another way.
    """
    try:
        if media_type == JSON_PATCH:
            return json_patch(dict(whole), patch)
        if media_type == MERGE_PATCH:
            return merge_patch(whole, patch)
        return strategic_merge(whole, patch, schema)
    except PatchError as error:
        if media_type != STRATEGIC_PATCH or isinstance(error, PatchContentError):
            raise failed_patch() from None
        if isinstance(error, PatchFormatError):
            raise refusal.bad_request(str(error)) from None
        raise refusal.server_error(str(error)) from None
    except RecursionError:
        raise refusal.bad_request("error decoding patch: exceeded max depth") from None


def failed_patch() -> Exception:
    """Return the refusal of a patch that does not fit its object."""
    error = InvalidError("the server rejected our request due to an error in our request")
    error.details = refusal.EMPTY_DETAILS
    return error


def _as_patched(before: Any, after: Any) -> Any:
    """Return the result of a patch with sorted keys where the patch changed something, like Go."""
    if before == after or not isinstance(after, dict):
        return after
    old = before if isinstance(before, dict) else {}
    return {key: _as_patched(old.get(key), after[key]) for key in sorted(after)}


def _undecodable_patch(
    before: Mapping[str, Any], patched: Mapping[str, Any], why: str
) -> Exception:
    shown = msgspec.json.encode(_as_patched(before, patched)).decode()
    return refusal.invalid("", "", "", [invalid_value("patch", shown, why)])
