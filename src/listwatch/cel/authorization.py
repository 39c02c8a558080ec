"""Kubernetes' functions that ask what the user of a request may do.

Rules: k8s.io/apiserver, pkg/cel/library/authz.go. The caller passes an `Authorizer`, with the
function that decides, as the variable `authorizer`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from listwatch.cel.functions import Function, function, method
from listwatch.cel.types import BOOL, STRING, Type, object_named

if TYPE_CHECKING:
    from collections.abc import Callable

AUTHORIZER = object_named("kubernetes.authorization.Authorizer")
_PATH_CHECK = object_named("kubernetes.authorization.PathCheck")
_GROUP_CHECK = object_named("kubernetes.authorization.GroupCheck")
RESOURCE_CHECK = object_named("kubernetes.authorization.ResourceCheck")
_DECISION = object_named("kubernetes.authorization.Decision")


@dataclass(frozen=True, slots=True)
class AccessQuestion:
    """A question: may the user (or a service account) do this?"""

    verb: str = ""
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""
    label_selector: str = ""
    service_account: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer. `error` is empty unless the question could not be decided."""

    type_name: ClassVar[str] = _DECISION.name
    allowed: bool
    reason: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Authorizer:
    """The value of the variable `authorizer`, and of each step of a question."""

    decide: Callable[[AccessQuestion], Decision]
    question: AccessQuestion = AccessQuestion()
    type_name: str = AUTHORIZER.name


def _step(name: str, of: Type, result: Type, field_name: str) -> Function:
    def call(value: Authorizer, text: str) -> Authorizer:
        question = replace(value.question, **{field_name: text})  # type: ignore[arg-type]  # a text
        return replace(value, question=question, type_name=result.name)

    label = of.name.rpartition(".")[2].lower()
    return function(name, call, method(f"{label}_{name.lower()}", of, STRING, result))


def _service_account(value: Authorizer, namespace: str, name: str) -> Authorizer:
    return replace(value, question=replace(value.question, service_account=(namespace, name)))


def _check(value: Authorizer, verb: str) -> Decision:
    return value.decide(replace(value.question, verb=verb))


AUTHORIZATION: tuple[Function, ...] = (
    _step("path", AUTHORIZER, _PATH_CHECK, "path"),
    function(
        "serviceAccount",
        _service_account,
        method("authorizer_serviceaccount", AUTHORIZER, STRING, STRING, AUTHORIZER),
    ),
    _step("group", AUTHORIZER, _GROUP_CHECK, "group"),
    _step("resource", _GROUP_CHECK, RESOURCE_CHECK, "resource"),
    _step("subresource", RESOURCE_CHECK, RESOURCE_CHECK, "subresource"),
    _step("namespace", RESOURCE_CHECK, RESOURCE_CHECK, "namespace"),
    _step("name", RESOURCE_CHECK, RESOURCE_CHECK, "name"),
    _step("fieldSelector", RESOURCE_CHECK, RESOURCE_CHECK, "field_selector"),
    _step("labelSelector", RESOURCE_CHECK, RESOURCE_CHECK, "label_selector"),
    function(
        "check",
        _check,
        method("pathcheck_check", _PATH_CHECK, STRING, _DECISION),
        method("resourcecheck_check", RESOURCE_CHECK, STRING, _DECISION),
    ),
    function("allowed", lambda answer: answer.allowed, method("decision_allowed", _DECISION, BOOL)),
    function("reason", lambda answer: answer.reason, method("decision_reason", _DECISION, STRING)),
    function(
        "errored", lambda answer: bool(answer.error), method("decision_errored", _DECISION, BOOL)
    ),
    function("error", lambda answer: answer.error, method("decision_error", _DECISION, STRING)),
)
