"""What the expressions of policies and match conditions speak of, and how they run.

The rules are those of `apiserver/pkg/admission/plugin/cel`. Every evaluation has a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from listwatch.apiserver.admission.matching import Attributes, Cluster, Object, in_version, kind_for
from listwatch.apiserver.user import Question, User
from listwatch.cel import (
    PER_CALL_LIMIT,
    CompilationError,
    CostLimitExceededError,
    Environment,
    EvaluationError,
    InstantiationError,
    Program,
    Type,
    Value,
    compile_expression,
)
from listwatch.cel.authorization import AUTHORIZER, AccessQuestion, Authorizer, Decision
from listwatch.cel.types import (
    BOOL,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    list_of,
    map_of,
    object_named,
)
from listwatch.cel.values import parse_timestamp

if TYPE_CHECKING:
    from listwatch.apiserver.kinds.resources import APIResource

BUDGET = 10_000_000
"""What all expressions of one policy may cost for one request and one parameter."""
MATCH_BUDGET = 2_500_000
"""What all match conditions of one policy or webhook may cost for one request."""

_OUT_OF_BUDGET = (
    "validation failed due to running out of cost budget, no further validation rules will be run"
)
_RESOURCE_CHECK = object_named("kubernetes.authorization.ResourceCheck")
_VARIABLES = object_named("kubernetes.variables")
_STRINGS = list_of(STRING)
_TEXTS = map_of(STRING, STRING)


def _of(prefix: str, **fields: Type) -> tuple[Type, Mapping[str, Type]]:
    return object_named(f"kubernetes.{prefix}"), fields


_GVK = _of("GroupVersionKind", group=STRING, version=STRING, kind=STRING)
_GVR = _of("GroupVersionResource", group=STRING, version=STRING, resource=STRING)
_USER = _of(
    "UserInfo", username=STRING, uid=STRING, groups=_STRINGS, extra=map_of(STRING, _STRINGS)
)
_REQUEST = _of(
    "AdmissionRequest",
    kind=_GVK[0],
    resource=_GVR[0],
    subResource=STRING,
    requestKind=_GVK[0],
    requestResource=_GVR[0],
    requestSubResource=STRING,
    name=STRING,
    namespace=STRING,
    operation=STRING,
    userInfo=_USER[0],
    dryRun=BOOL,
    options=DYN,
)
_NAMESPACE_METADATA = _of(
    "NamespaceMetadata",
    name=STRING,
    generateName=STRING,
    namespace=STRING,
    labels=_TEXTS,
    annotations=_TEXTS,
    UID=STRING,
    creationTimestamp=TIMESTAMP,
    deletionGracePeriodSeconds=INT,
    deletionTimestamp=TIMESTAMP,
    generation=INT,
    resourceVersion=STRING,
    finalizers=_STRINGS,
)
_NAMESPACE_CONDITION = _of(
    "NamespaceCondition",
    status=STRING,
    type=STRING,
    lastTransitionTime=TIMESTAMP,
    message=STRING,
    reason=STRING,
)
_NAMESPACE_SPEC = _of("NamespaceSpec", finalizers=_STRINGS)
_NAMESPACE_STATUS = _of(
    "NamespaceStatus", conditions=list_of(_NAMESPACE_CONDITION[0]), phase=STRING
)
_NAMESPACE = _of(
    "Namespace",
    metadata=_NAMESPACE_METADATA[0],
    spec=_NAMESPACE_SPEC[0],
    status=_NAMESPACE_STATUS[0],
)
_OBJECTS: Mapping[str, Mapping[str, Type]] = {
    kind.name: fields
    for kind, fields in (
        _GVK,
        _GVR,
        _USER,
        _REQUEST,
        _NAMESPACE,
        _NAMESPACE_METADATA,
        _NAMESPACE_CONDITION,
        _NAMESPACE_SPEC,
        _NAMESPACE_STATUS,
    )
}


#: Tells whether a user may do something, and what gives that right.
Decide = Callable[[User, Question], tuple[bool, str]]


class ExpressionError(Exception):
    """One expression can't be evaluated; others may be."""


