"""ValidatingAdmissionPolicies: their decisions about a request, and the resulting actions.

The rules are those of `apiserver/pkg/admission/plugin/policy/validating`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from listwatch.apiserver.admission.expressions import Subject
from listwatch.apiserver.admission.patience import evaluated
from listwatch.apiserver.admission.policies import (
    Applying,
    Invocation,
    PolicyFailure,
    PolicyIndex,
    object_name,
)
from listwatch.cel.admission import (
    BUDGET,
    Evaluation,
    Expression,
    ExpressionError,
    MatchConditions,
    OutOfBudgetError,
    Vocabulary,
    compile_as,
)
from listwatch.cel.rules import LONGEST_MESSAGE
from listwatch.cel.types import BOOL, NULL, STRING
from listwatch.errors import StatusError

if TYPE_CHECKING:
    from listwatch.apiserver.admission.expressions import Decide
    from listwatch.apiserver.admission.matching import Attributes, Cluster
    from listwatch.apiserver.kinds.resources import APIResource
    from listwatch.cel import Value
    from listwatch.cel.patience import Patience

View = Mapping[str, Any]

_CODES = {"Forbidden": 403, "Unauthorized": 401, "RequestEntityTooLarge": 413}
_FAILURES = "validation.policy.admission.k8s.io/validation_failure"
_FAILURES_LIMIT = 50
_ANNOTATION_LIMIT = 10 * 1024


class _Validation(msgspec.Struct, frozen=True):
    expression: Expression
    message: str
    message_expression: Expression | None
    reason: str


class _Annotation(msgspec.Struct, frozen=True):
    key: str
    expression: Expression


class _Decision(msgspec.Struct, frozen=True):
    """One validation's objection to a request."""

    index: int
    message: str
    reason: str = ""


class ValidatingPolicy:
    """The expressions of a policy, compiled."""

    def __init__(self, obj: View) -> None:
        spec = obj.get("spec") or {}
        self.fails = spec.get("failurePolicy") != "Ignore"
        vocabulary = Vocabulary(params=spec.get("paramKind") is not None)
        vocabulary.compose(spec.get("variables") or ())
        self.vocabulary = vocabulary
        conditions = spec.get("matchConditions") or ()
        self.conditions = (
            MatchConditions(conditions, fails=self.fails, vocabulary=vocabulary)
            if conditions
            else None
        )
        environment = vocabulary.environment()
        messages = vocabulary.but(authorizer=False).environment()
        self.validations = [
            _Validation(
                compile_as(each.get("expression", ""), environment, BOOL),
                each.get("message", "").strip(),
                compile_as(each["messageExpression"], messages, STRING)
                if each.get("messageExpression")
                else None,
                each.get("reason") or "Invalid",
            )
            for each in spec.get("validations") or ()
        ]
        self.annotations = [
            _Annotation(
                each.get("key", ""),
                compile_as(each.get("valueExpression", ""), environment, STRING, NULL),
            )
            for each in spec.get("auditAnnotations") or ()
        ]

    def judge(
        self, variables: Mapping[str, Value], patience: Patience | None
    ) -> Iterator[_Decision]:
        """Yield the validations' objections to a request, in order.

        Raises:
            ExpressionError: the match conditions failed.
            OutOfBudgetError: all validations together exceed the budget.
        """
        evaluation = Evaluation(variables, self.vocabulary, BUDGET, patience)
        outcomes: list[bool | ExpressionError] = []
        for each in self.validations:
            try:
                outcomes.append(evaluation.run(each.expression) is True)
            except ExpressionError as error:
                outcomes.append(error)
        # Evaluate messages only if there is an objection.
        said = Evaluation(variables, self.vocabulary, evaluation.remaining, patience)
        for index, (each, outcome) in enumerate(zip(self.validations, outcomes, strict=True)):
            if isinstance(outcome, ExpressionError):
                if self.fails:
                    yield _Decision(index, str(outcome))
            elif not outcome:
                try:
                    yield _Decision(index, _message(each, said), each.reason)
                except OutOfBudgetError as error:
                    if self.fails:
                        yield _Decision(index, f"failed messageExpression: {error}")

    def notes(
        self, variables: Mapping[str, Value], patience: Patience | None
    ) -> Iterator[tuple[str, str]]:
        """Yield the audit annotations, as keys and values.

        Raises:
            ExpressionError: one failed, and the failure policy is Fail; those before it were
                yielded.
            OutOfBudgetError: all together exceed the budget.
        """
        evaluation = Evaluation(variables, self.vocabulary, BUDGET, patience)
        failed: ExpressionError | None = None
        for each in self.annotations:
            try:
                value = evaluation.run(each.expression)
            except ExpressionError as error:
                failed = failed or error
                continue
            text = value.strip() if isinstance(value, str) else ""
            if text:
                yield each.key, text.encode()[:_ANNOTATION_LIMIT].decode(errors="ignore")
        if failed is not None and self.fails:
            raise failed


def _message(validation: _Validation, evaluation: Evaluation) -> str:
    """Return the message of a validation that is not true."""
    text = ""
    if validation.message_expression is not None:
        try:
            found = evaluation.run(validation.message_expression)
        except ExpressionError:
            found = ""  # use the message of the validation instead
        text = found.strip() if isinstance(found, str) else ""
        if "\n" in text or len(text.encode()) > LONGEST_MESSAGE:
            text = ""
    text = text or validation.message
    return text or f"failed expression: {validation.expression.source.strip()}"


