"""The kind CustomResourceDefinition: defaults, rules, status and deletion."""

import re
from collections.abc import Mapping
from typing import Any

from listwatch.apiserver.kinds.client_rules import client_causes, default_client, review_causes
from listwatch.apiserver.kinds.definition_rules import (
    path_problem,
    scale_causes,
    schema_causes,
    selectable_causes,
)
from listwatch.apiserver.kinds.kind import Ending, Kind
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required
from listwatch.selector import subdomain_problems

Object = dict[str, Any]


DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions"


_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


_LABEL_WORDS = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)


_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")


_COLUMN_FORMATS = (
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
)


CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


def default_definition(obj: Object) -> None:
    """Set a definition's defaults."""
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    if kind:
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    conversion = spec.setdefault("conversion", {"strategy": "None"})
    default_client((conversion.get("webhook") or {}).get("clientConfig"))
    for version in spec.get("versions") or ():
        version.setdefault("served", False)
        version.setdefault("storage", False)


def admit_definition(obj: Object) -> None:
    """Set the status of a new definition."""
    spec = obj["spec"]
    stored = [each.get("name", "") for each in spec.get("versions") or () if each.get("storage")]
    obj["status"] = {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored,
    }


def validate_definition(obj: Mapping[str, Any]) -> list[Cause]:
    """Return the rules that a definition violates."""
    spec = obj.get("spec") or {}
    names = spec.get("names") or {}
    causes: list[Cause] = []
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    name = obj["metadata"].get("name", "")
    if name != wanted:
        causes.append(
            invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
        )
    causes += _names_causes(names)
    group = spec.get("group")
    if not group:
        causes.append(required("spec.group"))
    elif problems := subdomain_problems(group):
        causes.append(invalid_value("spec.group", group, ",".join(problems)))
    elif "." not in group:
        causes.append(
            invalid_value("spec.group", group, "should be a domain with at least one dot")
        )
    scope = spec.get("scope")
    if scope not in {"Namespaced", "Cluster"}:
        causes.append(
            not_supported("spec.scope", scope, ["Cluster", "Namespaced"])
            if scope
            else required("spec.scope")
        )
    if spec.get("preserveUnknownFields"):
        strategy = (spec.get("conversion") or {}).get("strategy")
        if strategy == "Webhook":
            why = "must be None if spec.preserveUnknownFields is true"
            causes.append(invalid_value("spec.conversion.strategy", strategy, why))
        why = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in "
            "spec.versions[*].schema instead"
        )
        causes.append(invalid_value("spec.preserveUnknownFields", True, why))
    if spec.get("conversion") is not None:
        causes += _conversion_causes(spec["conversion"])
    versions = spec.get("versions") or []
    causes += _storage_causes(versions)
    for index, version in enumerate(versions):
        causes += _version_causes(version, f"spec.versions[{index}]", first=index == 0)
    causes += _parts_causes(versions)
    return causes


def _label_causes(path: str, text: str) -> list[Cause]:
    return [] if _LABEL.fullmatch(text) else [invalid_value(path, text, _LABEL_WORDS)]


def _names_causes(names: Mapping[str, Any]) -> list[Cause]:
    causes: list[Cause] = []
    for key in ("plural", "singular", "kind", "listKind"):
        path, name = f"spec.names.{key}", names.get(key) or ""
        mixed = key in {"kind", "listKind"}
        if not name:
            causes.append(required(path))
        elif not _LABEL.fullmatch(name.lower() if mixed else name):
            why = f"may have mixed case, but should otherwise match: {_LABEL_WORDS}"
            causes.append(invalid_value(path, name, why if mixed else _LABEL_WORDS))
    for key in ("shortNames", "categories"):
        for index, name in enumerate(names.get(key) or ()):
            causes += _label_causes(f"spec.names.{key}[{index}]", name)
    kind = names.get("kind")
    if kind and kind == names.get("listKind"):
        why = "kind and listKind may not be the same"
        causes.append(invalid_value("spec.names.listKind", kind, why))
    return causes


