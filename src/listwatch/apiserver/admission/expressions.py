"""A request's variables for the expressions of policies and match conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from listwatch.apiserver.admission.matching import (
    Attributes,
    Cluster,
    Object,
    in_version,
    request_of,
)
from listwatch.apiserver.user import Question, User
from listwatch.cel.authorization import RESOURCE_CHECK, AccessQuestion, Authorizer, Decision

if TYPE_CHECKING:
    from listwatch.apiserver.kinds.resources import APIResource
    from listwatch.cel import Value

#: Returns whether a user may do something, and what grants the permission.
Decide = Callable[[User, Question], tuple[bool, str]]


class Subject:
    """The variables of all policies' expressions for one request and resource.

    Args:
        attributes: the request.
        matched: the resource that the rules matched.
        cluster: finds namespaces.
        decide: answers the questions to `authorizer`.
    """

    def __init__(
        self,
        attributes: Attributes,
        matched: APIResource,
        cluster: Cluster,
        decide: Decide,
    ) -> None:
        self.attributes = attributes
        self.matched = matched
        source = attributes.resource
        sub = attributes.subresource
        self.variables: dict[str, Value] = {
            "object": in_version(attributes.obj, source, matched, sub),
            "oldObject": in_version(attributes.old, source, matched, sub),
            "request": request_of(attributes, matched),
            "namespaceObject": None,
        }
        namespace = attributes.namespace
        if namespace and not attributes.is_of_namespace:
            self.variables["namespaceObject"] = _namespace_value(cluster.namespace(namespace))
        authorizer = Authorizer(_answers(decide, attributes.user))
        question = AccessQuestion(
            group=source.group,
            resource=source.name,
            subresource=attributes.subresource,
            namespace=attributes.namespace,
            name=attributes.name,
        )
        self.variables["authorizer"] = authorizer
        self.variables["authorizer.requestResource"] = Authorizer(
            authorizer.decide, question, RESOURCE_CHECK.name
        )

    def with_params(self, params: Object | None) -> dict[str, Value]:
        """Return the variables with `params`."""
        return {**self.variables, "params": params}


#: Metadata of a namespace that expressions don't see.
_HIDDEN = frozenset(("managedFields", "ownerReferences", "selfLink"))


def _namespace_value(namespace: Object | None) -> Object | None:
    """Return a namespace as expressions see it: times are strings, whatever their type."""
    if namespace is None:
        return None
    metadata = {key: each for key, each in namespace["metadata"].items() if key not in _HIDDEN}
    return {**namespace, "metadata": metadata}


def _answers(decide: Decide, user: User) -> Callable[[AccessQuestion], Decision]:
    def answer(asked: AccessQuestion) -> Decision:
        who = user
        if asked.service_account is not None:
            namespace, name = asked.service_account
            groups = (
                "system:serviceaccounts",
                f"system:serviceaccounts:{namespace}",
                "system:authenticated",
            )
            who = User(f"system:serviceaccount:{namespace}:{name}", groups)
        question = Question(
            asked.verb,
            asked.path,
            asked.group,
            asked.resource,
            asked.subresource,
            asked.namespace,
            asked.name,
        )
        return Decision(*decide(who, question))

    return answer
