"""ValidatingAdmissionPolicies, MutatingAdmissionPolicies, and their bindings.

The rules are those of `pkg/apis/admissionregistration/validation`.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from listwatch.apiserver.kinds.admission_rules import (
    FAILURE_POLICIES,
    compiled_causes,
    condition_causes,
    default_scopes,
    expression_causes,
    match_causes,
    one_of,
)
from listwatch.apiserver.kinds.cells import at, count, field, text
from listwatch.apiserver.kinds.kind import Kind, Object, View
from listwatch.apiserver.kinds.rules import (
    label_selector,
    path_name,
    qualified_name,
    subdomain,
)
from listwatch.schema.causes import (
    Cause,
    duplicate,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)

if TYPE_CHECKING:
    from listwatch.cel.admission import Vocabulary

_REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge")
_ACTIONS = ("Audit", "Deny", "Warn")
_MUTABLE = ("*", "CONNECT", "CREATE", "UPDATE")
_PATCHES = {"ApplyConfiguration": "applyConfiguration", "JSONPatch": "jsonPatch"}
_REINVOCATIONS = ("IfNeeded", "Never")
_ANNOTATIONS_LIMIT = 20
_ANNOTATION_LENGTH = 5 * 1024
_IDENTIFIER = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035_WORDS = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)


def _default_match(match: Object | None) -> None:
    if match is None:
        return
    match.setdefault("matchPolicy", "Equivalent")
    match.setdefault("namespaceSelector", {})
    match.setdefault("objectSelector", {})
    default_scopes(match.get("resourceRules"))
    default_scopes(match.get("excludeResourceRules"))


def _default_policy(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("failurePolicy", "Fail")
    _default_match(spec.get("matchConstraints"))


def _default_validating_policy(obj: Object) -> None:
    _default_policy(obj)
    obj.setdefault("status", {})


def _default_binding(obj: Object) -> None:
    _default_match(obj.setdefault("spec", {}).get("matchResources"))


# -- policies --------------------------------------------------------------------------------


def _check_validating(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes, vocabulary = _common(spec)
    validations = spec.get("validations") or ()
    annotations = spec.get("auditAnnotations") or ()
    if not validations and not annotations:
        why = "validations or auditAnnotations must contain at least one item"
        return [
            *causes,
            required("spec.validations", why),
            required("spec.auditAnnotations", why),
        ]
    for index, each in enumerate(validations):
        causes += _validation(each, vocabulary, f"spec.validations[{index}]")
    if len(annotations) > _ANNOTATIONS_LIMIT:
        why = f"must not have more than {_ANNOTATIONS_LIMIT} auditAnnotations"
        causes.append(invalid_value("spec.auditAnnotations", annotations, why))
    keys: set[str] = set()
    for index, each in enumerate(annotations):
        where = f"spec.auditAnnotations[{index}]"
        causes += _annotation(each, obj["metadata"].get("name") or "", vocabulary, where)
        key = each.get("key") or ""
        if key in keys:
            causes.append(duplicate(f"{where}.key", key))
        keys.add(key)
    return causes


def _common(spec: View) -> tuple[list[Cause], "Vocabulary"]:
    """Return the violations in the parts that both kinds of policies share, and the vocabulary."""
    from listwatch.cel.admission import Vocabulary  # noqa: PLC0415 - a parser, seldom needed

    causes = one_of(spec, "spec", "failurePolicy", FAILURE_POLICIES)
    kind = spec.get("paramKind")
    if kind is not None:
        causes += _param_kind(kind, "spec.paramKind")
    match = spec.get("matchConstraints")
    if match is None:
        causes.append(required("spec.matchConstraints"))
    else:
        causes += match_causes(match, "spec.matchConstraints")
        if not match.get("resourceRules"):
            causes.append(required("spec.matchConstraints.resourceRules"))
    causes += condition_causes(
        spec.get("matchConditions"), "spec.matchConditions", params=kind is not None
    )
    vocabulary = Vocabulary(params=kind is not None)
    for index, each in enumerate(spec.get("variables") or ()):
        causes += _variable(each, vocabulary, f"spec.variables[{index}]")
    return causes, vocabulary


def _param_kind(kind: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    given = kind.get("apiVersion") or ""
    where = f"{path}.apiVersion"
    if not given:
        causes.append(required(where))
    elif given.count("/") > 1:
        causes.append(invalid_value(where, given, f"unexpected GroupVersion string: {given}"))
    else:
        group, _, version = given.rpartition("/")
        problems = [cause.message for cause in subdomain(where, group)] if group else []
        if problems:
            causes += subdomain(where, group)
        if not version:
            causes.append(invalid_value(where, given, "version must be specified"))
        elif not _is_label_1035(version):
            causes.append(invalid_value(where, version, _LABEL_1035_WORDS))
    name = kind.get("kind") or ""
    if not name:
        causes.append(required(f"{path}.kind"))
    elif not _is_label_1035(name.lower()):
        why = f"may have mixed case, but should otherwise match: {_LABEL_1035_WORDS}"
        causes.append(invalid_value(f"{path}.kind", name, why))
    return causes


def _is_label_1035(text: str) -> bool:
    return len(text) <= 63 and _LABEL_1035.fullmatch(text) is not None


def _variable(variable: View, vocabulary: "Vocabulary", path: str) -> list[Cause]:
    from listwatch.cel.syntax import RESERVED_WORDS  # noqa: PLC0415 - as above

    causes: list[Cause] = []
    name, expression = variable.get("name") or "", variable.get("expression") or ""
    if not name.strip():
        causes.append(required(f"{path}.name", "name is not specified"))
    elif not _IDENTIFIER.fullmatch(name) or name in RESERVED_WORDS | {
        "true",
        "false",
        "null",
        "in",
    }:
        causes.append(invalid_value(f"{path}.name", name, "name is not a valid CEL identifier"))
    if not expression.strip():
        return [*causes, required(f"{path}.expression", "expression is not specified")]
    vocabulary.compose([variable])
    return causes + compiled_causes(vocabulary.variables[name], f"{path}.expression", expression)


def _validation(validation: View, vocabulary: "Vocabulary", path: str) -> list[Cause]:
    from listwatch.cel.types import BOOL, STRING  # noqa: PLC0415 - as above

    causes: list[Cause] = []
    expression = validation.get("expression") or ""
    if not expression.strip():
        causes.append(required(f"{path}.expression", "expression is not specified"))
    else:
        causes += expression_causes(vocabulary, expression, f"{path}.expression", BOOL)
    by = validation.get("messageExpression") or ""
    if by and not by.strip():
        why = "must be non-empty if specified"
        causes.append(invalid_value(f"{path}.messageExpression", by, why))
    elif by:
        silent = vocabulary.but(authorizer=False)
        causes += expression_causes(silent, by, f"{path}.messageExpression", STRING)
    message = validation.get("message") or ""
    if message and not message.strip():
        why = "message must be non-empty if specified"
        causes.append(invalid_value(f"{path}.message", message, why))
    elif re.search(r"[\n\r]", message.strip()):
        causes.append(
            invalid_value(f"{path}.message", message, "message must not contain line breaks")
        )
    reason = validation.get("reason")
    if reason is not None and reason not in _REASONS:
        causes.append(not_supported(f"{path}.reason", reason, _REASONS))
    return causes


def _annotation(annotation: View, policy: str, vocabulary: "Vocabulary", path: str) -> list[Cause]:
    from listwatch.cel.types import NULL, STRING  # noqa: PLC0415 - as above

    key = annotation.get("key") or ""
    if policy:
        causes = qualified_name(f"{path}.key", f"{policy}/{key}")
    else:
        causes = [invalid_value(f"{path}.key", key, "requires metadata.name be non-empty")]
    given = annotation.get("valueExpression") or ""
    expression, where = given.strip(), f"{path}.valueExpression"
    if not expression:
        causes.append(required(where, "valueExpression is not specified"))
    elif len(expression.encode()) > _ANNOTATION_LENGTH:
        causes.append(required(where, f"must not exceed {_ANNOTATION_LENGTH} bytes in length"))
    else:
        causes += expression_causes(vocabulary, expression, where, STRING, NULL, shown=given)
    return causes


def _check_mutating(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes, vocabulary = _common(spec)
    causes += _mutable(spec.get("matchConstraints"), "spec.matchConstraints")
    mutations = spec.get("mutations") or ()
    if not mutations:
        causes.append(required("spec.mutations", "mutations must contain at least one item"))
    for index, each in enumerate(mutations):
        causes += _mutation(each, vocabulary.but(patches=True), f"spec.mutations[{index}]")
    return causes + one_of(spec, "spec", "reinvocationPolicy", _REINVOCATIONS)


def _mutable(match: View | None, path: str) -> list[Cause]:
    """Return the violations by listed operations that can't be mutated."""
    return [
        not_supported(f"{path}.resourceRules.operations", each, _MUTABLE)
        for rule in (match or {}).get("resourceRules") or ()
        for each in rule.get("operations") or ()
        if each not in _MUTABLE
    ]


