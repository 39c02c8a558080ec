"""The rules in a schema (`x-kubernetes-validations`), compiled and applied to objects.

Rules: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel, with the ratcheting of KEP-4008: an
unchanged value that violates a rule passes with a warning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from listwatch.cel.environment import Environment
from listwatch.cel.errors import CostLimitExceededError, EvaluationError
from listwatch.cel.patience import Patience, evaluate
from listwatch.cel.program import PER_CALL_LIMIT, Program, compile_expression
from listwatch.cel.schema_types import Schema, SchemaType, object_types, schema_type
from listwatch.cel.schema_values import to_value
from listwatch.cel.types import optional_of
from listwatch.cel.values import NOTHING, Optional, Value

BUDGET = 10_000_000
"""Budget of all rules for one object."""

_OUT_OF_BUDGET = "due to running out of cost budget, no further validation rules will be run"

LONGEST_MESSAGE = 5 * 1024
"""Maximum bytes of the result of a messageExpression."""


class RuleFinding(NamedTuple):
    """One finding: the field's path, the reason of a Status's cause, and the message."""

    field: str
    reason: str
    message: str


@dataclass(slots=True)
class RuleResult:
    """The result of the rules for an object: errors refuse it, warnings do not."""

    errors: list[RuleFinding] = field(default_factory=list)
    warnings: list[RuleFinding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Rule:
    program: Program
    message: str
    message_program: Program | None
    reason: str
    path: str
    optional_old: bool
    shown: str

    @property
    def uses_old(self) -> bool:
        return "oldSelf" in self.program.variables


@dataclass(frozen=True, slots=True)
class _Node:
    """A place in the schema with rules at or below it."""

    schema: Schema
    kind: SchemaType | None
    rules: tuple[_Rule, ...]
    properties: Mapping[str, _Node]
    additional: _Node | None
    items: _Node | None
    all_of: tuple[_Node, ...]


class Rules:
    """All rules of a schema. Immutable: any thread may validate with them.

    Args:
        schema: a structural schema as JSON, of a custom resource's root.

    Raises:
        CompilationError: a rule does not compile.
        InstantiationError: a rule has a constant that always fails.
    """

    def __init__(self, schema: Schema) -> None:
        self._root = _node(schema, schema, "selfType", root=True)

    def __bool__(self) -> bool:
        """Return whether there are any rules."""
        return self._root is not None

    def validate(
        self, value: object, old: object = None, patience: Patience | None = None
    ) -> RuleResult:
        """Apply the rules to an object, and with its old state the transition rules.

        `value` and `old` are JSON data that fit the schema. Never raises for their content.

        Raises:
            TakesLongError: the rules exceed the patience; with None there is no limit.
        """
        result = RuleResult()
        if self._root is not None:
            _Validation(result, patience).visit(self._root, "", value, _Old(old, old is not None))
        return result


def _rules_of(schema: Schema) -> list[Mapping[str, object]]:
    found = schema.get("x-kubernetes-validations")
    if not isinstance(found, list):
        return []
    return [rule for rule in found if isinstance(rule, Mapping)]


def _text(rule: Mapping[str, object], name: str) -> str:
    value = rule.get(name)
    return value if isinstance(value, str) else ""


def _inner(schema: Schema, name: str) -> Schema | None:
    found = schema.get(name)
    return found if isinstance(found, Mapping) else None


def _properties(schema: Schema) -> Mapping[str, Schema]:
    found = schema.get("properties")
    if not isinstance(found, Mapping):
        return {}
    return {name: inner for name, inner in found.items() if isinstance(inner, Mapping)}


def _node(rules: Schema, shape: Schema, name: str, *, root: bool = False) -> _Node | None:
    """Compile the rules of one schema for values that another one describes.

    The two differ within `allOf`, whose branches have rules and no types.
    """
    kind = schema_type(shape, name, root=root)
    compiled = _compiled(rules, kind) if kind is not None else ()
    shapes = _properties(shape)
    properties = {}
    for key, inner in _properties(rules).items():
        if key in shapes:
            node = _node(inner, shapes[key], f"{name}.{key}", root=_embedded(shapes[key]))
            if node is not None:
                properties[key] = node
    additional, items = (
        _child(rules, shape, part, f"{name}.{mark}")
        for part, mark in (("additionalProperties", "@elem"), ("items", "@idx"))
    )
    branches = rules.get("allOf")
    all_of = tuple(
        node
        for branch in (branches if isinstance(branches, list) else ())
        if isinstance(branch, Mapping)
        if (node := _node(branch, shape, name, root=root)) is not None
    )
    if not (compiled or properties or additional or items or all_of):
        return None
    return _Node(shape, kind, compiled, properties, additional, items, all_of)


def _child(rules: Schema, shape: Schema, part: str, name: str) -> _Node | None:
    inner, inner_shape = _inner(rules, part), _inner(shape, part)
    if inner is None or inner_shape is None:
        return None
    return _node(inner, inner_shape, name, root=_embedded(inner_shape))


def _embedded(schema: Schema) -> bool:
    return bool(schema.get("x-kubernetes-embedded-resource"))


def environment_of(kind: SchemaType, *, optional_old: bool = False) -> Environment:
    """Return a rule's environment: `self`, and `oldSelf`, optional if the rule says so."""
    old = optional_of(kind.type) if optional_old else kind.type
    return Environment({"self": kind.type, "oldSelf": old}, object_types(kind))


