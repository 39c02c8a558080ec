"""Which requests an admission webhook or a policy applies to.

The rules are those of `apiserver/pkg/admission/plugin`: `webhook/predicates`, `policy/matching` and
`webhook/matchconditions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from listwatch.apiserver.kinds.resources import APIResource
from listwatch.schema.facts import facts
from listwatch.selector import LabelSelector, SelectorError

if TYPE_CHECKING:
    from listwatch.apiserver.user import User

Object = dict[str, Any]
View = Mapping[str, Any]

#: Resources that configure admission. They are exempt: a policy could lock out its administrator.
_CONFIGURATION = frozenset(
    (
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "validatingwebhookconfigurations",
    )
)


class GroupVersionKind(NamedTuple):
    """The kind of an object, with its version."""

    group: str
    version: str
    kind: str


def kind_for(resource: APIResource, subresource: str) -> GroupVersionKind:
    """Return the kind of the object written to a resource or one of its subresources."""
    sub = resource.subresources.get(subresource)
    if sub is None:
        return GroupVersionKind(resource.group, resource.version, resource.kind)
    if not sub.version:
        return GroupVersionKind(resource.group, resource.version, sub.kind)
    return GroupVersionKind(sub.group, sub.version, sub.kind)


def written(resource: APIResource, subresource: str) -> APIResource:
    """Return the resource with the schema of the written object, which may be a Scale."""
    group, version, kind = kind_for(resource, subresource)
    if (group, version, kind) == kind_for(resource, ""):
        return resource
    return APIResource(
        group, version, subresource, kind, schema=facts().schema(group, version, kind)
    )


class Attributes(msgspec.Struct):
    """A request as admission sees it.

    Attributes:
        operation: "CREATE", "UPDATE", "DELETE" or "CONNECT".
        resource: the resource in the version of the request.
        user: the user.
        namespace: of the object; for a namespace its own name; "" if it has none.
        name: of the object; "" if the server generates it.
        subresource: "" for the object itself.
        obj: the object that is written, with kind and apiVersion, in the version of the request;
            None in a deletion.
        old: the current state in the same form; None in a creation.
        options: CreateOptions, UpdateOptions, PatchOptions or DeleteOptions, with their kind.
        dry_run: whether nothing is stored.
        warnings: receives warnings for the client.
        annotations: receives the audit annotations of the request.
    """

    operation: str
    resource: APIResource
    user: User
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    obj: Object | None = None
    old: Object | None = None
    options: Object | None = None
    dry_run: bool = False
    warnings: list[str] = []
    annotations: dict[str, str] = {}

    @property
    def kind(self) -> GroupVersionKind:
        """The kind of the written object."""
        return kind_for(self.resource, self.subresource)

    @property
    def is_of_namespace(self) -> bool:
        """Whether the object is a namespace, or a part of one."""
        return self.resource.group == "" and self.resource.name == "namespaces"

    @property
    def configures_admission(self) -> bool:
        """Whether policies or webhooks are written: they never apply to each other."""
        return (
            self.resource.group == "admissionregistration.k8s.io"
            and self.resource.name in _CONFIGURATION
        )


class Cluster(Protocol):
    """What admission needs to know of other objects; `storage/cluster.py` implements it."""

    def namespace(self, name: str) -> Object | None:
        """Return a namespace as a new dict, or None."""

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """Return the labels of a namespace.

        Raises:
            NotFoundError: 404, the namespace does not exist.
        """

    def equivalents(self, resource: APIResource, subresource: str) -> Sequence[APIResource]:
        """Return the other versions and groups that serve the same objects."""

    def of_kind(self, api_version: str, kind: str) -> APIResource | None:
        """Return the resource of a kind, or None."""

    def resource(self, group: str, version: str, plural: str) -> APIResource | None:
        """Return the resource of this plural name, or None."""

    def find(self, resource: APIResource, namespace: str, name: str) -> Object | None:
        """Return an object in its resource's version, or None."""

    def select(
        self, resource: APIResource, namespace: str, selector: LabelSelector
    ) -> Sequence[Object]:
        """Return the objects with these labels, in a namespace or ("") in all."""