class PolicyValidator:
    """Validates one object with all matching policies. For one event loop."""

    def __init__(
        self, index: PolicyIndex[ValidatingPolicy], cluster: Cluster, decide: Decide
    ) -> None:
        self._index = index
        self._cluster = cluster
        self._decide = decide

    def validate(self, attributes: Attributes) -> None:
        """Warn, add audit annotations, or raise, as the bindings say.

        Raises:
            StatusError: with the code of the first validation that denies the request.
        """
        found = list(self._index.applying(attributes, self._cluster))
        if not found:
            return

        def work(decide: Decide, patience: Patience | None) -> _Judgement:
            return self._judged(attributes, found, decide, patience)

        states = msgspec.json.encode([attributes.obj, attributes.old])
        key = ("validating", attributes.operation, self._index.seen, states)
        evaluated(key, self._decide, work).publish(attributes)

    def _judged(
        self,
        attributes: Attributes,
        found: Sequence[Applying[ValidatingPolicy]],
        decide: Decide,
        patience: Patience | None,
    ) -> _Judgement:
        judgement = _Judgement(patience)
        subjects: dict[APIResource, Subject] = {}
        for each in found:
            if not isinstance(each, Invocation):
                policy, failure = each
                if policy.fails:
                    judgement.denials.append(failure)
                continue
            subject = subjects.get(each.matched)
            if subject is None:
                subject = Subject(attributes, each.matched, self._cluster, decide)
                subjects[each.matched] = subject
            judgement.add(each, subject.with_params(each.params))
        return judgement


class _Judgement:
    """The decisions of all policies about one request."""

    def __init__(self, patience: Patience | None) -> None:
        self.denials: list[PolicyFailure] = []
        self._patience = patience
        self._warnings: list[str] = []
        self._failures: list[dict[str, Any]] = []
        self._notes: dict[str, list[str]] = {}

    def add(self, found: Invocation[ValidatingPolicy], variables: Mapping[str, Value]) -> None:
        policy, compiled = found.policy, found.policy.compiled
        try:
            conditions = compiled.conditions
            if conditions is not None and not conditions.hold(variables, self._patience):
                return
            decisions = list(compiled.judge(variables, self._patience))
            notes = compiled.notes(variables, self._patience)
        except (ExpressionError, OutOfBudgetError) as error:
            decisions = [_Decision(0, str(error))] if policy.fails else []
            notes = iter(())
        for decision in decisions:
            self._act(found, decision)
        try:
            for key, value in notes:
                known = self._notes.setdefault(f"{policy.name}/{key}", [])
                if value not in known:
                    known.append(value)
        except (ExpressionError, OutOfBudgetError) as error:
            if policy.fails:
                self.denials.append(PolicyFailure(policy.name, found.binding.name, str(error)))

    def _act(self, found: Invocation[ValidatingPolicy], decision: _Decision) -> None:
        policy, binding = found.policy.name, found.binding
        for action in binding.actions:
            if action == "Deny":
                self.denials.append(
                    PolicyFailure(policy, binding.name, decision.message, decision.reason)
                )
            elif action == "Warn":
                warning = (
                    f"Validation failed for ValidatingAdmissionPolicy '{policy}' with binding "
                    f"'{binding.name}': {decision.message}"
                )
                self._warnings.append(warning)
            elif action == "Audit":
                self._failures.append(
                    {
                        "message": decision.message,
                        "policy": policy,
                        "binding": binding.name,
                        "expressionIndex": decision.index,
                        "validationActions": list(binding.actions),
                    }
                )

    def publish(self, attributes: Attributes) -> None:
        for warning in self._warnings:
            if warning not in attributes.warnings:
                attributes.warnings.append(warning)
        annotations = attributes.annotations
        annotations.update((key, ", ".join(values)) for key, values in self._notes.items())
        if self._failures:
            shown = self._failures[:_FAILURES_LIMIT]
            annotations[_FAILURES] = json.dumps(shown, separators=(",", ":"), ensure_ascii=False)
        if self.denials:
            raise self._refusal(attributes, self.denials[0])

    @staticmethod
    def _refusal(attributes: Attributes, denial: PolicyFailure) -> StatusError:
        by = "" if denial.binding is None else f" with binding '{denial.binding}'"
        why = f"ValidatingAdmissionPolicy '{denial.policy}'{by} denied request: {denial.message}"
        return refusal_of(attributes, why, denial.reason or "Invalid")


def refusal_of(attributes: Attributes, why: str, reason: str) -> StatusError:
    """Return the refusal of a request by a validating policy."""
    resource, name = attributes.resource, object_name(attributes)
    details: dict[str, Any] = {"name": name}
    if resource.group:
        details["group"] = resource.group
    details |= {"kind": resource.name, "causes": [{"message": why}]}
    return StatusError(
        f'{resource.qualified_name} "{name}" is forbidden: {why}',
        code=_CODES.get(reason, 422),
        reason=reason,
        details=details,
    )
