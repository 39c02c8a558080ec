"""Reviews: questions about users and permissions, answered and not stored."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp.web_response import StreamResponse

from listwatch.apiserver import refusal
from listwatch.apiserver.access.auth import Access
from listwatch.apiserver.api.body import decode_body
from listwatch.apiserver.api.writing import Writer
from listwatch.apiserver.http.call import Call
from listwatch.apiserver.http.request_info import RequestInfo
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.field_sets import created_fields
from listwatch.apiserver.storage.managed_fields import Managed, Owner
from listwatch.apiserver.storage.registry import Registry
from listwatch.apiserver.user import User
from listwatch.schema.causes import Cause, invalid_value

Object = dict[str, Any]
Handler = Callable[[Call, APIResource], Awaitable[StreamResponse]]

_AUTHORIZATION = "authorization.k8s.io"


class Reviews:
    """Finds the handler of a review. For one event loop."""

    def __init__(self, registry: Registry, writer: Writer, access: Access) -> None:
        self._registry = registry
        self._writer = writer
        self._access = access

    def handler(self, resource: APIResource) -> Handler | None:
        """Return the handler of a review; None for any other resource."""
        reviews: Mapping[str, Callable[[Call, Object], Object]] = {
            "selfsubjectreviews": self._self_review,
            "tokenreviews": self._token_review,
            "selfsubjectaccessreviews": self._self_access,
            "selfsubjectrulesreviews": self._self_rules,
            "subjectaccessreviews": self._subject_access,
            "localsubjectaccessreviews": self._subject_access,
        }
        answer = reviews.get(resource.name)
        if resource.group not in {_AUTHORIZATION, "authentication.k8s.io"} or answer is None:
            return None

        async def handle(call: Call, resource: APIResource) -> StreamResponse:
            self._writer.context(call, "CreateOptions")
            decoded = decode_body(await call.body(), call.header("Content-Type"), resource)
            self._writer.check_problems(call, resource, decoded.problems)
            obj = decoded.obj
            status = answer(call, obj.get("spec") or {})
            value: Object = {
                "kind": resource.kind,
                "apiVersion": resource.api_version,
                "metadata": self._owned(call, resource, obj),
            }
            if "spec" in resource.schema.fields:
                # the response does not repeat the question of a rules review
                asked = resource.name != "selfsubjectrulesreviews"
                value["spec"] = (obj.get("spec") or {}) if asked else {}
            value["status"] = status
            if resource.name == "selfsubjectreviews":
                value["metadata"]["creationTimestamp"] = self._registry.now()
            return call.answer_value(value, status=201)

        return handle

    def _owned(self, call: Call, resource: APIResource, obj: Object) -> Object:
        """Return a response's metadata, with the owners of the question's fields."""
        metadata: Object = obj["metadata"]
        if resource.name in {"selfsubjectreviews", "selfsubjectrulesreviews"}:
            return metadata
        fields = created_fields(obj, resource.schema)
        owner = Owner("Update", call.manager, resource.api_version)
        owners = Managed.entries_of_new(None, owner, fields, now=self._registry.now())
        return {**metadata, "managedFields": owners} if owners else metadata

    @staticmethod
    def _user_info(user: User) -> Object:
        info: Object = {"username": user.name, "groups": list(user.groups)}
        if user.uid:
            info["uid"] = user.uid
        if user.extra:
            info["extra"] = dict(user.extra)
        return info

    def _self_review(self, call: Call, _: Object) -> Object:
        return {"userInfo": self._user_info(call.user)}

    def _token_review(self, _: Call, spec: Object) -> Object:
        if not spec.get("token"):
            raise refusal.bad_request("token is required for TokenReview in authentication")
        user = self._access.by_token(spec["token"])
        if user is None:
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": self._user_info(user)}

    @staticmethod
    def _asked(spec: Object) -> RequestInfo:
        path = spec.get("nonResourceAttributes")
        if path is not None:
            return RequestInfo(path.get("path", ""), "", verb=path.get("verb", ""))
        wanted = spec.get("resourceAttributes") or {}
        return RequestInfo(
            "",
            "",
            is_resource=True,
            verb=wanted.get("verb", ""),
            group=wanted.get("group", ""),
            version=wanted.get("version", ""),
            resource=wanted.get("resource", ""),
            subresource=wanted.get("subresource", ""),
            namespace=wanted.get("namespace", ""),
            name=wanted.get("name", ""),
        )

    def _decision(self, user: User, spec: Object) -> Object:
        allowed, reason = self._access.decide(user, self._asked(spec))
        return {"allowed": allowed, **({"reason": reason} if reason else {})}

    @staticmethod
    def _check_attributes(spec: Object, causes: list[Cause]) -> None:
        paths = spec.get("nonResourceAttributes")
        if ("resourceAttributes" in spec) == ("nonResourceAttributes" in spec):
            # the server shows its internal value, with internal names
            inside = paths and {"Path": paths.get("path", ""), "Verb": paths.get("verb", "")}
            causes.append(
                invalid_value(
                    "spec.resourceAttributes"
                    if "resourceAttributes" not in spec
                    else "spec.nonResourceAttributes",
                    inside,
                    "exactly one of nonResourceAttributes or resourceAttributes must be specified"
                    if "resourceAttributes" not in spec
                    else "cannot be specified in combination with resourceAttributes",
                )
            )
        if causes:
            raise refusal.invalid("", _AUTHORIZATION, "", causes)

    def _self_access(self, call: Call, spec: Object) -> Object:
        self._check_attributes(spec, [])
        return self._decision(call.user, spec)

    def _subject_access(self, call: Call, spec: Object) -> Object:
        causes = []
        if not spec.get("user") and not spec.get("groups"):
            causes.append(
                invalid_value("spec.user", "", "at least one of user or group must be specified")
            )
        self._check_attributes(spec, causes)
        if call.info.resource == "localsubjectaccessreviews":
            namespace = (spec.get("resourceAttributes") or {}).get("namespace", "")
            if namespace != call.info.namespace:
                raise refusal.bad_request(
                    f"spec.resourceAttributes.namespace must match namespace: {call.info.namespace}"
                )
        user = User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""))
        return self._decision(user, spec)

    def _self_rules(self, call: Call, spec: Object) -> Object:
        namespace = spec.get("namespace", "")
        if not namespace:
            raise refusal.bad_request("no namespace on request")
        rules = list(self._access.rules_for(call.user, namespace))
        resource_rules: list[Object] = []
        path_rules: list[Object] = []
        for rule in rules:
            if rule.resources:
                row: Object = {
                    "verbs": list(rule.verbs),
                    "apiGroups": list(rule.apiGroups),
                    "resources": list(rule.resources),
                }
                if rule.resourceNames:
                    row["resourceNames"] = list(rule.resourceNames)
                resource_rules.append(row)
            if rule.nonResourceURLs:
                path_rules.append(
                    {"verbs": list(rule.verbs), "nonResourceURLs": list(rule.nonResourceURLs)}
                )
        return {
            "resourceRules": resource_rules,
            "nonResourceRules": path_rules,
            "incomplete": False,
        }