class _Rule(msgspec.Struct, frozen=True):
    """One rule of a webhook or policy."""

    groups: frozenset[str]
    versions: frozenset[str]
    operations: frozenset[str]
    resources: tuple[tuple[str, str], ...]
    scope: str
    names: frozenset[str]

    @classmethod
    def read(cls, rule: View) -> _Rule:
        parts = (each.partition("/") for each in rule.get("resources") or ())
        return cls(
            frozenset(rule.get("apiGroups") or ()),
            frozenset(rule.get("apiVersions") or ()),
            frozenset(rule.get("operations") or ()),
            tuple((name, subresource) for name, _, subresource in parts),
            rule.get("scope") or "*",
            frozenset(rule.get("resourceNames") or ()),
        )

    def covers(self, attributes: Attributes, resource: APIResource) -> bool:
        """Return whether the rule would cover the request if it were for this resource."""
        return (
            ("*" in self.operations or attributes.operation in self.operations)
            and ("*" in self.groups or resource.group in self.groups)
            and ("*" in self.versions or resource.version in self.versions)
            and any(
                name in {"*", resource.name} and subresource in {"*", attributes.subresource}
                for name, subresource in self.resources
            )
            and self._in_scope(attributes)
            and (not self.names or attributes.name in self.names)
        )

    def _in_scope(self, attributes: Attributes) -> bool:
        if self.scope == "*":
            return True
        namespaced = bool(attributes.namespace) and not attributes.is_of_namespace
        return namespaced if self.scope == "Namespaced" else not namespaced


class Criteria:
    """The rules and selectors of a webhook, a policy or a binding, parsed once. Immutable.

    Args:
        rules: as in `rules` of a webhook or `resourceRules`; without any, everything matches if
            `without_rules` is true and nothing otherwise.
        excluded: as in `excludeResourceRules`.
        equivalent: also match other versions and groups of a resource.
        namespaces: a label selector; None matches everything, like {}.
        objects: the same for objects.
        without_rules: whether no rules match everything.
    """

    __slots__ = ("_equivalent", "_excluded", "_namespaces", "_objects", "_rules", "_without_rules")

    def __init__(
        self,
        rules: Sequence[View],
        *,
        excluded: Sequence[View] = (),
        equivalent: bool = True,
        namespaces: View | None = None,
        objects: View | None = None,
        without_rules: bool = False,
    ) -> None:
        self._rules = tuple(map(_Rule.read, rules))
        self._excluded = tuple(map(_Rule.read, excluded))
        self._equivalent = equivalent
        self._namespaces = _selector(namespaces)
        self._objects = _selector(objects)
        self._without_rules = without_rules

    @classmethod
    def of_webhook(cls, webhook: View) -> Criteria:
        """Parse the rules and selectors of one webhook of a configuration."""
        return cls(
            webhook.get("rules") or (),
            equivalent=webhook.get("matchPolicy") == "Equivalent",
            namespaces=webhook.get("namespaceSelector"),
            objects=webhook.get("objectSelector"),
        )

    @classmethod
    def of_match_resources(cls, match: View | None) -> Criteria:
        """Parse `matchConstraints` of a policy or `matchResources` of a binding."""
        match = match or {}
        return cls(
            match.get("resourceRules") or (),
            excluded=match.get("excludeResourceRules") or (),
            equivalent=match.get("matchPolicy") == "Equivalent",
            namespaces=match.get("namespaceSelector"),
            objects=match.get("objectSelector"),
            without_rules=True,
        )

    def match(self, attributes: Attributes, cluster: Cluster) -> APIResource | None:
        """Return the resource that matched: the request's own or an equivalent one.

        Returns:
            None if nothing matched.

        Raises:
            NotFoundError: 404, the namespace does not exist, and its labels matter.
        """
        # The namespace comes last: a missing one counts only if everything else matches.
        found = self._resource(attributes, cluster)
        if found is None or not self._selects_object(attributes):
            return None
        return found if self._selects_namespace(attributes, cluster) else None

    def _resource(self, attributes: Attributes, cluster: Cluster) -> APIResource | None:
        if self._excluded and self._covered(self._excluded, attributes, cluster) is not None:
            return None
        if not self._rules and self._without_rules:
            return attributes.resource
        return self._covered(self._rules, attributes, cluster)

    def _covered(
        self, rules: tuple[_Rule, ...], attributes: Attributes, cluster: Cluster
    ) -> APIResource | None:
        resource = attributes.resource
        if any(rule.covers(attributes, resource) for rule in rules):
            return resource
        if self._equivalent:
            others = cluster.equivalents(resource, attributes.subresource)
            for rule in rules if others else ():
                for other in others:
                    if rule.covers(attributes, other):
                        return other
        return None

    def _selects_object(self, attributes: Attributes) -> bool:
        if self._objects.is_everything:
            return True
        return any(
            self._objects.matches(each["metadata"].get("labels") or {})
            for each in (attributes.obj, attributes.old)
            if each is not None and isinstance(each.get("metadata"), Mapping)
        )

    def _selects_namespace(self, attributes: Attributes, cluster: Cluster) -> bool:
        if self._namespaces.is_everything:
            return True
        if not attributes.is_of_namespace and not attributes.namespace:
            return True
        if (
            attributes.is_of_namespace
            and not attributes.subresource
            and attributes.operation in {"CREATE", "UPDATE"}
            and attributes.obj is not None
        ):
            # the store does not have these labels yet
            labels = attributes.obj["metadata"].get("labels") or {}
        else:
            labels = cluster.namespace_labels(attributes.namespace or attributes.name)
        return self._namespaces.matches(labels)