class OutOfBudgetError(Exception):
    """All expressions together cost too much; nothing more is evaluated."""

    def __init__(self) -> None:
        super().__init__(_OUT_OF_BUDGET)


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression, or why it does not compile."""

    source: str
    program: Program | None
    error: str = ""


@dataclass(slots=True)
class Vocabulary:
    """What the expressions of one policy may speak of, which grows with its variables.

    Attributes:
        params: whether there is the variable `params`.
        authorizer: whether there is the variable `authorizer`.
        objects: types beside those of requests and namespaces.
        types: of variables, where they are not those that every expression has.
    """

    params: bool = False
    authorizer: bool = True
    objects: Mapping[str, Mapping[str, Type]] = field(default_factory=dict)
    types: Mapping[str, Type] = field(default_factory=dict)
    variables: dict[str, Expression] = field(default_factory=dict)
    _fields: dict[str, Type] = field(default_factory=dict)
    _composed: bool = False

    def environment(self) -> Environment:
        """Return the environment of the next expression."""
        known: dict[str, Type] = {
            "object": DYN,
            "oldObject": DYN,
            "request": _REQUEST[0],
            "namespaceObject": _NAMESPACE[0],
        }
        if self.params:
            known["params"] = DYN
        if self.authorizer:
            known["authorizer"] = AUTHORIZER
            known["authorizer.requestResource"] = _RESOURCE_CHECK
        objects: dict[str, Mapping[str, Type]] = {**_OBJECTS, **self.objects}
        if self._composed:
            known["variables"] = _VARIABLES
            objects[_VARIABLES.name] = dict(self._fields)
        return Environment({**known, **self.types}, objects)

    def compose(self, variables: Sequence[Mapping[str, Any]]) -> None:
        """Compile the variables of a policy, each of which may use those before it."""
        self._composed = True
        for each in variables:
            name = each.get("name", "")
            found = compile_as(each.get("expression", ""), self.environment())
            self.variables[name] = found
            self._fields[name] = DYN if found.program is None else _declared(found.program.type)


def _declared(kind: Type) -> Type:
    """Return the type that a variable has for those who use it; objects are not followed."""
    if kind.kind in {"list", "map"}:
        return Type(kind.kind, "", tuple(map(_declared, kind.parameters)))
    return DYN if kind.kind in {"object", "opaque", "type", "param", "error"} else kind


def compile_as(source: str, environment: Environment, *wanted: Type) -> Expression:
    """Compile an expression whose result is to be of one of these types; none means any."""
    try:
        program = compile_expression(source, environment)
    except CompilationError as error:
        return Expression(source, None, f"compilation failed: {error}")
    except InstantiationError as error:
        return Expression(source, None, str(error))
    if wanted and program.type not in wanted:
        shown = " ".join(_shown(one) for one in wanted)
        choice = shown if len(wanted) == 1 else f"one of [{shown}]"
        why = f"must evaluate to {choice} but got {_shown(program.type)}"
        return Expression(source, None, why)
    return Expression(source, program)


def _shown(kind: Type) -> str:
    return "null_type" if kind.kind == "null" else str(kind)


class Subject:
    """What the expressions of all policies are evaluated with for one request and resource.

    Args:
        attributes: the request.
        matched: the resource under which it is meant.
        cluster: has the namespaces.
        decide: answers what an expression asks of `authorizer`.
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
            authorizer.decide, question, _RESOURCE_CHECK.name
        )

    def with_params(self, params: Object | None) -> dict[str, Value]:
        """Return the variables with `params`."""
        return {**self.variables, "params": params}


def request_of(attributes: Attributes, matched: APIResource) -> Object:
    """Return the variable `request`: an AdmissionRequest without the objects; empty texts lack."""
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
    """Return who asks, as reviews show users; what is empty lacks."""
    info: Object = {
        "username": user.name,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {key: list(values) for key, values in user.extra.items()},
    }
    return {key: value for key, value in info.items() if value}


def _namespace_value(namespace: Object | None) -> Object | None:
    if namespace is None:
        return None
    metadata = dict(namespace["metadata"])
    metadata["UID"] = metadata.pop("uid", "")
    for key in ("creationTimestamp", "deletionTimestamp"):
        if metadata.get(key):
            metadata[key] = parse_timestamp(metadata[key])
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


