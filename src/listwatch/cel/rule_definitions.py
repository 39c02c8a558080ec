"""Validates the rules of a definition, before any object exists.

Rules: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/validation (validation.go,
cel_validation.go). A rule is refused if it does not compile, may cost too much, or compares with an
old state that can't be correlated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from listwatch.cel.cost import UNLIMITED, estimate
from listwatch.cel.errors import CompilationError, InstantiationError
from listwatch.cel.program import Program, compile_expression
from listwatch.cel.rules import RuleFinding, environment_of
from listwatch.cel.schema_types import LARGEST_REQUEST, Schema, SchemaType, schema_type

PER_RULE = 10_000_000
PER_DEFINITION = 100_000_000
_REASONS = (
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
)
_ADVICE = (
    "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, "
    "maps, and strings are declared)"
)


def rule_problems(schema: Schema, path: str) -> list[RuleFinding]:
    """Return what an API server would refuse in the rules of a definition's schema.

    `path` is the path of the schema within the definition. The schema must be structural: other
    faults are refused before its rules are checked.
    """
    check = _Check()
    check.visit(schema, path, _Place(cardinality=1, forbids_old=None, root=True))
    return check.problems(path)


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the schema: how often it can occur (None if unknown), and what is forbidden."""

    cardinality: int | None
    forbids_old: str | None
    root: bool = False


class _Check:
    def __init__(self) -> None:
        self._findings: list[RuleFinding] = []
        self._total = 0
        self._dear: list[tuple[int, str]] = []

    def problems(self, path: str) -> list[RuleFinding]:
        """Return the findings, including a total cost that is too high."""
        findings = list(self._findings)
        if self._total > PER_DEFINITION:
            message = (
                "Forbidden: contributed to estimated rule cost total exceeding cost limit for "
                "entire OpenAPIv3 schema"
            )
            dearest = sorted(self._dear, key=lambda one: -one[0])[:4]
            findings += [RuleFinding(where, "FieldValueForbidden", message) for _, where in dearest]
            what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
            findings.append(_too_dear(path, what, self._total, PER_DEFINITION))
        return findings

    def visit(self, schema: Schema, path: str, place: _Place) -> None:
        """Check the rules of a schema and of everything below it."""
        for key, inner, inner_path in _below(schema, path):
            times = _times(schema)
            cardinality = (
                None
                if place.cardinality is None or times is None
                else (min(place.cardinality * times, UNLIMITED))
            )
            forbids = place.forbids_old
            if (
                forbids is None
                and key == "items"
                and (schema.get("x-kubernetes-list-type") != "map")
            ):
                forbids = path
            embedded = bool(inner.get("x-kubernetes-embedded-resource"))
            self.visit(inner, inner_path, _Place(cardinality, forbids, embedded))
        rules = schema.get("x-kubernetes-validations")
        if not isinstance(rules, list) or not rules:
            return
        before = len(self._findings)
        for position, rule in enumerate(rules):
            if isinstance(rule, Mapping):
                self._look_at(rule, schema, f"{path}.x-kubernetes-validations[{position}]")
        if len(self._findings) > before:
            return
        kind = schema_type(schema, "selfType", root=place.root)
        if kind is None:
            why = "unable to convert structural schema to CEL declarations"
            what = "failed to construct type information for x-kubernetes-validations rules"
            self._add(
                f"{path}.x-kubernetes-validations",
                "InternalError",
                f"Internal error: internal error: {what}: {why}",
            )
            return
        for position, rule in enumerate(rules):
            if isinstance(rule, Mapping):
                self._compile(rule, kind, f"{path}.x-kubernetes-validations[{position}]", place)

    def _add(self, path: str, reason: str, message: str) -> None:
        self._findings.append(RuleFinding(path, reason, message))

    def _look_at(self, rule: Mapping[str, object], schema: Schema, path: str) -> None:
        text, message = _text(rule, "rule"), _text(rule, "message")
        if not text.strip():
            self._add(f"{path}.rule", "FieldValueRequired", "Required value: rule is not specified")
        elif message and not message.strip():
            self._invalid(f"{path}.message", message, "must be non-empty if specified")
        elif "\n" in message.strip():
            self._invalid(f"{path}.message", message, "must not contain line breaks")
        elif "\n" in text.strip() and not message.strip():
            self._add(
                f"{path}.message",
                "FieldValueRequired",
                "Required value: message must be specified if rule contains line breaks",
            )
        expression = _text(rule, "messageExpression")
        if expression and not expression.strip():
            self._add(
                f"{path}.messageExpression",
                "FieldValueRequired",
                "Required value: messageExpression must be non-empty if specified",
            )
        reason = rule.get("reason")
        if reason is not None and reason not in _REASONS:
            supported = ", ".join(f'"{one}"' for one in _REASONS)
            self._add(
                f"{path}.reason",
                "FieldValueNotSupported",
                f"Unsupported value: {json.dumps(reason)}: supported values: {supported}",
            )
        field = _text(rule, "fieldPath")
        if field and not field.strip():
            self._invalid(f"{path}.fieldPath", field, "must be non-empty if specified")
        if "\n" in field:
            self._invalid(f"{path}.fieldPath", field, "must not contain line breaks")
        if field and not is_field_path(field, schema):
            self._invalid(f"{path}.fieldPath", field, "must be a valid path")

    def _invalid(self, path: str, value: object, detail: str) -> None:
        shown = json.dumps(value, ensure_ascii=False)
        self._add(path, "FieldValueInvalid", f"Invalid value: {shown}: {detail}")

    def _compile(
        self, rule: Mapping[str, object], kind: SchemaType, path: str, place: _Place
    ) -> None:
        environment = environment_of(kind, optional_old=bool(rule.get("optionalOldSelf")))
        shown = _shown_rule(rule)
        program: Program | None = None
        try:
            program = compile_expression(_text(rule, "rule"), environment)
        except (CompilationError, InstantiationError) as error:
            self._add(
                f"{path}.rule",
                "FieldValueInvalid",
                f"Invalid value: {shown}: {_detail('compilation failed', error)}",
            )
        if program is None:
            self._refuse_optional(rule, path)
            return
        if program.type.kind != "bool":
            detail = "cel expression must evaluate to a bool"
            self._add(f"{path}.rule", "FieldValueInvalid", f"Invalid value: {shown}: {detail}")
            return
        times = place.cardinality
        if times is None:
            times = LARGEST_REQUEST // (kind.least_bytes + 1)
        cost = min(estimate(program.root, kind) * times, UNLIMITED)
        if cost > PER_RULE:
            self._findings.append(_too_dear(f"{path}.rule", "estimated rule cost", cost, PER_RULE))
        self._observe(f"{path}.rule", cost)
        self._compile_message(rule, kind, path, shown)
        if "oldSelf" in program.variables:
            if place.forbids_old is not None:
                self._invalid(
                    f"{path}.rule",
                    rule.get("rule"),
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within "
                    f"{place.forbids_old}",
                )
        else:
            self._refuse_optional(rule, path)

    def _refuse_optional(self, rule: Mapping[str, object], path: str) -> None:
        """Refuse the option if nothing uses it; a rule that does not compile uses nothing."""
        value = rule.get("optionalOldSelf")
        if value is not None:
            detail = "may not be set if oldSelf is not used in rule"
            self._invalid(f"{path}.optionalOldSelf", value, detail)

    def _compile_message(
        self, rule: Mapping[str, object], kind: SchemaType, path: str, shown: str
    ) -> None:
        text = _text(rule, "messageExpression")
        if not text.strip():
            return
        place = f"{path}.messageExpression"
        environment = environment_of(kind, optional_old=bool(rule.get("optionalOldSelf")))
        try:
            program = compile_expression(text, environment)
        except (CompilationError, InstantiationError) as error:
            detail = _detail("messageExpression compilation failed", error)
            self._add(place, "FieldValueInvalid", f"Invalid value: {shown}: {detail}")
            return
        if program.type.kind != "string":
            detail = "messageExpression must evaluate to a string"
            self._add(place, "FieldValueInvalid", f"Invalid value: {shown}: {detail}")
            return
        cost = estimate(program.root, kind)
        if cost > PER_RULE:
            self._findings.append(
                _too_dear(place, "estimated messageExpression cost", cost, PER_RULE)
            )
        self._observe(place, cost)

    def _observe(self, path: str, cost: int) -> None:
        self._total = min(self._total + cost, UNLIMITED)
        if cost >= PER_DEFINITION // 100:
            self._dear.append((cost, path))