def _version_causes(version: Mapping[str, Any], path: str, *, first: bool) -> list[Cause]:
    """Return the violations in the parts that each version has separately."""
    causes = []
    name = version.get("name", "")
    if not _LABEL.fullmatch(name):
        # the first version is also in a field that is older than `versions`
        places = (f"{path}.name", "spec.version") if first and name else (f"{path}.name",)
        causes += [invalid_value(place, name, _LABEL_WORDS) for place in places]
    warning = version.get("deprecationWarning")
    if warning is not None:
        why = ""
        if not version.get("deprecated"):
            why = "can only be set for deprecated versions"
        elif len(warning.encode()) > 256:
            why = "must be <= 256 characters long"
        elif not warning:
            why = "must not be an empty string"
        elif not warning.isprintable():
            why = "must only contain printable UTF-8 characters"
        if why:
            causes.append(invalid_value(f"{path}.deprecationWarning", warning, why))
    if (version.get("schema") or {}).get("openAPIV3Schema") is None:
        causes.append(required(f"{path}.schema.openAPIV3Schema"))
    return causes


def _parts_causes(versions: list[Object]) -> list[Cause]:
    """Return the violations in the parts that all versions may have in common.

    If they are equal in all versions, a real server keeps them once, outside, and uses that path.
    """
    causes: list[Cause] = []
    for part, place, check in (
        ("schema", "validation", _schema_causes),
        ("subresources", "subresources", _subresource_causes),
        ("additionalPrinterColumns", "additionalPrinterColumns", _columns_causes),
        ("selectableFields", "selectableFields", _selectable_causes),
    ):
        if versions and all(each.get(part) == versions[0].get(part) for each in versions):
            causes += check(versions[0], f"spec.{place}")
        else:
            for index, version in enumerate(versions):
                causes += check(version, f"spec.versions[{index}].{part}")
    return causes


def _schema_of(version: Mapping[str, Any]) -> Mapping[str, Any] | None:
    raw: Mapping[str, Any] | None = (version.get("schema") or {}).get("openAPIV3Schema")
    return raw


def _schema_causes(version: Mapping[str, Any], path: str) -> list[Cause]:
    raw = _schema_of(version)
    return [] if raw is None else schema_causes(raw, f"{path}.openAPIV3Schema")


def _subresource_causes(version: Mapping[str, Any], path: str) -> list[Cause]:
    scale = (version.get("subresources") or {}).get("scale")
    return [] if scale is None else scale_causes(scale, f"{path}.scale")


def _columns_causes(version: Mapping[str, Any], path: str) -> list[Cause]:
    columns = enumerate(version.get("additionalPrinterColumns") or ())
    return [
        cause for number, column in columns for cause in _column_causes(column, f"{path}[{number}]")
    ]


def _selectable_causes(version: Mapping[str, Any], path: str) -> list[Cause]:
    fields, raw = version.get("selectableFields") or (), _schema_of(version)
    return [] if raw is None else list(selectable_causes(fields, raw, path))


def _storage_causes(versions: list[Object]) -> list[Cause]:
    causes: list[Cause] = []
    storing = sum(bool(each.get("storage")) for each in versions)
    if storing != 1:
        why = "must have exactly one version marked as storage version"
        causes.append(invalid_value("spec.versions", _inside(versions), why))
    if not storing:
        why = "must have at least one stored version"
        causes.append(invalid_value("status.storedVersions", None, why))
    if len({each.get("name", "") for each in versions}) < len(versions):
        why = "must contain unique version names"
        causes.append(invalid_value("spec.versions", _inside(versions), why))
    return causes


