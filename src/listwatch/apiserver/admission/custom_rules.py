"""The rules for custom objects: those of their schemas, and the CEL rules within them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.kinds.custom import SchemaRules, schema_causes
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.webhooks.consultation import can_ask, in_thread
from listwatch.schema.causes import Cause, invalid_value

if TYPE_CHECKING:
    from listwatch.cel import RuleResult, Rules
    from listwatch.cel.patience import Patience

View = Mapping[str, Any]


def validate_custom(
    resource: APIResource,
    obj: View,
    old: View | None = None,
    *,
    status_only: bool = False,
    warnings: list[str] | None = None,
) -> list[Cause]:
    """Return the rules that a custom object violates.

    Args:
        resource: the object's.
        obj: the whole object.
        old: the previous state; violations in unchanged parts are tolerated.
        status_only: only its status is written.
        warnings: receives violations in unchanged parts.

    Raises:
        Unanswered: long rules must first be compiled or evaluated in a thread.
    """
    kind = obj.get("kind")
    if kind is not None and kind != resource.kind:
        return [invalid_value("kind", kind, f"must be {resource.kind}")]
    causes = schema_causes(resource, obj, old, status_only=status_only)
    return causes + _rule_causes(resource, obj, old, causes, warnings)


# With one of these errors, the object lacks the shape for which its rules were compiled.
_BLOCKING = frozenset(
    {
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    }
)
_NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation"
)


def _rule_causes(
    resource: APIResource,
    obj: View,
    old: View | None,
    causes: list[Cause],
    warnings: list[str] | None,
) -> list[Cause]:
    assert resource.custom is not None  # noqa: S101 - called for custom resources only
    rules: SchemaRules | None = resource.custom["rules"]
    if rules is None:
        return []
    if any(cause.reason in _BLOCKING for cause in causes):
        return [invalid_value("<nil>", None, _NOT_CHECKED)]
    # The stored object lacks these fields, but rules at the root may read them.
    named = {"apiVersion": resource.api_version, "kind": resource.kind}
    result = _applied(
        _compiled(resource, rules), {**obj, **named}, None if old is None else {**old, **named}
    )
    if warnings is not None:
        warnings += [f"{one.field}: {one.message}" for one in result.warnings]
    return [Cause(*one) for one in result.errors]


def _compiled(resource: APIResource, rules: SchemaRules) -> "Rules":
    """Return compiled rules; a request waits while they are compiled in a thread."""
    if rules.are_compiled or not can_ask():
        return rules.compiled()
    from listwatch.cel import CompilationError, InstantiationError  # noqa: PLC0415 - a parser, seldom needed

    def compiled() -> "Rules":
        try:
            return rules.compiled()
        except (CompilationError, InstantiationError) as error:
            what = f"a rule of {resource.name}.{resource.group} does not compile"
            raise refusal.internal_error(f"{what}: {error}") from None

    return in_thread(("compile rules", rules), compiled)


def _applied(rules: "Rules", obj: View, old: View | None) -> "RuleResult":
    """Return the result of rules; a request waits while long ones are evaluated in a thread."""
    if not can_ask():
        return rules.validate(obj, old)
    from listwatch.apiserver.admission.patience import soon  # noqa: PLC0415 - as above

    def work(patience: "Patience | None" = None) -> "RuleResult":
        return rules.validate(obj, old, patience)

    return soon(("rules", rules, msgspec.json.encode([obj, old])), work, work)
