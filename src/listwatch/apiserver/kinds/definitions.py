"""The kind CustomResourceDefinition: defaults, rules, status and deletion."""

import re
from collections.abc import Mapping
from typing import Any

from listwatch.apiserver.kinds.custom import has_rules
from listwatch.apiserver.kinds.definition_rules import scale_causes, schema_causes
from listwatch.apiserver.kinds.kind import Ending, Kind
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required

Object = dict[str, Any]


DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions"


_VERSION_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


_VERSION_NAME_WORDS = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)


_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")


CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


def default_definition(obj: Object) -> None:
    """Fill in a definition's defaults."""
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    if kind:
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {}).setdefault("strategy", "None")
    for version in spec.get("versions") or ():
        version.setdefault("served", False)
        version.setdefault("storage", False)


def admit_definition(obj: Object) -> None:
    """Give a new definition its status."""
    spec = obj["spec"]
    stored = [each.get("name", "") for each in spec.get("versions") or () if each.get("storage")]
    obj["status"] = {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored,
    }


def validate_definition(obj: Mapping[str, Any]) -> list[Cause]:
    """Return the rules that a definition breaks."""
    spec = obj.get("spec") or {}
    names = spec.get("names") or {}
    causes: list[Cause] = []
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    name = obj["metadata"].get("name", "")
    if name != wanted:
        causes.append(
            invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
        )
    causes += [required(f"spec.names.{key}") for key in ("plural", "kind") if not names.get(key)]
    if not spec.get("group"):
        causes.append(required("spec.group"))
    elif "." not in spec["group"]:
        causes.append(
            invalid_value("spec.group", spec["group"], "should be a domain with at least one dot")
        )
    scope = spec.get("scope")
    if scope not in {"Namespaced", "Cluster"}:
        causes.append(
            not_supported("spec.scope", scope, ["Cluster", "Namespaced"])
            if scope
            else required("spec.scope")
        )
    if spec.get("preserveUnknownFields"):
        causes.append(invalid_value("spec.preserveUnknownFields", True, "must be false"))
    causes += _conversion_causes(spec.get("conversion") or {})
    causes += _storage_causes(spec.get("versions") or [])
    versions = spec.get("versions") or []
    alone = len(versions) == 1
    for index, version in enumerate(versions):
        if not _VERSION_NAME.fullmatch(version.get("name", "")):
            path = f"spec.versions[{index}].name"
            causes.append(invalid_value(path, version.get("name", ""), _VERSION_NAME_WORDS))
        root = "spec" if alone else f"spec.versions[{index}]"
        for number, column in enumerate(version.get("additionalPrinterColumns") or ()):
            causes += _column_causes(column, f"{root}.additionalPrinterColumns[{number}]")
        causes += [
            required(f"{root}.selectableFields[{number}].jsonPath")
            for number, each in enumerate(version.get("selectableFields") or ())
            if not each.get("jsonPath")
        ]
        scale = (version.get("subresources") or {}).get("scale")
        if scale is not None:
            causes += scale_causes(scale, f"{root}.subresources.scale")
        raw = (version.get("schema") or {}).get("openAPIV3Schema")
        if raw is None:
            if not spec.get("preserveUnknownFields"):
                causes.append(required(f"spec.versions[{index}].schema.openAPIV3Schema"))
            continue
        # the internal form has one schema for all versions where they do not differ
        root = "spec.validation" if alone else f"spec.versions[{index}].schema"
        path = f"{root}.openAPIV3Schema"
        if raw.get("type") != "object":
            causes.append(
                invalid_value(f"{path}.type", raw.get("type", ""), "must be object at the root")
                if raw.get("type")
                else required(f"{path}.type", "must not be empty at the root")
            )
        of_schema = schema_causes(raw, path)
        if not of_schema and has_rules(raw):
            from listwatch.cel import rule_problems  # noqa: PLC0415 - as in custom.rules_of

            of_schema = [Cause(*one) for one in rule_problems(raw, path)]
        causes += of_schema
    return causes


def _storage_causes(versions: list[Object]) -> list[Cause]:
    causes: list[Cause] = []
    storing = sum(bool(each.get("storage")) for each in versions)
    if storing != 1:
        why = "must have exactly one version marked as storage version"
        causes.append(invalid_value("spec.versions", [_inside(each) for each in versions], why))
    if not storing:
        why = "must have at least one stored version"
        causes.append(invalid_value("status.storedVersions", [], why))
    return causes


def _conversion_causes(conversion: Mapping[str, Any]) -> list[Cause]:
    strategy, webhook = conversion.get("strategy", "None"), conversion.get("webhook")
    if strategy not in {"None", "Webhook"}:
        return [not_supported("spec.conversion.strategy", strategy, ["None", "Webhook"])]
    if strategy == "None":
        if webhook is None:
            return []
        why = "should not be set when strategy is not set to Webhook"
        return [forbidden_value("spec.conversion.webhookClientConfig", why)]
    causes = []
    if not (webhook or {}).get("clientConfig"):
        why = "required when strategy is set to Webhook"
        causes.append(required("spec.conversion.webhookClientConfig", why))
    if not (webhook or {}).get("conversionReviewVersions"):
        causes.append(required("spec.conversion.conversionReviewVersions"))
    return causes


def _inside(version: Mapping[str, Any]) -> Object:
    """Return a version as the server has it inside, under its own names.

    What all versions have in common, such as a schema, is not kept in each.
    """
    return {
        "Name": version.get("name", ""),
        "Served": bool(version.get("served")),
        "Storage": bool(version.get("storage")),
        "Deprecated": bool(version.get("deprecated")),
        "DeprecationWarning": version.get("deprecationWarning"),
        "Schema": None,
        "Subresources": None,
        "AdditionalPrinterColumns": None,
        "SelectableFields": None,
    }


def _column_causes(column: Mapping[str, Any], path: str) -> list[Cause]:
    causes = [] if column.get("name") else [required(f"{path}.name")]
    if not column.get("type"):
        causes.append(required(f"{path}.type", f"must be one of {','.join(_COLUMN_TYPES)}"))
    elif column["type"] not in _COLUMN_TYPES:
        causes.append(not_supported(f"{path}.type", column["type"], _COLUMN_TYPES))
    if not column.get("jsonPath"):
        causes.append(required(f"{path}.JSONPath"))
    return causes


def is_established(definition: Mapping[str, Any]) -> bool:
    """Tell whether a definition is served, as its conditions say."""
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(
        each.get("type") == "Established" and each.get("status") == "True" for each in conditions
    )


def _end_definition(obj: Object, now: str) -> Ending:
    metadata = obj["metadata"]
    if metadata.get("deletionTimestamp"):
        return Ending.AS_USUAL
    metadata["deletionTimestamp"] = now
    finalizers = metadata.setdefault("finalizers", [])
    if CLEANUP not in finalizers:
        finalizers.append(CLEANUP)
    status = obj.setdefault("status", {})
    conditions = status.get("conditions") or []
    conditions.append(
        {
            "type": "Terminating",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "InstanceDeletionPending",
            "message": (
                "CustomResourceDefinition marked for deletion; CustomResource deletion will begin "
                "soon"
            ),
        }
    )
    status["conditions"] = conditions
    return Ending.MARKED


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "apiextensions.k8s.io/customresourcedefinitions": Kind(
        end=_end_definition,
        generation=True,
        unconditional_update=False,
        defaults=default_definition,
        admit=admit_definition,
        rule=validate_definition,
    ),
}
