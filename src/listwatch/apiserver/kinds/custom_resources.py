"""Custom resources: what a CustomResourceDefinition makes the server serve."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.api.reading import Reader
from listwatch.apiserver.kinds.custom_columns import columns_of
from listwatch.apiserver.kinds.definition_rules import scale_causes, schema_causes
from listwatch.apiserver.kinds.resources import ALL_VERBS, Resource, ResourceTable, Subresource
from listwatch.apiserver.kinds.traits import selectable_fields
from listwatch.apiserver.storage.registry import DeleteOptions, Registry, WriteContext
from listwatch.apiserver.storage.store import Bucket, Change, Entry, Store
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required
from listwatch.schema.facts import OBJECT_META, Schema, facts
from listwatch.schema.structural import (
    apply_schema_defaults,
    build_root,
    prune,
    validate,
)
from listwatch.schema.typed import Conversion, Pairs, WrongTypeError

_log = logging.getLogger(__name__)

Object = dict[str, Any]

DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions"
_VERSION_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_VERSION_NAME_WORDS = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_DELETING_VERBS = frozenset(ALL_VERBS) - {"create"}


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
        causes += schema_causes(raw, path)
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


# -- objects ---------------------------------------------------------------------------------


def decode_custom(value: Object, resource: Resource, data: bytes) -> tuple[Object, list[str]]:
    """Turn a decoded body into an object of a custom resource.

    Raises:
        BadRequestError: no kind, another version, or metadata of a wrong type.
    """
    kind, version = value.get("kind"), value.get("apiVersion")
    if not kind or not isinstance(kind, str):
        text = data.decode(errors="replace")
        raise refusal.bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): Object "
            f"'Kind' is missing in '{text}' ({text[:30]}{' ...' if len(text) > 30 else ''})"
        )
    if not version or not isinstance(version, str):
        raise refusal.bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): Object "
            f"'apiVersion' is missing in '{data.decode(errors='replace')}'"
        )
    if version != resource.api_version:
        raise refusal.bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({resource.api_version})"
        )
    problems: list[str] = []
    _repeated(value, "", problems)
    conversion = Conversion()
    try:
        metadata = conversion.convert(
            value.get("metadata") or {}, facts().definition(OBJECT_META), "metadata"
        )
    except WrongTypeError as error:
        raise refusal.bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: {error}"
        ) from None
    obj: Object = {"metadata": metadata}
    obj |= {
        key: _plain(each)
        for key, each in value.items()
        if key not in {"metadata", "kind", "apiVersion"}
    }
    if kind != resource.kind:
        obj["kind"] = kind  # what validation refuses
    unknown: list[str] = []
    prune(obj, resource.schema, "", unknown)
    apply_schema_defaults(obj, resource.schema)
    return obj, [*problems, *conversion.problems, *unknown]


def _repeated(value: Any, place: str, problems: list[str]) -> None:
    if isinstance(value, dict):
        if isinstance(value, Pairs):
            prefix = f"{place}." if place else ""
            problems += [f'duplicate field "{prefix}{key}"' for key in value.repeated]
        for key, each in value.items():
            _repeated(each, f"{place}.{key}" if place else key, problems)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _repeated(each, f"{place}[{index}]", problems)


def _plain(value: Any) -> Any:
    """Return a JSON value as Go would write it: whole numbers without a fraction."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    return value


def validate_custom(
    resource: Resource, obj: Mapping[str, Any], *, status_only: bool = False
) -> list[Cause]:
    """Return the rules of its schema that a custom object breaks."""
    assert resource.custom is not None  # noqa: S101 - asked for custom resources only
    kind = obj.get("kind")
    if kind is not None and kind != resource.kind:
        return [invalid_value("kind", kind, f"must be {resource.kind}")]
    raw = resource.custom["raw"]
    if not raw:
        return []
    if status_only:
        part = (raw.get("properties") or {}).get("status")
        if part is None or "status" not in obj:
            return []
        return validate(obj["status"], part, "status", "")
    value = {key: each for key, each in obj.items() if key not in {"metadata", "kind"}}
    # kind, apiVersion and metadata have rules of their own
    checked = {
        **raw,
        "required": [
            name
            for name in raw.get("required") or ()
            if name not in {"metadata", "kind", "apiVersion"}
        ],
    }
    return [*validate(value, checked), *_fractions(value, raw, "")]


