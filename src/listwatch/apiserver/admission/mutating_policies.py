"""MutatingAdmissionPolicies: how they change an object.

The rules are those of `apiserver/pkg/admission/plugin/policy/mutating`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from listwatch.apiserver.admission.expressions import Subject
from listwatch.apiserver.admission.matching import in_version, written
from listwatch.apiserver.admission.patience import evaluated
from listwatch.apiserver.admission.policies import (
    Applying,
    Editing,
    Invocation,
    PatchTestError,
    PolicyFailure,
    PolicyIndex,
    object_name,
)
from listwatch.cel.admission import (
    BUDGET,
    JSON_PATCH,
    OBJECT,
    Evaluation,
    Expression,
    ExpressionError,
    MatchConditions,
    OutOfBudgetError,
    Vocabulary,
    compile_as,
)
from listwatch.cel.types import list_of
from listwatch.cel.values import Duration, Optional, Timestamp, UInt
from listwatch.errors import StatusError
from listwatch.schema.facts import ANY, Form, Schema

if TYPE_CHECKING:
    from listwatch.apiserver.admission.chain import Round
    from listwatch.apiserver.admission.expressions import Decide
    from listwatch.apiserver.admission.matching import Attributes, Cluster
    from listwatch.apiserver.kinds.resources import APIResource
    from listwatch.cel import Value
    from listwatch.cel.patience import Patience

Object = dict[str, Any]
View = Mapping[str, Any]
#: A policy, its binding, and its parameter.
_Key = tuple[str, str, str]


class _MutationError(Exception):
    pass


class MutatingPolicy:
    """The expressions of a policy, compiled."""

    def __init__(self, obj: View) -> None:
        spec = obj.get("spec") or {}
        vocabulary = Vocabulary(params=spec.get("paramKind") is not None)
        vocabulary.compose(spec.get("variables") or ())
        self.vocabulary = vocabulary
        conditions = spec.get("matchConditions") or ()
        fails = spec.get("failurePolicy") != "Ignore"
        self.conditions = (
            MatchConditions(conditions, fails=fails, vocabulary=vocabulary) if conditions else None
        )
        environment = vocabulary.but(patches=True).environment()
        self.again = spec.get("reinvocationPolicy") == "IfNeeded"
        self.mutations: list[Expression] = []
        for each in spec.get("mutations") or ():
            is_json = each.get("patchType") == "JSONPatch"
            part = each.get("jsonPatch" if is_json else "applyConfiguration") or {}
            kind = list_of(JSON_PATCH) if is_json else OBJECT
            text = part.get("expression") or ""
            self.mutations.append(compile_as(text, environment, kind))


class PolicyMutator:
    """Applies all matching policies to one object. For one event loop."""

    def __init__(
        self,
        index: PolicyIndex[MutatingPolicy],
        cluster: Cluster,
        decide: Decide,
        editing: Editing,
    ) -> None:
        self._index = index
        self.cluster = cluster
        self.editing = editing
        self._decide = decide
        self._output: Object | None = None
        #: policies that ran and may have to run again; policies that must run again
        self.ran: frozenset[_Key] = frozenset()
        self._due: frozenset[_Key] = frozenset()

    def mutate(self, attributes: Attributes, turn: Round) -> None:
        """Replace `attributes.obj` with the result of the policies.

        Raises:
            StatusError: 403, a policy failed, and its failure policy is Fail.
        """
        found = list(self._index.applying(attributes, self.cluster))
        if not found:
            self._output = attributes.obj
            return
        if turn.second and attributes.obj != self._output:
            self._due, self.ran = self._due | self.ran, frozenset()
        states = msgspec.json.encode([attributes.obj, attributes.old])
        key = ("mutating", turn.second, attributes.operation, self._index.seen, states)

        def work(decide: Decide, patience: Patience | None) -> _Mutation:
            mutation = _Mutation(self, attributes, decide, patience)
            mutation.run(found, self._due if turn.second else None)
            return mutation

        mutation = evaluated(key, self._decide, work)
        self.ran = (self.ran - mutation.due) | mutation.ran
        self._due |= mutation.due
        turn.wanted = turn.wanted or mutation.changed
        self._output = attributes.obj = mutation.attributes.obj
        if mutation.failures:
            raise _refusal(attributes, mutation.failures)


class _Mutation:
    """One round of the policies over one object. Changes nothing visible outside."""

    def __init__(
        self,
        mutator: PolicyMutator,
        attributes: Attributes,
        decide: Decide,
        patience: Patience | None,
    ) -> None:
        self.attributes = msgspec.structs.replace(attributes)
        self.failures: list[PolicyFailure] = []
        self.ran: set[_Key] = set()
        self.due: set[_Key] = set()
        self.changed = False
        self._cluster = mutator.cluster
        self._editing = mutator.editing
        self._known = mutator.ran
        self._decide = decide
        self._patience = patience

    def run(self, found: Sequence[Applying[MutatingPolicy]], only: frozenset[_Key] | None) -> None:
        """Apply the policies in order; `only` names those of a second round."""
        invocations: list[Invocation[MutatingPolicy]] = []
        for each in found:
            if isinstance(each, Invocation):
                invocations.append(each)
            elif each[0].fails:
                self.failures.append(each[1])
        for one in invocations:
            self._invoke(one, only)

    def _invoke(self, found: Invocation[MutatingPolicy], only: frozenset[_Key] | None) -> None:
        policy, attributes = found.policy, self.attributes
        before = attributes.obj
        key = _key_of(found)
        try:
            subject = Subject(attributes, found.matched, self._cluster, self._decide)
            conditions = policy.compiled.conditions
            variables = subject.with_params(found.params)
            if conditions is not None and not conditions.hold(variables, self._patience):
                return
        except ExpressionError as error:
            self.failures.append(_failure(found, str(error)))
            return
        if only is not None and key not in only:
            return
        for mutation in policy.compiled.mutations if before is not None else ():
            try:
                self._apply(mutation, found)
            except (ExpressionError, OutOfBudgetError, _MutationError) as error:
                if policy.fails:
                    self.failures.append(_failure(found, str(error)))
        if attributes.obj != before:
            self.due |= self.ran | self._known
            self.ran, self._known = set(), frozenset()
            self.changed = True
        if policy.compiled.again:
            self.ran.add(key)

    def _apply(self, mutation: Expression, found: Invocation[MutatingPolicy]) -> None:
        attributes = self.attributes
        subject = Subject(attributes, found.matched, self._cluster, self._decide)
        evaluation = Evaluation(
            subject.with_params(found.params),
            found.policy.compiled.vocabulary,
            BUDGET,
            self._patience,
        )
        if mutation.program is None:
            raise ExpressionError(mutation.error)
        value = evaluation.run(mutation)
        source, target, sub = attributes.resource, found.matched, attributes.subresource
        obj = in_version(attributes.obj, source, target, sub)
        assert obj is not None  # noqa: S101 - no mutation without an object
        kind = written(target, sub)
        if mutation.program.type == OBJECT:
            changed = self._merged(obj, value, kind)
        else:
            changed = self._patched(obj, value)
        if changed is obj:
            return
        decoded = self._editing.decode(changed, kind)
        whole = {"apiVersion": changed["apiVersion"], "kind": changed["kind"], **decoded}
        attributes.obj = in_version(whole, target, source, sub)

    def _merged(self, obj: Object, value: Value, resource: APIResource) -> Object:
        mismatches = list(_mismatches(value, "Object"))
        if mismatches:
            raise _MutationError("type mismatch: " + "\n".join(mismatches))
        wanted = to_json(value)
        assert isinstance(wanted, dict)  # noqa: S101 - the type checker allows nothing else
        named = {key: obj[key] for key in ("apiVersion", "kind")}
        why = self._editing.check({**wanted, **named}, resource.schema)
        if why:
            raise _MutationError(
                "error applying patch: failed to convert patch object to typed object: " + why
            )
        atomic = list(_atomics(wanted, resource.schema, ""))
        if atomic:
            raise _MutationError(
                "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, "
                f"maps or structs: {', '.join(atomic)}"
            )
        return self._editing.merge(obj, {**wanted, **named}, resource.schema)

    def _patched(self, obj: Object, value: Value) -> Object:
        operations = []
        for each in value if isinstance(value, Sequence) else ():
            assert isinstance(each, Mapping)  # noqa: S101 - the type checker allows nothing else
            if "value" in each:
                mismatches = list(_mismatches(each["value"], None))
                if mismatches:
                    raise _MutationError("type mismatch: " + "\n".join(mismatches))
            operation = {"op": each.get("op", ""), "path": each.get("path", "")}
            if each.get("from"):
                operation["from"] = each["from"]
            if "value" in each:
                operation["value"] = to_json(each["value"])
            operations.append(operation)
        try:
            return self._editing.json_patch(obj, operations)
        except PatchTestError:
            return obj
        except ValueError as error:
            raise _MutationError(f"JSON Patch: {error}") from None


def _key_of(found: Invocation[MutatingPolicy]) -> _Key:
    metadata = (found.params or {}).get("metadata") or {}
    param = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return found.policy.name, found.binding.name, param


def _failure(found: Invocation[MutatingPolicy], message: str) -> PolicyFailure:
    return PolicyFailure(found.policy.name, found.binding.name, message, "Invalid")


def _refusal(attributes: Attributes, failures: Sequence[PolicyFailure]) -> StatusError:
    details: dict[str, Any] = {"name": object_name(attributes)}
    if attributes.resource.group:
        details["group"] = attributes.resource.group
    details["kind"] = attributes.resource.name
    details["causes"] = [{"message": each.words()} for each in failures]
    return StatusError(
        failures[0].words(),
        code=403,
        reason=failures[0].reason or "Forbidden",
        details=details,
    )


_LARGEST_NUMBER = 1 << 53


def to_json(value: Value) -> object:
    """Return the value of an expression as JSON; types that JSON lacks become strings.

    Raises:
        ExpressionError: a key is not a string.
    """
    match value:
        case Optional():
            return to_json(value.value) if value.present else None
        case UInt():
            return int(value)
        case bool() | None | str() | float() | int():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case Timestamp() | Duration():
            return str(value)
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                raise ExpressionError("a key of a map in a patch is no string")
            return {key: to_json(each) for key, each in value.items()}
        case Sequence():
            return [to_json(each) for each in value]
    raise ExpressionError(f"{type(value).__name__} can't be a part of an object")


def _mismatches(value: Value, path: str | None) -> list[str]:
    """Return the errors of objects in a value whose type name does not match their field.

    With `path` None, the outermost object may have any type name.
    """
    found: list[str] = []
    name = getattr(value, "type_name", None)
    if isinstance(value, dict) and isinstance(name, str):
        if path is not None and name != path:
            found.append(
                f'unexpected type name "{name}", expected "{path}", which matches field name path '
                "from root Object type"
            )
        path = path if path is not None else name
        for key, each in value.items():
            found += _mismatches(each, f"{path}.{key}")
    elif isinstance(value, Mapping):
        for each in value.values():
            found += _mismatches(each, path)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for each in value:
            found += _mismatches(each, path)
    return found


def _atomics(value: object, schema: Schema, path: str) -> list[str]:
    """Return the paths of a configuration's atomic parts, which can only be set as a whole."""
    found: list[str] = []
    if isinstance(value, dict) and schema.form in {Form.STRUCT, Form.MAP}:
        if schema.atomic:
            found.append(path)
        for key, each in value.items():
            inner = schema.fields.get(key) if schema.form is Form.STRUCT else schema.item
            found += _atomics(each, inner or ANY, f"{path}.{key}")
    elif isinstance(value, list) and schema.form is Form.LIST:
        if schema.list_type == "atomic":
            found.append(path)
        for index, each in enumerate(value):
            found += _atomics(each, schema.item or ANY, f"{path}[{index}]")
    return found
