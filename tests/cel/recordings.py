"""Recorded results of expressions on a real API server."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from listwatch.cel import Environment, SchemaType, object_types, schema_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RECORDED = Path(__file__).parents[1] / "data" / "conformance" / "cel"


def expressions() -> dict[str, list[dict[str, Any]]]:
    """Return all recorded expressions with schema, self and outcome, by file."""
    found: dict[str, list[dict[str, Any]]] = {}
    text = gzip.decompress((RECORDED / "expressions.json.gz").read_bytes())
    for one in json.loads(text):
        found.setdefault(one["file"], []).append(one)
    return found


def environment(kind: SchemaType, *, optional_old: bool = False) -> Environment:
    """Return the variables of a rule whose `self` has this type."""
    old = kind.type if not optional_old else optional_type(kind)
    return Environment({"self": kind.type, "oldSelf": old}, object_types(kind))


def optional_type(kind: SchemaType) -> Any:
    """Return the type of an `oldSelf` that may be absent."""
    from listwatch.cel.types import optional_of

    return optional_of(kind.type)


@dataclass(frozen=True)
class Rule:
    """One rule of a definition, and the server's answer to it."""

    text: str
    kind: SchemaType
    optional_old: bool
    refusals: tuple[str, ...]


def rules(file: str) -> Iterator[Rule]:
    """Yield every rule of the definitions in a file of scenarios."""
    loaded = yaml.load((RECORDED / file).read_text(), Loader=yaml.CSafeLoader)
    for scenario in loaded["scenarios"]:
        for step in scenario["steps"]:
            body = step.get("request", {}).get("body")
            expected = step.get("expect", {})
            if not isinstance(body, dict) or body.get("kind") != "CustomResourceDefinition":
                continue
            if expected.get("status") not in {200, 201, 422}:
                continue
            details = (expected.get("body") or {}).get("details") or {}
            for version in body["spec"]["versions"]:
                schema = (version.get("schema") or {}).get("openAPIV3Schema")
                if isinstance(schema, dict):
                    yield from _rules(schema, details.get("causes") or [])


def _rules(schema: dict[str, Any], causes: list[dict[str, str]]) -> Iterator[Rule]:
    for path, inner in _schemas(schema, "openAPIV3Schema"):
        for position, rule in enumerate(inner.get("x-kubernetes-validations") or []):
            kind = schema_type(inner, root=path == "openAPIV3Schema")
            if kind is None:
                continue
            end = f"{path}.x-kubernetes-validations[{position}].rule"
            refusals = tuple(
                re.sub(r"^Invalid value: \{.*?\}: ", "", cause["message"], flags=re.DOTALL)
                for cause in causes
                if cause["field"].endswith(end)
            )
            yield Rule(rule.get("rule", ""), kind, bool(rule.get("optionalOldSelf")), refusals)


def _schemas(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, inner in (schema.get("properties") or {}).items():
        yield from _schemas(inner, f"{path}.properties[{name}]")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from _schemas(schema[name], f"{path}.{name}")
