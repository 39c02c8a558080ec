"""Subresources such as status and scale, and bindings."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from aiohttp.web_response import StreamResponse

from listwatch.apiserver import refusal
from listwatch.apiserver.access.issued_tokens import AUDIENCE, Bound, IssuedTokens
from listwatch.apiserver.admission.chain import whole_of
from listwatch.apiserver.api.body import decode_body
from listwatch.apiserver.api.reading import Reader
from listwatch.apiserver.api.scale import Scales
from listwatch.apiserver.api.writing import Writer
from listwatch.apiserver.http.call import Call
from listwatch.apiserver.kinds.kind import carry
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.deletion import evict
from listwatch.apiserver.storage.registry import Registry, WriteContext
from listwatch.apiserver.storage.store import Entry
from listwatch.schema.causes import invalid_value, not_supported
from listwatch.schema.facts import ANY, facts

Object = dict[str, Any]
Handler = Callable[[Call, APIResource], Awaitable[StreamResponse]]


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
        self._scales = Scales(registry, writer)

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
            return self._scales.handler(verb)
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
        async def update(call: Call, resource: APIResource) -> StreamResponse:
            return await self._writer.update(call, resource, name)

        async def patch(call: Call, resource: APIResource) -> StreamResponse:
            return await self._writer.patch(call, resource, name)

        return {"get": self._reader.get, "update": update, "patch": patch}[verb]

    # -- others ------------------------------------------------------------------------------

    async def _finalize(self, call: Call, resource: APIResource) -> StreamResponse:
        context = self._writer.context(call, "UpdateOptions", "finalize")
        decoded = decode_body(await call.body(), call.header("Content-Type"), resource)
        self._writer.check_problems(call, resource, decoded.problems)
        given = decoded.obj["metadata"].setdefault("name", call.info.name)
        if given != call.info.name:
            raise refusal.bad_request(
                f"the name of the object ({given}) does not match the name on the URL "
                f"({call.info.name})"
            )

        def produce(old: Object | None, _: Entry | None) -> Object:
            assert old is not None  # noqa: S101 - update has refused a missing object
            carry(decoded.obj, old, "status")
            return decoded.obj

        entry, _ = self._registry.update(resource, "", given, produce, context, is_put=True)
        return self._reader.answer_entry(call, resource, entry)

    async def bind(self, call: Call, resource: APIResource) -> StreamResponse:
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

    async def _request_token(self, call: Call, resource: APIResource) -> StreamResponse:
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

    async def _ask_node(self, name: str, call: Call, resource: APIResource) -> StreamResponse:
        entry = self._registry.get(resource, call.namespace, call.info.name)
        found = self._registry.decode(entry)
        if resource.kind == "Pod" and not found["spec"].get("nodeName"):
            raise refusal.bad_request(f"pod {call.info.name} does not have a host assigned")
        raise refusal.bad_request(
            f"the subresource {name} needs a node's kubelet, and this server has none"
        )

    async def _evict(self, call: Call, resource: APIResource) -> StreamResponse:
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
        if context.dry_run:  # the query or the body may request it
            options = msgspec.structs.replace(options, dry_run=True)
        evict(self._registry, resource, call.namespace, call.info.name, options)
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
    """Return an object after policies and webhooks have admitted it."""
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