def _compiled(schema: Schema, kind: SchemaType) -> tuple[_Rule, ...]:
    compiled = []
    for rule in _rules_of(schema):
        text = _text(rule, "rule")
        if not text.strip():
            continue
        optional_old = bool(rule.get("optionalOldSelf"))
        environment = environment_of(kind, optional_old=optional_old)
        expression = _text(rule, "messageExpression")
        message = _text(rule, "message").strip()
        compiled.append(
            _Rule(
                compile_expression(text, environment),
                message or f"failed rule: {text.strip()}",
                compile_expression(expression, environment) if expression.strip() else None,
                _text(rule, "reason") or "FieldValueInvalid",
                _text(rule, "fieldPath"),
                optional_old,
                message or text.strip(),
            )
        )
    return tuple(compiled)


class _Old:
    """The old state of a value, and whether it shows that nothing changed.

    `correlated` is false in lists and maps whose old elements can't be identified. Then the nearest
    part above with an old state decides about ratcheting.
    """

    __slots__ = ("correlated", "nearest", "value")

    def __init__(self, value: object, correlated: bool, nearest: _Pair | None = None) -> None:
        self.value = value
        self.correlated = correlated
        self.nearest = nearest


class _Pair(NamedTuple):
    value: object
    old: object

    def unchanged(self) -> bool:
        return self.value == self.old


class _OutOfBudget(Exception):  # noqa: N818  (ends a walk, never leaves this module)
    pass


class _Validation:
    """One traversal of an object."""

    def __init__(self, result: RuleResult, patience: Patience | None) -> None:
        self._result = result
        self._patience = patience
        self._budget = BUDGET
        self._over = False

    def visit(self, node: _Node, path: str, value: object, old: _Old) -> None:
        """Apply the rules at a place and below it."""
        if value is None or self._over:
            return
        try:
            self._apply(node, path, value, old)
        except _OutOfBudget:
            self._over = True
            return
        for branch in node.all_of:
            # A rule in allOf never passes because nothing changed.
            self.visit(branch, path, value, _Old(old.value, correlated=False, nearest=old.nearest))
        if isinstance(value, Mapping):
            self._visit_map(node, path, value, old)
        elif isinstance(value, list) and node.items is not None:
            self._visit_list(node, node.items, path, value, old)

    def _visit_map(self, node: _Node, path: str, value: Mapping[str, object], old: _Old) -> None:
        before = old.value if isinstance(old.value, Mapping) else {}
        for key, inner in value.items():
            child = node.properties.get(key)
            place = f"{path}.{key}" if path else key
            if child is None:
                child, place = node.additional, f"{path}[{key}]"
            if child is not None:
                self.visit(child, place, inner, _below(old, value, before.get(key), key in before))

    def _visit_list(
        self, node: _Node, items: _Node, path: str, value: list[object], old: _Old
    ) -> None:
        known = _by_key(node.schema, old.value)
        for position, item in enumerate(value):
            before = known.get(_list_key(node.schema, item)) if known else None
            inner = _below(old, value, before, before is not None)
            self.visit(items, f"{path}[{position}]", item, inner)

    def _apply(self, node: _Node, path: str, value: object, old: _Old) -> None:
        if not node.rules or node.kind is None:
            return
        place = path or "<nil>"
        if self._budget <= 0:
            self._end(place, node, f"validation failed {_OUT_OF_BUDGET}")
        variables = _variables(node.kind, value, old)
        for rule in node.rules:
            if rule.uses_old and old.value is None and not rule.optional_old:
                continue
            given = dict(variables)
            if rule.optional_old:
                held = variables.get("oldSelf")
                given["oldSelf"] = Optional(held) if old.value is not None else NOTHING
            if self._holds(rule, node, place, given):
                continue
            self._tell(rule, node, path, value, old, given)

    def _holds(self, rule: _Rule, node: _Node, place: str, variables: dict[str, Value]) -> bool:
        """Return whether a rule holds; an error is reported and counts as if it held."""
        try:
            found, cost = self._evaluate(rule.program, variables)
        except CostLimitExceededError as error:
            if self._budget <= PER_CALL_LIMIT:
                self._end(place, node, f"validation failed {_OUT_OF_BUDGET}")
            self._end(
                place,
                node,
                f"'{error}': no further validation rules will be run due to call cost exceeds "
                f"limit for rule: {rule.shown}",
            )
        except EvaluationError as error:
            self._budget -= error.cost
            if str(error).startswith("no such overload"):
                detail = (
                    f"'{error}': call arguments did not match a supported operator, function or "
                    f"macro signature for rule: {rule.shown}"
                )
            else:
                detail = f"{error} evaluating rule: {rule.shown}"
            self._result.errors.append(_of_type(place, node, detail))
            return True
        self._budget -= cost
        return found is True

    def _tell(
        self,
        rule: _Rule,
        node: _Node,
        path: str,
        value: object,
        old: _Old,
        variables: dict[str, Value],
    ) -> None:
        place = (path + rule.path if path else rule.path.removeprefix(".")) or "<nil>"
        finding = _finding(rule.reason, place, value, self._message(rule, node, place, variables))
        if not rule.uses_old and _is_ratcheted(value, old):
            self._result.warnings.append(finding)
        else:
            self._result.errors.append(finding)

    def _message(self, rule: _Rule, node: _Node, place: str, variables: dict[str, Value]) -> str:
        if rule.message_program is None:
            return rule.message
        source = json.dumps(rule.message_program.source, ensure_ascii=False)
        try:
            found, cost = self._evaluate(rule.message_program, variables)
        except CostLimitExceededError:
            if self._budget <= PER_CALL_LIMIT:
                self._end(place, node, f"messageExpression evaluation failed {_OUT_OF_BUDGET}")
            self._end(
                place,
                node,
                "no further validation rules will be run due to call cost exceeds limit for "
                f"messageExpression: {source}",
            )
        except EvaluationError as error:
            self._budget -= error.cost
            return rule.message
        self._budget -= cost
        text = str(found).strip()
        usable = text and "\n" not in text and len(text.encode()) <= LONGEST_MESSAGE
        return text if usable else rule.message

    def _evaluate(self, program: Program, variables: Mapping[str, Value]) -> tuple[Value, int]:
        return evaluate(program, variables, min(PER_CALL_LIMIT, self._budget), self._patience)

    def _end(self, place: str, node: _Node, detail: str) -> None:
        self._result.errors.append(_of_type(place, node, detail))
        raise _OutOfBudget