def _fractions(value: Any, raw: Mapping[str, Any], path: str) -> list[Cause]:
    """Return what the rules language says of a fraction where a whole number is due."""
    causes: list[Cause] = []
    if isinstance(value, float) and raw.get("type") == "integer":
        causes.append(
            invalid_value(
                "<nil>", "", f"Checked value must be of type integer (default format) in {path}"
            )
        )
    elif isinstance(value, dict):
        properties, extra = raw.get("properties") or {}, raw.get("additionalProperties")
        for key, each in value.items():
            part = properties.get(key, extra if isinstance(extra, Mapping) else None)
            if part:
                causes += _fractions(each, part, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and isinstance(raw.get("items"), Mapping):
        for index, each in enumerate(value):
            causes += _fractions(each, raw["items"], f"{path}[{index}]")
    return causes


# -- the life of definitions -----------------------------------------------------------------


def resources_of(definition: Mapping[str, Any]) -> list[Resource]:
    """Return the resources that a definition makes the server serve, one for each version."""
    spec, metadata = definition["spec"], definition["metadata"]
    names = spec["names"]
    deleting = bool(metadata.get("deletionTimestamp"))
    resources = []
    for version in spec.get("versions") or ():
        if not version.get("served"):
            continue
        raw = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        if spec.get("preserveUnknownFields"):
            raw = {**raw, "x-kubernetes-preserve-unknown-fields": True}
        subs = version.get("subresources") or {}
        parts = []
        for name in ("status", "scale"):
            if name in subs:
                scale = name == "scale"
                parts.append(
                    Subresource(
                        name,
                        "Scale" if scale else names["kind"],
                        "autoscaling" if scale else "",
                        "v1" if scale else "",
                        ("get", "patch", "update"),
                    )
                )
        columns, cells = columns_of(version)
        custom: Object = {
            "raw": raw,
            "columns": columns,
            "cells": cells,
            "scale": subs.get("scale"),
            "selectable": [
                each["jsonPath"].lstrip(".") for each in version.get("selectableFields") or ()
            ],
        }
        if version.get("deprecated"):
            custom["deprecation"] = version.get("deprecationWarning") or (
                f"{spec['group']}/{version['name']} {names['kind']} is deprecated"
            )
        resources.append(
            Resource(
                spec["group"],
                version["name"],
                names["plural"],
                names["kind"],
                schema=build_root(raw),
                namespaced=spec.get("scope") == "Namespaced",
                list_kind=names.get("listKind", ""),
                singular=names.get("singular", ""),
                verbs=_DELETING_VERBS if deleting else ALL_VERBS,
                short_names=names.get("shortNames") or (),
                categories=names.get("categories") or (),
                subresources=parts,
                custom=custom,
            )
        )
    return resources


class CustomResources:
    """Follows the definitions: serves what they define, and deletes what they leave behind.

    For one event loop, in which the store is changed.
    """

    def __init__(
        self, table: ResourceTable, registry: Registry, store: Store, reader: Reader
    ) -> None:
        self._table = table
        self._registry = registry
        self._store = store
        self._reader = reader
        self._served: dict[str, tuple[str, str]] = {}
        self._bucket = store.bucket(DEFINITIONS)
        #: the definitions, and what is on its way out with one of them
        self._followed = {self._bucket}
        store.observers.append(self._on_change)
        self._due = False
        #: of each definition, the storage version's schema that the objects' defaults come from
        self._schemas: dict[str, object] = {}
        for entry in self._bucket.current():
            self._look_at(entry, self._serve)

    def _on_change(self, bucket: Bucket, _: Change) -> None:
        # not at once: a change is told to all its listeners before another one is made
        if bucket in self._followed and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._sync)

    def refresh(self) -> None:
        """Serve what the definitions say now, after a change that nobody was told of."""
        self._sync()

    def _sync(self) -> None:
        self._due = False
        for name in [name for name in self._served if name not in self._bucket.entries]:
            group, plural = self._served.pop(name)
            self._schemas.pop(name, None)
            self._table.set_custom(group, plural, [])
            bucket = self._store.bucket(f"{group}/{plural}")
            self._followed.discard(bucket)
            self._reader.stop_watches(bucket)
        for entry in self._bucket.current():
            self._look_at(entry, self._sync_one)

    @staticmethod
    def _look_at(entry: Entry, step: Callable[[Entry], None]) -> None:
        try:
            step(entry)
        except Exception:  # noqa: BLE001 - one definition must not end the others; it is logged
            _log.exception("the definition %s can't be served", entry.name)

    def _sync_one(self, entry: Entry) -> None:
        definition = self._registry.decode(entry)
        if definition["metadata"].get("deletionTimestamp"):
            self._serve(entry)
            self._clean_up(entry, definition)
            return
        if not _established(definition):
            self._establish(entry.name)
        self._serve(self._bucket.entries[entry.name])

    def _serve(self, entry: Entry) -> None:
        definition = self._registry.decode(entry)
        if not _established(definition):
            return
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        if entry.name not in self._served:
            # a real server's watch cache of a custom resource begins here
            self._store.bucket(f"{group}/{plural}").since_served = entry.revision
        self._served[entry.name] = (group, plural)
        resources = resources_of(definition)
        self._table.set_custom(group, plural, resources)
        self._select(resources)
        for version in definition["spec"].get("versions") or ():
            raw = (version.get("schema") or {}).get("openAPIV3Schema")
            if version.get("storage") and self._schemas.get(entry.name) != raw:
                self._schemas[entry.name] = raw
                self._default(f"{group}/{plural}", build_root(raw or {}))

    def _default(self, storage: str, schema: Schema) -> None:
        """Let objects that were stored before show the defaults that the schema has now."""
        entries = self._store.bucket(storage).entries
        for key, entry in entries.items():
            obj = self._registry.decode(entry)
            apply_schema_defaults(obj, schema)
            if obj != self._registry.decode(entry):
                entries[key] = msgspec.structs.replace(entry, data=msgspec.json.encode(obj))

    def _select(self, resources: list[Resource]) -> None:
        """Let objects that were stored before have the values that selectors ask for now."""
        for resource in resources:
            paths = set((resource.custom or {}).get("selectable") or ())
            entries = self._store.bucket(resource.storage).entries
            for key, entry in entries.items():
                if not paths <= entry.fields.keys():
                    values = selectable_fields(resource, self._registry.decode(entry))
                    entries[key] = msgspec.structs.replace(entry, fields={**entry.fields, **values})

    def _definitions(self) -> Resource:
        resource = self._table.get("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        assert resource is not None  # noqa: S101 - a built-in resource
        return resource

    def _establish(self, name: str) -> None:
        def produce(old: Object | None, _: Entry | None) -> Object:
            assert old is not None  # noqa: S101 - update refuses a missing object before
            now = self._registry.now()
            status = old.setdefault("status", {})
            status["acceptedNames"] = dict(old["spec"]["names"])
            status["conditions"] = [
                {
                    "type": "NamesAccepted",
                    "status": "True",
                    "lastTransitionTime": now,
                    "reason": "NoConflicts",
                    "message": "no conflicts found",
                },
                {
                    "type": "Established",
                    "status": "True",
                    "lastTransitionTime": now,
                    "reason": "InitialNamesAccepted",
                    "message": "the initial names have been accepted",
                },
            ]
            return old

        self._registry.update(
            self._definitions(),
            "",
            name,
            produce,
            WriteContext(manager="kube-apiserver", subresource="status"),
            is_put=False,
        )

    def _clean_up(self, entry: Entry, definition: Object) -> None:
        resources = resources_of(definition)
        if resources:
            bucket = self._store.bucket(resources[0].storage)
            for each in bucket.current():
                self._registry.delete(resources[0], each.namespace, each.name, DeleteOptions())
            if bucket.entries:
                # finalizers hold some; the last one that goes lets the definition go
                self._followed.add(bucket)
                return
        finalizers = definition["metadata"].get("finalizers") or []
        if finalizers == [_CLEANUP]:
            self._store.delete(self._bucket, entry)


def _established(definition: Mapping[str, Any]) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(
        each.get("type") == "Established" and each.get("status") == "True" for each in conditions
    )


def begin_deletion(registry: Registry, obj: Object) -> None:
    """Mark a definition for deletion, as its finalizer and condition tell."""
    metadata = obj["metadata"]
    metadata["deletionTimestamp"] = registry.now()
    finalizers = metadata.setdefault("finalizers", [])
    if _CLEANUP not in finalizers:
        finalizers.append(_CLEANUP)
    status = obj.setdefault("status", {})
    conditions = status.get("conditions") or []
    conditions.append(
        {
            "type": "Terminating",
            "status": "True",
            "lastTransitionTime": registry.now(),
            "reason": "InstanceDeletionPending",
            "message": (
                "CustomResourceDefinition marked for deletion; CustomResource deletion will begin "
                "soon"
            ),
        }
    )
    status["conditions"] = conditions