def _selector(selector: View | None) -> LabelSelector:
    """Parse a selector; validation has refused invalid ones."""
    try:
        return LabelSelector.from_dict(selector or {})
    except SelectorError:
        return LabelSelector(nothing=True)


def in_version(
    obj: Object | None, source: APIResource, target: APIResource, subresource: str = ""
) -> Object | None:
    """Return an object of one resource in another resource's version, with kind and apiVersion.

    Returns a copy if the form differs; otherwise, as for a Scale, the same object.
    """
    if obj is None or source is target:
        return obj
    if kind_for(source, subresource) == kind_for(target, subresource):
        return obj
    named = {"apiVersion": target.api_version, "kind": target.kind}
    inner: Object = {key: each for key, each in obj.items() if key not in named}
    if source.versions is not None and target.versions is not None:
        inner = source.versions.to(inner, target.versions)
    if source.convert is not None:
        inner = source.convert.inward(inner)
    if target.convert is not None:
        inner = target.convert.outward(inner)
    return {**named, **inner}


def request_of(attributes: Attributes, matched: APIResource) -> Object:
    """Return an AdmissionRequest without the objects, uid and empty strings."""
    resource = attributes.resource
    request: Object = {
        "kind": kind_for(matched, attributes.subresource)._asdict(),
        "resource": _gvr(matched),
        "subResource": attributes.subresource,
        "requestKind": attributes.kind._asdict(),
        "requestResource": _gvr(resource),
        "requestSubResource": attributes.subresource,
        "name": attributes.name,
        "namespace": attributes.namespace,
        "operation": attributes.operation,
        "userInfo": user_info(attributes.user),
        "dryRun": attributes.dry_run,
        "options": attributes.options,
    }
    return {key: value for key, value in request.items() if value not in ("", None)}


def _gvr(resource: APIResource) -> Object:
    return {"group": resource.group, "version": resource.version, "resource": resource.name}


def user_info(user: User) -> Object:
    """Return the user in the form of reviews, without empty fields."""
    info: Object = {
        "username": user.name,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {key: list(values) for key, values in user.extra.items()},
    }
    return {key: value for key, value in info.items() if value}