class Evaluation:
    """Expressions evaluated with the same variables out of one budget."""

    def __init__(
        self, variables: Mapping[str, Value], vocabulary: Vocabulary, budget: int = BUDGET
    ) -> None:
        self.remaining = budget
        self._variables = dict(variables)
        if vocabulary.variables:
            self._variables["variables"] = _LazyVariables(vocabulary.variables, self)

    def run(self, expression: Expression) -> Value:
        """Return the value of an expression.

        Raises:
            ExpressionError: it does not compile, or fails.
            OutOfBudgetError: it takes more than is left of the budget.
        """
        if expression.program is None:
            raise ExpressionError(f"compilation error: {expression.error}")
        try:
            return self._spend(expression.program)
        except EvaluationError as error:
            why = f"expression '{expression.source}' resulted in error: {error}"
            raise ExpressionError(why) from None

    def _spend(self, program: Program) -> Value:
        limit = min(PER_CALL_LIMIT, self.remaining)
        try:
            value, cost = program.evaluate(self._variables, limit=limit)
        except CostLimitExceededError:
            if limit < PER_CALL_LIMIT:
                raise OutOfBudgetError from None
            self._take(limit)
            raise
        self._take(cost)
        return value

    def _take(self, cost: int) -> None:
        self.remaining -= cost
        if self.remaining < 0:
            raise OutOfBudgetError

    def variable(self, name: str, expression: Expression) -> Value:
        """Return the value of a variable of the policy.

        Raises:
            EvaluationError: it does not compile, or fails.
            OutOfBudgetError: it takes more than is left of the budget.
        """
        if expression.program is None:
            raise EvaluationError(
                f'composited variable "{name}" fails to compile: {expression.error}'
            )
        try:
            return self._spend(expression.program)
        except EvaluationError as error:
            raise EvaluationError(
                f'composited variable "{name}" fails to evaluate: {error}'
            ) from None


class _LazyVariables(Mapping[Value, Value]):
    """The variables of a policy, each of which is evaluated when it is first read, and once."""

    type_name = _VARIABLES.name

    def __init__(self, definitions: Mapping[str, Expression], evaluation: Evaluation) -> None:
        self._definitions = definitions
        self._evaluation = evaluation
        self._found: dict[str, Value | EvaluationError] = {}

    def __getitem__(self, name: Value) -> Value:
        assert isinstance(name, str)  # noqa: S101 - the checker lets nothing else through
        if name not in self._found:
            expression = self._definitions[name]
            try:
                self._found[name] = self._evaluation.variable(name, expression)
            except EvaluationError as error:
                self._found[name] = error
        found = self._found[name]
        if isinstance(found, EvaluationError):
            raise found
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._definitions

    def __iter__(self) -> Iterator[Value]:
        return iter(self._definitions)

    def __len__(self) -> int:
        return len(self._definitions)


class MatchConditions:
    """The match conditions of a webhook or a policy, compiled once. Immutable.

    Args:
        conditions: as in `matchConditions`.
        fails: whether an error refuses the request; else what errs is not asked about it.
        vocabulary: what the conditions speak of; None is what those of a webhook have.
    """

    def __init__(
        self,
        conditions: Sequence[Mapping[str, Any]],
        *,
        fails: bool,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._vocabulary = vocabulary if vocabulary is not None else Vocabulary()
        environment = self._vocabulary.environment()
        self._expressions = [
            compile_as(each.get("expression", ""), environment, BOOL) for each in conditions
        ]
        self._fails = fails

    def hold(self, variables: Mapping[str, Value]) -> bool:
        """Tell whether a request meets all conditions; `variables` are those of its Subject.

        Raises:
            ExpressionError: one or more failed, none is false, and errors count.
        """
        evaluation = Evaluation(variables, self._vocabulary, MATCH_BUDGET)
        errors: list[str] = []
        holds = True
        try:
            for each in self._expressions:
                try:
                    holds = evaluation.run(each) is not False and holds
                except ExpressionError as error:
                    errors.append(str(error))
        except OutOfBudgetError as error:
            errors, holds = [str(error)], True
        if not holds:
            return False
        if errors and self._fails:
            raise ExpressionError(
                errors[0] if len(errors) == 1 else f"[{', '.join(dict.fromkeys(errors))}]"
            )
        return not errors