def _of_type(place: str, node: _Node, detail: str) -> RuleFinding:
    shown = json.dumps(node.schema.get("type", ""))
    return RuleFinding(place, "FieldValueInvalid", f"Invalid value: {shown}: {detail}")


def _finding(reason: str, place: str, value: object, detail: str) -> RuleFinding:
    match reason:
        case "FieldValueForbidden":
            return RuleFinding(place, reason, f"Forbidden: {detail}")
        case "FieldValueRequired":
            return RuleFinding(place, reason, f"Required value: {detail}")
    # Objects and lists are too long to show.
    is_long = isinstance(value, Mapping | list)
    shown = "" if is_long else json.dumps(value, ensure_ascii=False)
    if reason == "FieldValueDuplicate":
        return RuleFinding(place, reason, f"Duplicate value: {shown}".rstrip(": "))
    text = f"Invalid value: {detail}" if is_long else f"Invalid value: {shown}: {detail}"
    return RuleFinding(place, "FieldValueInvalid", text)


def _variables(kind: SchemaType, value: object, old: _Old) -> dict[str, Value]:
    variables: dict[str, Value] = {"self": to_value(value, kind)}
    if old.value is not None:
        variables["oldSelf"] = to_value(old.value, kind)
    return variables


def _below(old: _Old, parent: object, before: object, found: bool) -> _Old:
    if not old.correlated:
        return _Old(before, correlated=False, nearest=old.nearest)
    return _Old(before, correlated=found, nearest=_Pair(parent, old.value))


def _is_ratcheted(value: object, old: _Old) -> bool:
    if old.correlated:
        # At the root, metadata differs with each write, so nothing is ever unchanged there.
        return old.nearest is not None and value == old.value
    return old.nearest is not None and old.nearest.unchanged()


def _list_key(schema: Schema, item: object) -> tuple[str, ...] | None:
    keys = schema.get("x-kubernetes-list-map-keys")
    if not isinstance(keys, list) or not isinstance(item, Mapping):
        return None
    return tuple(json.dumps(item.get(key), sort_keys=True) for key in keys)


def _by_key(schema: Schema, old: object) -> dict[tuple[str, ...] | None, object]:
    """Return the old items by their identity; only lists of type map have one."""
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list):
        return {}
    return {_list_key(schema, item): item for item in old}