def _text(rule: Mapping[str, object], name: str) -> str:
    value = rule.get(name)
    return value if isinstance(value, str) else ""


def _below(schema: Schema, path: str) -> list[tuple[str, Schema, str]]:
    found: list[tuple[str, Schema, str]] = []
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        found += [
            ("properties", inner, f"{path}.properties[{name}]")
            for name, inner in properties.items()
            if isinstance(inner, Mapping)
        ]
    for part in ("additionalProperties", "items"):
        inner = schema.get(part)
        if isinstance(inner, Mapping):
            found.append((part, inner, f"{path}.{part}"))
    return found


def _times(schema: Schema) -> int | None:
    """Return how often children can occur in one value of a schema, if that is limited."""
    limit: object = 1
    if schema.get("type") == "array":
        limit = schema.get("maxItems")
    elif schema.get("type") == "object" and schema.get("additionalProperties") is not None:
        limit = schema.get("maxProperties")
    return max(0, int(limit)) if isinstance(limit, int | float) else None


def _detail(what: str, error: CompilationError | InstantiationError) -> str:
    return f"{what}: {error}" if isinstance(error, CompilationError) else str(error)


def _shown_rule(rule: Mapping[str, object]) -> str:
    """Return a rule as the server's type prints it in JSON, which escapes for HTML."""
    shown = {
        "Rule": _text(rule, "rule"),
        "Message": _text(rule, "message"),
        "MessageExpression": _text(rule, "messageExpression"),
        "Reason": rule.get("reason"),
        "FieldPath": _text(rule, "fieldPath"),
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }
    text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _too_dear(path: str, what: str, cost: int, limit: int) -> RuleFinding:
    factor = cost / limit
    if factor > 100:
        shown = "more than 100x"
    elif factor < 1.5:
        shown = f"{factor:f}x"
    else:
        shown = f"{factor:.1f}x"
    message = f"Forbidden: {what} exceeds budget by factor of {shown} {_ADVICE}"
    return RuleFinding(path, "FieldValueForbidden", message)


_STEP = re.compile(r"\.([^.\[\]]+)|\['((?:[^'\\]|\\.)*)'\]")


def is_field_path(path: str, schema: Schema) -> bool:
    """Return whether a rule's `fieldPath`, such as `.spec.ports['a-b']`, leads to a field."""
    position = 0
    current: object = schema
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None or not isinstance(current, Mapping):
            return False
        position = step.end()
        name = step[1] if step[1] is not None else re.sub(r"\\(.)", r"\1", step[2])
        properties = current.get("properties")
        if isinstance(properties, Mapping) and properties:
            if name not in properties:
                return False
            current = properties[name]
        elif isinstance(current.get("additionalProperties"), Mapping):
            current = current["additionalProperties"]
        else:
            return False
    return True
