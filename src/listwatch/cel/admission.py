"""The expressions of admission: their variables, and how they run on a budget.

Policies and match conditions have the variables `object`, `oldObject`, `request`,
`namespaceObject`, `authorizer`, and optionally `params` and `variables`. The rules are those of
k8s.io/apiserver, pkg/admission/plugin/cel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from listwatch.cel.authorization import AUTHORIZER, RESOURCE_CHECK
from listwatch.cel.environment import FUNCTIONS, Environment
from listwatch.cel.errors import (
    CompilationError,
    CostLimitExceededError,
    EvaluationError,
    InstantiationError,
)
from listwatch.cel.functions import Function, function, plain
from listwatch.cel.patience import Patience, evaluate
from listwatch.cel.program import PER_CALL_LIMIT, Program, compile_expression
from listwatch.cel.types import (
    BOOL,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    Type,
    list_of,
    map_of,
    object_named,
)
from listwatch.cel.values import Value

BUDGET = 10_000_000
"""Budget of all expressions of one policy for one request and one parameter."""
MATCH_BUDGET = 2_500_000
"""Budget of all match conditions of one policy or webhook for one request."""

_OUT_OF_BUDGET = (
    "validation failed due to running out of cost budget, no further validation rules will be run"
)
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


class _Layers(Mapping[str, Mapping[str, Type]]):
    """Types of objects from several sources; the first one counts."""

    def __init__(self, layers: Sequence[Mapping[str, Mapping[str, Type]]]) -> None:
        self._layers = layers

    def __getitem__(self, name: str) -> Mapping[str, Type]:
        for layer in self._layers:
            if name in layer:
                return layer[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for layer in self._layers for name in layer))

    def __len__(self) -> int:
        return len({name for layer in self._layers for name in layer})


OBJECT = object_named("Object")
"""The type of an ApplyConfiguration; its parts are `Object.spec`, `Object.metadata`."""
JSON_PATCH = object_named("JSONPatch")
"""The type of one operation of a JSON patch."""


class _AnyField(Mapping[str, Type]):
    """The fields of an object of unknown type: any name, of any type."""

    def __getitem__(self, name: str) -> Type:
        return DYN

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_ANY_FIELD = _AnyField()
_OPERATION: Mapping[str, Type] = {"op": STRING, "path": STRING, "from": STRING, "value": DYN}


class _PatchTypes(Mapping[str, Mapping[str, Type]]):
    """The types in patches: `Object`, everything with that prefix, and `JSONPatch`."""

    def __getitem__(self, name: str) -> Mapping[str, Type]:
        if name == JSON_PATCH.name:
            return _OPERATION
        if name == OBJECT.name or name.startswith("Object."):
            return _ANY_FIELD
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter((OBJECT.name, JSON_PATCH.name))

    def __len__(self) -> int:
        return 2


def _escaped_key(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


_PATCH_FUNCTIONS: Mapping[str, Function] = {
    **FUNCTIONS,
    "jsonpatch.escapeKey": function(
        "jsonpatch.escapeKey",
        _escaped_key,
        plain("string_jsonpatch_escapeKey_string", STRING, STRING),
    ),
}


class ExpressionError(Exception):
    """One expression can't be evaluated; others may be."""


class OutOfBudgetError(Exception):
    """All expressions together exceed the budget; nothing more is evaluated."""

    def __init__(self) -> None:
        super().__init__(_OUT_OF_BUDGET)


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression, or the reason why it does not compile.

    `internal` is true if a constant would always fail, which a server reports as an internal error.
    """

    source: str
    program: Program | None
    error: str = ""
    internal: bool = False


@dataclass(slots=True)
class Vocabulary:
    """The variables of one policy's expressions, including those that it declares.

    Attributes:
        params: whether there is the variable `params`.
        authorizer: whether there is the variable `authorizer`.
        patches: whether there are the types and functions for patches.
        objects: types besides those of requests and namespaces.
        types: types of variables that differ from the default.
    """

    params: bool = False
    authorizer: bool = True
    patches: bool = False
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
            known["authorizer.requestResource"] = RESOURCE_CHECK
        own: dict[str, Mapping[str, Type]] = {}
        if self._composed:
            known["variables"] = _VARIABLES
            own[_VARIABLES.name] = dict(self._fields)
        # the fields of objects may be resolved on access
        objects = _Layers((own, self.objects, _OBJECTS))
        if self.patches:
            objects = _Layers((_PatchTypes(), objects))
            return Environment({**known, **self.types}, objects, _PATCH_FUNCTIONS)
        return Environment({**known, **self.types}, objects)

    def but(self, *, authorizer: bool = True, patches: bool = False) -> Vocabulary:
        """Return the same with its variables, for expressions of another kind."""
        return replace(self, authorizer=authorizer and self.authorizer, patches=patches)

    def compose(self, variables: Sequence[Mapping[str, object]]) -> None:
        """Compile the variables of a policy; each may use those before it."""
        self._composed = True
        for each in variables:
            name = str(each.get("name", ""))
            found = compile_as(str(each.get("expression", "")), self.environment())
            self.variables[name] = found
            self._fields[name] = DYN if found.program is None else _declared(found.program.type)


def _declared(kind: Type) -> Type:
    """Return a variable's type for expressions that use it; object fields are unknown."""
    if kind.kind in {"list", "map"}:
        return Type(kind.kind, "", tuple(map(_declared, kind.parameters)))
    return DYN if kind.kind in {"object", "opaque", "type", "param", "error"} else kind


