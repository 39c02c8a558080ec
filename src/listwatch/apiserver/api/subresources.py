"""Subresources such as status and scale, and bindings."""

import copy
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from listwatch.apiserver import refusal
from listwatch.apiserver.access.issued_tokens import AUDIENCE, Bound, IssuedTokens
from listwatch.apiserver.admission.chain import whole_of
from listwatch.apiserver.api.body import decode_body, decode_value, media_type_of
from listwatch.apiserver.api.reading import Reader
from listwatch.apiserver.api.writing import Writer, apply_patch, failed_patch, read_patch
from listwatch.apiserver.http.call import Call
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.registry import Registry, WriteContext
from listwatch.apiserver.storage.store import Entry
from listwatch.schema.causes import invalid_value, not_supported
from listwatch.schema.facts import ANY, facts
from listwatch.selector import LabelSelector, SelectorError

Object = dict[str, Any]
Handler = Callable[[Call, APIResource], Awaitable[web.StreamResponse]]

_SCALE: Object = {"kind": "Scale", "apiVersion": "autoscaling/v1"}


class Subresources:
    """Finds the handler of a subresource. For one event loop."""

    def __init__(
        self, registry: Registry, reader: Reader, writer: Writer, issued: IssuedTokens
    ) -> None:
        self._issued = issued
        self._registry = registry
        self._reader = reader
        self._writer = writer
        self._pods = APIResource("", "v1", "pods", "Pod", schema=facts().schema("", "v1", "Pod"))
        self._token = APIResource(
            "authentication.k8s.io",
            "v1",
            "tokenrequests",
            "TokenRequest",
            schema=facts().schema("authentication.k8s.io", "v1", "TokenRequest"),
        )
        #: the objects that a token may be bound to
        self._binds = {
            "Pod": self._pods,
            "Secret": APIResource("", "v1", "secrets", "Secret", schema=ANY),
            "Node": APIResource("", "v1", "nodes", "Node", schema=ANY, namespaced=False),
        }
        self._scale = APIResource(
            "autoscaling",
            "v1",
            "scales",
            "Scale",
            schema=facts().schema("autoscaling", "v1", "Scale"),
        )

    def handler(self, resource: APIResource, name: str, verb: str) -> Handler:
        """Return the handler of a verb on a subresource.

        Raises:
            MethodNotSupportedError: 405.
        """
        sub = resource.subresources[name]
        if verb not in sub.verbs:
            if resource.custom is not None and verb in {"create", "delete"}:
                raise refusal.verb_not_supported(resource, verb)
            raise refusal.method_not_allowed()
        if name in {"status", "approval", "resize", "ephemeralcontainers"}:
            return self._part_handler(name, verb)
        if name == "scale":
            return {"get": self._get_scale, "update": self._put_scale, "patch": self._patch_scale}[
                verb
            ]
        if name == "finalize":
            return self._finalize
        if name == "binding":
            return self.bind
        if name == "eviction":
            return self._evict
        if name == "token":
            return self._request_token
        return partial(self._ask_node, name)

    def _part_handler(self, name: str, verb: str) -> Handler:
        async def update(call: Call, resource: APIResource) -> web.StreamResponse:
            return await self._writer.update(call, resource, name)

        async def patch(call: Call, resource: APIResource) -> web.StreamResponse:
            return await self._writer.patch(call, resource, name)

        return {"get": self._reader.get, "update": update, "patch": patch}[verb]

    # -- scale -------------------------------------------------------------------------------

    def _scale_of(
        self, resource: APIResource, entry: Entry, *, lacking: int | None = None
    ) -> Object:
        """Return an object's scale; `lacking` is the default for a custom one without replicas."""
        obj = self._registry.present(resource, entry)
        metadata = obj["metadata"]
        shown = {
            key: metadata[key]
            for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            if key in metadata
        }
        if resource.custom is not None:
            return {"metadata": shown, **custom_scale(resource, obj, lacking)}
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

    def _answer_scale(self, call: Call, scale: Object) -> web.Response:
        call.representation = msgspec.structs.replace(call.representation, transform="")
        return call.answer_value({**_SCALE, **scale})

    async def _get_scale(self, call: Call, resource: APIResource) -> web.StreamResponse:
        entry = self._registry.get(resource, call.namespace, call.info.name)
        return self._answer_scale(call, self._scale_of(resource, entry))

    async def _put_scale(self, call: Call, resource: APIResource) -> web.StreamResponse:
        context = self._writer.context(call, "UpdateOptions", "scale")
        decoded = decode_body(await call.body(), call.header("Content-Type"), self._scale)
        scale = decoded.obj
        given = scale["metadata"].get("name")
        if given and given != call.info.name:
            raise refusal.bad_request(
                f"the name of the object ({given}) does not match the name on the URL "
                f"({call.info.name})"
            )
        return self._store_scale(call, resource, context, lambda _: scale)

    async def _patch_scale(self, call: Call, resource: APIResource) -> web.StreamResponse:
        context = self._writer.context(call, "PatchOptions", "scale")
        media_type = media_type_of(call.header("Content-Type"))
        if "patch" not in media_type:
            error = refusal.unsupported_media_type("415: Unsupported Media Type")
            error.details = refusal.EMPTY_DETAILS
            raise error
        data = await call.body()
        self._registry.get(resource, call.namespace, call.info.name)
        patch = read_patch(data, media_type)

        def change(scale: Object) -> Object:
            whole = {**_SCALE, **scale}
            patched = apply_patch(whole, patch, media_type, self._scale.schema)
            if not isinstance(patched, dict):
                raise failed_patch()
            return decode_value(patched, self._scale).obj

        return self._store_scale(call, resource, context, change)

    def _store_scale(
        self,
        call: Call,
        resource: APIResource,
        context: WriteContext,
        change: Callable[[Object], Object],
    ) -> web.StreamResponse:
        info = call.info
        admission, context = context.admission, msgspec.structs.replace(context, admission=None)

        def produce(old: Object | None, entry: Entry | None) -> Object:
            assert old is not None  # noqa: S101 - update refuses a missing object before
            assert entry is not None  # noqa: S101 - as above
            present = self._scale_of(resource, entry, lacking=0)
            scale = change(copy.deepcopy(present))
            if admission is not None:
                old_scale = {**_SCALE, **present}
                scale = admission.mutate_whole("UPDATE", {**_SCALE, **scale}, old_scale)
                admission.validate_whole("UPDATE", scale, old_scale)
            replicas = (scale.get("spec") or {}).get("replicas", 0)
            if replicas < 0 and resource.custom is not None:
                raise refusal.invalid_object(
                    resource,
                    info.name,
                    [
                        invalid_value(
                            resource.custom["scale"]["specReplicasPath"],
                            replicas,
                            "should be a non-negative integer",
                        )
                    ],
                )
            if replicas < 0:
                raise refusal.invalid(
                    "Scale",
                    "autoscaling",
                    info.name,
                    [
                        invalid_value(
                            "spec.replicas", replicas, "must be greater than or equal to 0"
                        )
                    ],
                )
            version = scale["metadata"].get("resourceVersion")
            if version:
                old["metadata"]["resourceVersion"] = version
            if resource.custom is not None:
                set_custom_replicas(resource, old, replicas)
            else:
                old.setdefault("spec", {})["replicas"] = replicas
            return old

        entry, _ = self._registry.update(
            resource, call.namespace, info.name, produce, context, is_put=False
        )
        return self._answer_scale(call, self._scale_of(resource, entry))

    # -- others ------------------------------------------------------------------------------

    async def _finalize(self, call: Call, resource: APIResource) -> web.StreamResponse:
        context = self._writer.context(call, "UpdateOptions", "finalize")
        decoded = decode_body(await call.body(), call.header("Content-Type"), resource)
        finalizers = (decoded.obj.get("spec") or {}).get("finalizers") or []

        def produce(old: Object | None, _: Entry | None) -> Object:
            assert old is not None  # noqa: S101 - update refuses a missing object before
            spec = old.setdefault("spec", {})
            if finalizers:
                spec["finalizers"] = finalizers
            else:
                spec.pop("finalizers", None)
            return old

        entry, _ = self._registry.update(
            resource, "", call.info.name, produce, context, is_put=False
        )
        return self._reader.answer_entry(call, resource, entry)

    async def bind(self, call: Call, resource: APIResource) -> web.StreamResponse:
        """Answer a POST of a Binding, to a pod's path or to the collection of bindings."""
        context = self._writer.context(call, "CreateOptions", "binding")
        binding = APIResource(
            "", "v1", "bindings", "Binding", schema=facts().schema("", "v1", "Binding")
        )
        decoded = decode_body(await call.body(), call.header("Content-Type"), binding)
        asked = _admitted(context, binding, decoded.obj)
        target, given = asked.get("target") or {}, asked["metadata"].get("name", "")
        pods = self._pods if resource.name == "bindings" else resource
        name = call.info.name or given
        if given and given != name:
            raise refusal.bad_request("name in URL does not match name in Binding object")
        if target.get("kind") not in {None, "", "Node"}:
            cause = not_supported("target.kind", target["kind"], ["Node", "<empty>"])
            raise refusal.server_error(f"{cause.field}: {cause.message}")
        if not target.get("name"):
            raise refusal.server_error("target.name: Required value")
        entry = self._registry.get(pods, call.namespace, name)
        self._registry.bind(pods, entry, target["name"], dry_run=context.dry_run)
        return call.answer_value(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "code": 201,
            },
            status=201,
        )

    async def _request_token(self, call: Call, resource: APIResource) -> web.StreamResponse:
        """Answer a TokenRequest with a token that this server accepts."""
        context = self._writer.context(call, "CreateOptions", "token")
        decoded = decode_body(await call.body(), call.header("Content-Type"), self._token)
        spec = _admitted(context, self._token, decoded.obj).setdefault("spec", {})
        account = self._registry.get(resource, call.namespace, call.info.name)
        if not spec.get("audiences"):
            spec["audiences"] = [AUDIENCE]
        spec.setdefault("expirationSeconds", 3600)
        _check_token_request(spec)
        seconds = spec["expirationSeconds"]
        token = self._issued.issue(
            account.namespace,
            account.name,
            account.uid,
            audiences=spec["audiences"],
            seconds=seconds,
            bound=self._bound(call, spec.get("boundObjectRef")),
        )
        return call.answer_value(
            {
                "kind": "TokenRequest",
                "apiVersion": "authentication.k8s.io/v1",
                "metadata": {
                    "name": account.name,
                    "namespace": account.namespace,
                    "creationTimestamp": self._registry.now(),
                },
                "spec": spec,
                "status": {"token": token, "expirationTimestamp": self._registry.now(seconds)},
            },
            status=201,
        )

    def _bound(self, call: Call, reference: Object | None) -> Bound | None:
        """Return the object that a token is bound to, which must exist."""
        if not reference:
            return None
        kind, name = reference.get("kind", ""), reference.get("name", "")
        wanted = self._binds.get(kind)
        if wanted is None:
            raise refusal.bad_request(f"cannot bind token for serviceaccount to a {kind or 'none'}")
        entry = self._registry.get(wanted, call.namespace if wanted.namespaced else "", name)
        if reference.get("uid") not in {None, "", entry.uid}:
            raise refusal.conflict(
                wanted,
                name,
                f"the UID in the bound object reference ({reference['uid']}) does not match the "
                f"UID in record. The object might have been deleted and then recreated",
            )
        return Bound(wanted.storage, entry.key, entry.uid)

    async def _ask_node(self, name: str, call: Call, resource: APIResource) -> web.StreamResponse:
        entry = self._registry.get(resource, call.namespace, call.info.name)
        found = self._registry.decode(entry)
        if resource.kind == "Pod" and not found["spec"].get("nodeName"):
            raise refusal.bad_request(f"pod {call.info.name} does not have a host assigned")
        raise refusal.bad_request(
            f"the subresource {name} needs a node's kubelet, and this server has none"
        )

    async def _evict(self, call: Call, resource: APIResource) -> web.StreamResponse:
        context = self._writer.context(call, "CreateOptions", "eviction")
        eviction = APIResource(
            "policy",
            "v1",
            "evictions",
            "Eviction",
            schema=facts().schema("policy", "v1", "Eviction"),
        )
        decoded = decode_body(await call.body(), call.header("Content-Type"), eviction)
        given = decoded.obj["metadata"].get("name", "")
        if given != call.info.name:
            raise refusal.bad_request("name in URL does not match name in Eviction object")
        wanted = _admitted(context, eviction, decoded.obj).get("deleteOptions") or {}
        options = self._writer.delete_options(call, resource, b"", wanted)
        if context.dry_run:  # either place is enough
            options = msgspec.structs.replace(options, dry_run=True)
        self._registry.evict(resource, call.namespace, call.info.name, options)
        return call.answer_value(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "code": 201,
            },
            status=201,
        )