def _mutation(mutation: View, vocabulary: "Vocabulary", path: str) -> list[Cause]:
    from listwatch.cel.admission import JSON_PATCH, OBJECT  # noqa: PLC0415 - as above
    from listwatch.cel.types import list_of  # noqa: PLC0415 - as above

    causes = one_of(mutation, path, "patchType", tuple(_PATCHES))
    if causes:
        return causes
    kind = mutation["patchType"]
    for patch_type, key in _PATCHES.items():
        given, where = mutation.get(key), f"{path}.{key}"
        if patch_type != kind:
            if given is not None:
                why = f"must not be specified when patchType is {kind}"
                causes.append(invalid_value(where, f"{{{key}}}", why))
            continue
        if given is None:
            causes.append(required(where, f"must be specified when patchType is {kind}"))
            continue
        expression = (given.get("expression") or "").strip()
        if not expression:
            causes.append(required(f"{where}.expression"))
            continue
        wanted = OBJECT if kind == "ApplyConfiguration" else list_of(JSON_PATCH)
        causes += expression_causes(vocabulary, expression, f"{where}.expression", wanted)
    return causes


# -- bindings --------------------------------------------------------------------------------


def _bound(spec: View, match_path: str) -> list[Cause]:
    name = spec.get("policyName") or ""
    causes = subdomain("spec.policyName", name) if name else [required("spec.policyName")]
    reference = spec.get("paramRef")
    if reference is not None:
        causes += _param_reference(reference, "spec.paramRef")
    match = spec.get("matchResources")
    return causes if match is None else causes + match_causes(match, match_path)