def compile_as(source: str, environment: Environment, *wanted: Type) -> Expression:
    """Compile an expression whose result must have one of these types; no types means any."""
    try:
        program = compile_expression(source, environment)
    except CompilationError as error:
        return Expression(source, None, f"compilation failed: {error}")
    except InstantiationError as error:
        return Expression(source, None, str(error), internal=True)
    if wanted and program.type not in wanted:
        shown = " ".join(_shown(one) for one in wanted)
        choice = shown if len(wanted) == 1 else f"one of [{shown}]"
        why = f"must evaluate to {choice} but got {_shown(program.type)}"
        return Expression(source, None, why)
    return Expression(source, program)


def _shown(kind: Type) -> str:
    return "null_type" if kind.kind == "null" else str(kind)


class Evaluation:
    """Evaluates expressions with the same variables on one budget.

    Args:
        variables: those of the request.
        vocabulary: contains the policy's variables.
        budget: the cost limit of all expressions.
        patience: the cost after which TakesLongError is raised; None for no limit.
    """

    def __init__(
        self,
        variables: Mapping[str, Value],
        vocabulary: Vocabulary,
        budget: int = BUDGET,
        patience: Patience | None = None,
    ) -> None:
        self.remaining = budget
        self._patience = patience
        self._variables = dict(variables)
        if vocabulary.variables:
            self._variables["variables"] = _LazyVariables(vocabulary.variables, self)

    def run(self, expression: Expression) -> Value:
        """Return the value of an expression.

        Raises:
            ExpressionError: it does not compile, or fails.
            OutOfBudgetError: it exceeds the remaining budget.
            TakesLongError: it exceeds the remaining patience.
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
            value, cost = evaluate(program, self._variables, limit, self._patience)
        except CostLimitExceededError:
            if limit < PER_CALL_LIMIT:
                raise OutOfBudgetError from None
            self._take(limit)
            raise
        except EvaluationError as error:
            self._take(error.cost)
            raise
        self._take(cost)
        return value

    def _take(self, cost: int) -> None:
        self.remaining -= cost
        if self.remaining < 0:
            raise OutOfBudgetError

    def variable(self, name: str, expression: Expression) -> Value:
        """Return the value of one of the policy's variables.

        Raises:
            EvaluationError: it does not compile, or fails.
            OutOfBudgetError: it exceeds the remaining budget.
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
    """The variables of a policy, each evaluated once, when first read."""

    type_name = _VARIABLES.name

    def __init__(self, definitions: Mapping[str, Expression], evaluation: Evaluation) -> None:
        self._definitions = definitions
        self._evaluation = evaluation
        self._found: dict[str, Value | EvaluationError] = {}

    def __getitem__(self, name: Value) -> Value:
        assert isinstance(name, str)
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
        fails: whether an error refuses the request; otherwise the webhook or policy is skipped.
        vocabulary: the variables; None for a webhook's.
    """

    def __init__(
        self,
        conditions: Sequence[Mapping[str, object]],
        *,
        fails: bool,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._vocabulary = vocabulary if vocabulary is not None else Vocabulary()
        environment = self._vocabulary.environment()
        self._expressions = [
            compile_as(str(each.get("expression", "")), environment, BOOL) for each in conditions
        ]
        self._fails = fails

    def hold(self, variables: Mapping[str, Value], patience: Patience | None = None) -> bool:
        """Return whether a request meets all conditions; `variables` are those of its Subject.

        Raises:
            ExpressionError: at least one failed, none is false, and errors count.
            TakesLongError: they exceed the remaining patience.
        """
        evaluation = Evaluation(variables, self._vocabulary, MATCH_BUDGET, patience)
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
