"""Type-checks the expressions of a policy against the matched objects.

Refuses nothing: the policy's status shows the result to its author. The rules are those of
`apiserver/pkg/admission/plugin/policy/validating/typechecking.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from listwatch.cel import CompilationError, Type, compile_expression
from listwatch.cel.admission import Vocabulary
from listwatch.cel.schema_types import escape
from listwatch.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    list_of,
    map_of,
    object_named,
)
from listwatch.schema.facts import ANY, Form, Schema

if TYPE_CHECKING:
    from listwatch.apiserver.admission.matching import Cluster
    from listwatch.apiserver.kinds.resources import APIResource

View = Mapping[str, Any]

#: Maximum types checked for one rule.
_TYPES_LIMIT = 10
_SIMPLE: Mapping[Form, Type] = {
    Form.STRING: STRING,
    Form.INTEGER: INT,
    Form.NUMBER: DOUBLE,
    Form.BOOLEAN: BOOL,
    Form.TIME: TIMESTAMP,
    Form.MICRO_TIME: TIMESTAMP,
    Form.BYTES: BYTES,
}


class _ObjectTypes(Mapping[str, Mapping[str, Type]]):
    """The fields of objects by type name, resolved on access.

    Schemas may be recursive, so they can't be expanded in advance.
    """

    def __init__(self) -> None:
        self._found: dict[str, Mapping[str, Type]] = {}
        self._schemas: dict[str, Schema] = {}

    def of(self, schema: Schema, name: str) -> Type:
        """Return the type that a schema describes; `name` is the name of its object type."""
        if schema.form is Form.STRUCT:
            self._schemas[name] = schema
            return object_named(name)
        if schema.form is Form.MAP:
            return map_of(STRING, self.of(schema.item or ANY, f"{name}.@elem"))
        if schema.form is Form.LIST:
            return list_of(self.of(schema.item or ANY, f"{name}.@idx"))
        return _SIMPLE.get(schema.form, DYN)

    def __getitem__(self, name: str) -> Mapping[str, Type]:
        if name not in self._found:
            fields = self._schemas[name].fields
            self._found[name] = {
                known: self.of(inner, f"{name}.{known}")
                for key, inner in fields.items()
                if (known := escape(key)) is not None
            }
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemas)

    def __len__(self) -> int:
        return len(self._schemas)


class TypeCheck:
    """Checks the expressions of one ValidatingAdmissionPolicy.

    Made in the event loop; any thread may ask for the `warnings`.

    Args:
        policy: the object.
        cluster: knows the served kinds.
    """

    def __init__(self, policy: View, cluster: Cluster) -> None:
        self._spec: View = policy.get("spec") or {}
        match = self._spec.get("matchConstraints") or {}
        self._matched = _types_to_check(match.get("resourceRules"), cluster)
        kind = self._spec.get("paramKind")
        self._has_params = kind is not None
        self._params = (
            None
            if kind is None
            else cluster.of_kind(kind.get("apiVersion", ""), kind.get("kind", ""))
        )

    def warnings(self) -> list[dict[str, str]]:
        """Return the warnings in the policy's status about its expressions."""
        spec = self._spec
        vocabularies = [
            (resource, _vocabulary(spec, resource, self._params, has_params=self._has_params))
            for resource in self._matched
        ]
        warnings = []
        for index, validation in enumerate(spec.get("validations") or ()):
            for key in ("expression", "messageExpression"):
                text = validation.get(key)
                problems = [_problem(text, *each) for each in vocabularies] if text else []
                if any(problems):
                    warnings.append(
                        {
                            "fieldRef": f"spec.validations[{index}].{key}",
                            "warning": "\n".join(filter(None, problems)),
                        }
                    )
        return warnings


def _types_to_check(rules: Iterable[View] | None, cluster: Cluster) -> list[APIResource]:
    found: dict[tuple[str, str, str], APIResource] = {}
    for rule in rules or ():
        groups, versions = rule.get("apiGroups") or (), rule.get("apiVersions") or ()
        if any("*" in each for each in (*groups, *versions)):
            continue
        names = [each for each in rule.get("resources") or () if not {"*", "/"} & set(each)]
        count = 0
        for group in sorted(groups):
            for version in sorted(versions):
                for name in sorted(names):
                    resource = cluster.resource(group, version, name)
                    if resource is None:
                        continue
                    found[group, version, resource.kind] = resource
                    count += 1
                    if count == _TYPES_LIMIT:
                        return [found[key] for key in sorted(found)]
    return [found[key] for key in sorted(found)]


def _vocabulary(
    spec: View, resource: APIResource, params: APIResource | None, *, has_params: bool
) -> Vocabulary:
    vocabulary = Vocabulary(params=has_params)
    objects = _ObjectTypes()
    kind = objects.of(resource.schema, resource.kind)
    vocabulary.types = {"object": kind, "oldObject": kind}
    if params is not None:
        vocabulary.types["params"] = objects.of(params.schema, f"params.{params.kind}")
    vocabulary.objects = objects
    vocabulary.compose(spec.get("variables") or ())
    return vocabulary


def _problem(text: str, resource: APIResource, vocabulary: Vocabulary) -> str:
    try:
        compile_expression(text, vocabulary.environment())
    except CompilationError as error:
        return f"{resource.group}/{resource.version}, Kind={resource.kind}: {error}\n"
    return ""