def _admitted(context: WriteContext, resource: APIResource, obj: Object) -> Object:
    """Return an object as policies and webhooks admit it."""
    if context.admission is None:
        return obj
    whole = context.admission.mutate_whole("CREATE", whole_of(resource, obj), None)
    context.admission.validate_whole("CREATE", whole, None)
    return whole


_SHORTEST_TOKEN, _LONGEST_TOKEN = 600, 1 << 32


def _check_token_request(spec: Object) -> None:
    seconds = spec["expirationSeconds"]
    why = ""
    if seconds < _SHORTEST_TOKEN:
        why = "may not specify a duration less than 10 minutes"
    elif seconds > _LONGEST_TOKEN:
        why = "may not specify a duration larger than 2^32 seconds"
    if why:
        cause = invalid_value("spec.expirationSeconds", seconds, why)
        raise refusal.invalid("TokenRequest", "authentication.k8s.io", "", [cause])


def _path(text: str) -> list[str]:
    return text.strip(".").split(".")


def _at(obj: Any, path: str) -> Any:
    for key in _path(path):
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def custom_scale(resource: APIResource, obj: Object, lacking: int | None = None) -> Object:
    """Return spec and status of a custom object's scale.

    Args:
        resource: knows their paths.
        obj: the object.
        lacking: the default for an object without replicas.

    Raises:
        StatusError: 500, the object has no replicas and there is no default.
    """
    assert resource.custom is not None  # noqa: S101 - asked for custom resources only
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


def set_custom_replicas(resource: APIResource, obj: Object, replicas: int) -> None:
    """Set the replicas in the custom resource's field."""
    assert resource.custom is not None  # noqa: S101 - asked for custom resources only
    *parents, last = _path(resource.custom["scale"]["specReplicasPath"])
    for key in parents:
        obj = obj.setdefault(key, {})
    obj[last] = replicas
