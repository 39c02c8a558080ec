"""Parts shared by webhook and policy configurations: rules, selectors, conditions.

The rules are those of `pkg/apis/admissionregistration/validation`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from listwatch.apiserver.kinds.kind import Object, View
from listwatch.apiserver.kinds.rules import label_selector, path_name, qualified_name
from listwatch.schema.causes import (
    Cause,
    duplicate,
    invalid_value,
    not_supported,
    required,
)

if TYPE_CHECKING:
    from listwatch.cel.admission import Expression, Vocabulary

FAILURE_POLICIES = ("Fail", "Ignore")
MATCH_POLICIES = ("Equivalent", "Exact")
_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPES = ("*", "Cluster", "Namespaced")
_CONDITIONS_LIMIT = 64


def default_scopes(rules: Sequence[Object] | None) -> None:
    """Set the scope of rules without one."""
    for rule in rules or ():
        rule.setdefault("scope", "*")


def one_of(obj: View, path: str, key: str, known: Sequence[str]) -> list[Cause]:
    """Return why a value is not one of the known ones, or is missing."""
    value = obj.get(key)
    if value in {None, ""}:
        return [required(f"{path}.{key}")]
    return [] if value in known else [not_supported(f"{path}.{key}", value, known)]


def rule_causes(rule: View, path: str) -> list[Cause]:
    """Return the violations of one rule of a webhook or policy."""
    causes: list[Cause] = []
    for index, name in enumerate(rule.get("resourceNames") or ()):
        where = f"{path}.resourceNames[{index}]"
        causes += path_name(where, name)
        if name in rule["resourceNames"][:index]:
            causes.append(duplicate(where, name))
    operations = rule.get("operations") or []
    if not operations:
        causes.append(required(f"{path}.operations"))
    causes += _alone("*", operations, f"{path}.operations", "operations")
    causes += [
        not_supported(f"{path}.operations[{index}]", each, _OPERATIONS)
        for index, each in enumerate(operations)
        if each not in _OPERATIONS
    ]
    for key, words in (("apiGroups", "API groups"), ("apiVersions", "API versions")):
        values = rule.get(key) or []
        if not values:
            causes.append(required(f"{path}.{key}"))
        causes += _alone("*", values, f"{path}.{key}", words)
        if key == "apiVersions":
            causes += [
                required(f"{path}.{key}[{index}]") for index, each in enumerate(values) if not each
            ]
    causes += _resources(rule.get("resources") or [], f"{path}.resources")
    scope = rule.get("scope")
    if scope is not None and scope not in _SCOPES:
        causes.append(not_supported(f"{path}.scope", scope, _SCOPES))
    return causes


def _alone(sign: str, values: Sequence[str], path: str, words: str) -> list[Cause]:
    if len(values) > 1 and sign in values:
        return [
            invalid_value(path, values, f"if '{sign}' is present, must not specify other {words}")
        ]
    return []


def _resources(resources: Sequence[str], path: str) -> list[Cause]:
    causes: list[Cause] = [] if resources else [required(path)]
    whole: set[str] = set()
    everywhere: set[str] = set()
    bare = False
    for index, each in enumerate(resources):
        where = f"{path}[{index}]"
        if not each:
            causes.append(required(where))
            continue
        name, slash, sub = each.partition("/")
        if not slash:
            # as on a real server, the last one decides
            bare = each != "*"
            continue
        if name in whole:
            why = f"if '{name}/*' is present, must not specify {each}"
            causes.append(invalid_value(where, each, why))
        if sub in everywhere:
            why = f"if '*/{sub}' is present, must not specify {each}"
            causes.append(invalid_value(where, each, why))
        if sub == "*":
            whole.add(name)
        if name == "*":
            everywhere.add(sub)
    causes += _alone("*/*", resources, path, "resources")
    if "*" in resources and bare:
        why = "if '*' is present, must not specify other resources without subresources"
        causes.append(invalid_value(path, resources, why))
    return causes


def match_causes(match: View, path: str) -> list[Cause]:
    """Return the violations of a policy's or binding's match resources."""
    causes = one_of(match, path, "matchPolicy", MATCH_POLICIES)
    for key in ("namespaceSelector", "objectSelector"):
        if match.get(key) is None:
            causes.append(required(f"{path}.{key}"))
        causes += label_selector(match.get(key), f"{path}.{key}")
    for key in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(match.get(key) or ()):
            causes += rule_causes(rule, f"{path}.{key}[{index}]")
    return causes


def condition_causes(
    conditions: Sequence[View] | None,
    path: str,
    *,
    params: bool = False,
) -> list[Cause]:
    """Return the violations of match conditions.

    Args:
        conditions: as in `matchConditions`.
        path: their path.
        params: whether they may use `params`.
    """
    if not conditions:
        return []
    from listwatch.cel.admission import Vocabulary  # noqa: PLC0415 - a parser, seldom needed
    from listwatch.cel.types import BOOL  # noqa: PLC0415 - as above

    causes: list[Cause] = []
    if len(conditions) > _CONDITIONS_LIMIT:
        many = f"Too many: {len(conditions)}: must have at most {_CONDITIONS_LIMIT} items"
        causes.append(Cause(path, "FieldValueTooMany", many))
    vocabulary = Vocabulary(params=params)
    seen: Counter[str] = Counter()
    for index, each in enumerate(conditions):
        where = f"{path}[{index}]"
        text = (each.get("expression") or "").strip()
        if not text:
            causes.append(required(f"{where}.expression"))
        else:
            causes += expression_causes(vocabulary, text, f"{where}.expression", BOOL)
        name = each.get("name") or ""
        if not name:
            causes.append(required(f"{where}.name"))
            continue
        causes += qualified_name(f"{where}.name", name)
        if seen[name]:
            causes.append(duplicate(f"{where}.name", name))
        seen[name] += 1
    return causes


def expression_causes(
    vocabulary: "Vocabulary", text: str, path: str, *wanted: Any, shown: str | None = None
) -> list[Cause]:
    """Return why an expression is refused.

    Args:
        vocabulary: the variables it may use.
        text: the expression.
        path: its path.
        wanted: the accepted types of its value; none means any.
        shown: shown in the refusal instead of the expression.
    """
    from listwatch.cel.admission import compile_as  # noqa: PLC0415 - a parser, seldom needed

    found = compile_as(text, vocabulary.environment(), *wanted)
    return compiled_causes(found, path, text if shown is None else shown)


def compiled_causes(found: "Expression", path: str, shown: str) -> list[Cause]:
    """Return why a compiled expression is refused."""
    if found.program is not None:
        return []
    if found.internal:
        return [Cause(path, "InternalError", f"Internal error: {found.error}")]
    return [invalid_value(path, shown, found.error)]