def _param_reference(reference: View, path: str) -> list[Cause]:
    causes: list[Cause] = []
    name, selector = reference.get("name") or "", reference.get("selector")
    both = "name and selector are mutually exclusive"
    if name:
        causes += path_name(f"{path}.name", name)
        if selector is not None:
            causes.append(forbidden_value(f"{path}.name", both))
    if selector is not None:
        causes += label_selector(selector, f"{path}.selector")
        if name:
            causes.append(forbidden_value(f"{path}.selector", both))
    if not name and selector is None:
        causes.append(required(path, "one of name or selector must be specified"))
    return causes + one_of(reference, path, "parameterNotFoundAction", ("Deny", "Allow"))


def _check_validating_binding(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    # a real server misspells the path
    causes = _bound(spec, "spec.matchResouces")
    path, actions = "spec.validationActions", spec.get("validationActions") or []
    for index, each in enumerate(actions):
        if each not in _ACTIONS:
            causes.append(not_supported(f"{path}[{index}]", each, _ACTIONS))
        if each in actions[:index]:
            causes.append(duplicate(f"{path}[{index}]", each))
    if "Deny" in actions and "Warn" in actions:
        why = (
            "must not contain both Deny and Warn (repeating the same validation failure "
            "information in the API response and headers serves no purpose)"
        )
        causes.append(invalid_value(path, actions, why))
    if not actions:
        causes.append(required(path, "at least one validation action is required"))
    return causes


def _check_mutating_binding(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = _bound(spec, "spec.matchResources")
    return causes + _mutable(spec.get("matchResources"), "spec.matchResources")


def _param_cell(obj: View, _: object) -> str:
    kind = at(obj, "spec.paramKind")
    return f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else "<unset>"


_GROUP = "admissionregistration.k8s.io"
#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    f"{_GROUP}/validatingadmissionpolicies": Kind(
        generation=True,
        unconditional_update=False,
        defaults=_default_validating_policy,
        rule=_check_validating,
        compiles=True,
        cells={"Validations": count("spec.validations"), "ParamKind": _param_cell},
    ),
    f"{_GROUP}/mutatingadmissionpolicies": Kind(
        stored_as=f"{_GROUP}/v1beta1",
        generation=True,
        unconditional_update=False,
        defaults=_default_policy,
        rule=_check_mutating,
        compiles=True,
        cells={"Mutations": count("spec.mutations"), "ParamKind": _param_cell},
    ),
    f"{_GROUP}/validatingadmissionpolicybindings": Kind(
        generation=True,
        unconditional_update=False,
        defaults=_default_binding,
        rule=_check_validating_binding,
        cells={
            "PolicyName": field("spec.policyName"),
            "ParamRef": text("spec.paramRef.name", "<unset>"),
        },
    ),
    f"{_GROUP}/mutatingadmissionpolicybindings": Kind(
        stored_as=f"{_GROUP}/v1beta1",
        generation=True,
        unconditional_update=False,
        defaults=_default_binding,
        rule=_check_mutating_binding,
        cells={
            "PolicyName": field("spec.policyName"),
            "ParamRef": text("spec.paramRef.name", "<unset>"),
        },
    ),
}