def _conversion_causes(conversion: Mapping[str, Any]) -> list[Cause]:
    path = "spec.conversion"
    strategy, webhook = conversion.get("strategy") or "", conversion.get("webhook") or {}
    config, versions = webhook.get("clientConfig"), webhook.get("conversionReviewVersions") or ()
    causes: list[Cause] = []
    if not strategy:
        causes.append(required(f"{path}.strategy"))
    elif strategy not in {"None", "Webhook"}:
        causes.append(not_supported(f"{path}.strategy", strategy, ["None", "Webhook"]))
    if strategy != "Webhook":
        why = "should not be set when strategy is not set to Webhook"
        if config is not None:
            causes.append(forbidden_value(f"{path}.webhookClientConfig", why))
        if versions:
            causes.append(forbidden_value(f"{path}.conversionReviewVersions", why))
        return causes
    if config is None:
        why = "required when strategy is set to Webhook"
        causes.append(required(f"{path}.webhookClientConfig", why))
    else:
        causes += client_causes(config, f"{path}.webhookClientConfig")
    return causes + review_causes(versions, f"{path}.conversionReviewVersions")


def _inside(versions: list[Object]) -> list[Object] | None:
    """Return the versions in the server's internal form; None if there are none.

    Parts common to all versions, such as a schema, are missing in each.
    """
    return [
        {
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
        for version in versions
    ] or None


def _column_causes(column: Mapping[str, Any], path: str) -> list[Cause]:
    causes = [] if column.get("name") else [required(f"{path}.name")]
    if not column.get("type"):
        causes.append(required(f"{path}.type", f"must be one of {','.join(_COLUMN_TYPES)}"))
    elif column["type"] not in _COLUMN_TYPES:
        why = f"must be one of {','.join(_COLUMN_TYPES)}"
        causes.append(invalid_value(f"{path}.type", column["type"], why))
    form = column.get("format")
    if form and form not in _COLUMN_FORMATS:
        why = f"must be one of {','.join(_COLUMN_FORMATS)}"
        causes.append(invalid_value(f"{path}.format", form, why))
    if not column.get("jsonPath"):
        causes.append(required(f"{path}.JSONPath"))
    elif problem := path_problem(column["jsonPath"], f"{path}.JSONPath"):
        causes.append(problem)
    return causes


def _carry_stored(new: Object, _: Mapping[str, Any]) -> None:
    """Note that objects may now be stored in another version."""
    spec, status = new.get("spec") or {}, new.setdefault("status", {})
    stored = status.get("storedVersions") or []
    for version in spec.get("versions") or ():
        if version.get("storage") and version.get("name") not in stored:
            stored = [*stored, version.get("name", "")]
    status["storedVersions"] = stored


def _validate_change(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[Cause]:
    """Return the violations in changes of a definition's fields on which stored objects depend."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    names, names_before = spec.get("names") or {}, before.get("names") or {}
    pairs = [
        ("spec.group", spec.get("group"), before.get("group")),
        ("spec.names.plural", names.get("plural"), names_before.get("plural")),
    ]
    if is_established(old):
        pairs += [
            ("spec.scope", spec.get("scope"), before.get("scope")),
            ("spec.names.kind", names.get("kind"), names_before.get("kind")),
        ]
    causes = [
        invalid_value(path, value, "field is immutable")
        for path, value, was in pairs
        if value != was
    ]
    listed = {each.get("name") for each in spec.get("versions") or ()}
    for index, name in enumerate((new.get("status") or {}).get("storedVersions") or ()):
        if name not in listed:
            why = (
                f"missing from spec.versions; {name} was previously a storage version, and must "
                "remain in spec.versions until a storage migration ensures no data remains "
                f"persisted in {name} and removes {name} from status.storedVersions"
            )
            causes.append(invalid_value(f"status.storedVersions[{index}]", name, why))
    return causes


def is_established(definition: Mapping[str, Any]) -> bool:
    """Return whether a definition is served, according to its conditions."""
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
        stored_as="apiextensions.k8s.io/v1beta1",
        end=_end_definition,
        generation=True,
        unconditional_update=False,
        defaults=default_definition,
        admit=admit_definition,
        carry=_carry_stored,
        rule=validate_definition,
        compiles=True,
        update_rule=_validate_change,
    ),
}
