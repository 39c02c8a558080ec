"""A Python type as a custom resource, and its CustomResourceDefinition."""

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import msgspec

from listwatch.apiserver.kinds.definitions import default_definition, validate_definition
from listwatch.client.resource import Resource
from listwatch.objects.resource_types import ATTRIBUTE, plural_of
from listwatch.resources.errors import ResourceTypeError
from listwatch.resources.json_schema import RULES, Node, json_schema
from listwatch.resources.markers import Rule
from listwatch.resources.structural_schema import structural_schema

T = TypeVar("T")

_KIND: Final = re.compile(r"[A-Z][A-Za-z0-9]*")
# Within a field's path, and in a server's message about a rule.
_FIELD: Final = re.compile(r"\.properties\[([^\]]*)\]")
_RULE: Final = re.compile(r"\.x-kubernetes-validations(\[\d+\])\.rule$")
_UNCOMPILED: Final = re.compile(
    r'Invalid value: \{"Rule":(?P<rule>"(?:[^"\\]|\\.)*").*?compilation failed: ERROR: <input>:'
    r"(?P<line>\d+):(?P<column>\d+): (?P<why>.*?)(?:\n \||\Z)",
    re.DOTALL,
)
_VERSION: Final = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column of `kubectl get`.

    Attributes:
        name: its heading.
        json_path: path of the value, such as ".spec.replicas".
        type: "integer", "number", "string", "boolean" or "date".
        format: such as "int32".
        description: for the users of the column.
        priority: 0 to show it always, 1 to show it with `-o wide`.
    """

    name: str
    json_path: str
    type: Literal["integer", "number", "string", "boolean", "date"] = "string"
    format: str = ""
    description: str = ""
    priority: int = 0

    def manifest(self) -> dict[str, Any]:
        """Return the column in a definition's format."""
        fields = {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.json_path,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }
        return {name: value for name, value in fields.items() if value}


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Where `kubectl scale` and autoscalers find the numbers of replicas.

    Attributes:
        spec: JSON path of the desired number.
        status: JSON path of the current number.
        selector: JSON path of a label selector as text; autoscalers need it.
    """

    spec: str = ".spec.replicas"
    status: str = ".status.replicas"
    selector: str = ""


class CustomResource(msgspec.Struct, kw_only=True, dict=True):
    """A type's custom resource; `custom_resource_of` returns it.

    Attributes:
        cls: the type.
        resource: its names on a server.
        schema: the structural schema of its objects.
        columns: of `kubectl get`.
        scale: None without a scale subresource.
        has_status: the status is a subresource, because the type has a field `status`.
        selectable_fields: JSON paths for field selectors.
        served: servers serve this version.
        storage: store objects in this version; None to leave it to `definition`.
        deprecated: warn clients.
        deprecation_warning: the warning; "" for the server's default.
    """

    cls: type
    resource: Resource
    schema: Node
    columns: tuple[Column, ...] = ()
    scale: Scale | None = None
    has_status: bool = False
    selectable_fields: tuple[str, ...] = ()
    served: bool = True
    storage: bool | None = None
    deprecated: bool = False
    deprecation_warning: str = ""

    @cached_property
    def singular(self) -> str:
        """The singular name, as in `kubectl get website`."""
        return self.resource.singular or self.resource.kind.lower()

    def version(self, *, storage: bool) -> dict[str, Any]:
        """Return the type as one version of a definition."""
        subresources: dict[str, Any] = {}
        if self.has_status:
            subresources["status"] = {}
        if self.scale is not None:
            scale = {
                "specReplicasPath": self.scale.spec,
                "statusReplicasPath": self.scale.status,
                "labelSelectorPath": self.scale.selector,
            }
            subresources["scale"] = {name: value for name, value in scale.items() if value}
        version = {
            "name": self.resource.version,
            "served": self.served,
            "storage": storage,
            "deprecated": self.deprecated,
            "deprecationWarning": self.deprecation_warning,
            "schema": {"openAPIV3Schema": self.schema},
            "subresources": subresources,
            "additionalPrinterColumns": [column.manifest() for column in self.columns],
            "selectableFields": [{"jsonPath": path} for path in self.selectable_fields],
        }
        always = ("name", "served", "storage")
        return {name: value for name, value in version.items() if value or name in always}


def resource(
    group: str,
    version: str,
    *,
    kind: str = "",
    plural: str = "",
    singular: str = "",
    short_names: Sequence[str] = (),
    categories: Sequence[str] = (),
    scope: Literal["Namespaced", "Cluster"] = "Namespaced",
    columns: Iterable[Column] = (),
    scale: Scale | None = None,
    selectable_fields: Sequence[str] = (),
    served: bool = True,
    storage: bool | None = None,
    deprecated: bool = False,
    deprecation_warning: str = "",
    rules: Sequence[Rule] = (),
) -> Callable[[type[T]], type[T]]:
    """Make a type a custom resource; a class decorator.

        @resource("example.com", "v1", short_names=["ws"])
        class Website(msgspec.Struct):
            metadata: ObjectMeta
            spec: WebsiteSpec
            status: WebsiteStatus | None = None

    The type may be a msgspec Struct, a dataclass, an attrs class, a TypedDict or a pydantic model.
    Its field `status` becomes a subresource. Raises an error if a server would refuse the
    definition, or a schema can't express the type.

    Args:
        group: a domain, such as "example.com".
        version: such as "v1" or "v1alpha1".
        kind: by default the name of the class.
        plural: by default derived from the kind, in lower case.
        singular: by default the kind in lower case.
        short_names: short names for kubectl.
        categories: such as "all".
        scope: whether objects are namespaced.
        columns: of `kubectl get`.
        scale: adds a scale subresource.
        selectable_fields: JSON paths for field selectors.
        served: whether this version is served.
        storage: whether objects are stored in this version; by default the newest one.
        deprecated: warn clients of this version.
        deprecation_warning: the warning's text.
        rules: CEL rules of whole objects; `self` has spec and status.

    Raises:
        ResourceTypeError: the type or a name is invalid for a custom resource; the message names
            the field and what to write instead.
    """

    def decorate(cls: type[T]) -> type[T]:
        name = kind or cls.__name__
        _check_kind(name)
        schema = _schema_of(cls, rules)
        made = CustomResource(
            cls=cls,
            resource=Resource(
                group=group,
                version=version,
                plural=plural or plural_of(name),
                kind=name,
                singular=singular,
                namespaced=scope == "Namespaced",
                short_names=tuple(short_names),
                categories=tuple(categories),
                subresources=tuple(
                    part
                    for part, there in (
                        ("status", "status" in schema["properties"]),
                        ("scale", scale is not None),
                    )
                    if there
                ),
            ),
            schema=schema,
            columns=tuple(columns),
            scale=scale,
            has_status="status" in schema["properties"],
            selectable_fields=tuple(selectable_fields),
            served=served,
            storage=storage,
            deprecated=deprecated,
            deprecation_warning=deprecation_warning,
        )
        _check(_definition([made]), name)
        setattr(cls, ATTRIBUTE, made)
        return cls

    return decorate


def rules(*given: Rule) -> Callable[[type[T]], type[T]]:
    """Give a type CEL rules, for every field of that type; a class decorator.

    For the type of a whole resource use `rules=` of `resource`.
    """

    def decorate(cls: type[T]) -> type[T]:
        setattr(cls, RULES, given)
        return cls

    return decorate


def custom_resource_of(cls: type) -> CustomResource:
    """Return a type's custom resource.

    Raises:
        ResourceTypeError: it has none; decorate it with `@resource`.
    """
    found = cls.__dict__.get(ATTRIBUTE)
    if not isinstance(found, CustomResource):
        raise ResourceTypeError(f"{cls.__name__} is not a resource: decorate it with @resource(…)")
    return found


def definition(*types: type) -> dict[str, Any]:
    """Return the CustomResourceDefinition of one type, or of several versions of one.

    Args:
        types: versions of one kind. Objects are stored in the one with `storage=True`, otherwise in
            the newest served one, in Kubernetes' order of versions (v2, v1, v1beta2, v1alpha1).

    Raises:
        ResourceTypeError: the types don't belong together, or a server would refuse the definition.
    """
    if not types:
        raise ResourceTypeError("a definition needs a type")
    versions = [custom_resource_of(cls) for cls in types]
    made = copy.deepcopy(_definition(versions))
    _check(made, versions[0].resource.kind)
    return made


def _check_kind(kind: str) -> None:
    if not _KIND.fullmatch(kind):
        raise ResourceTypeError(
            f"{kind!r} can't be a kind: write letters and digits, first a capital, or give kind="
        )
    if kind.endswith("List"):
        raise ResourceTypeError(
            f"{kind!r} can't be a kind: a list of {kind[:-4] or 'objects'} has that name; "
            "choose one that does not end with List"
        )


def _schema_of(cls: type, rules: Sequence[Rule]) -> Node:
    node, definitions = json_schema(cls)
    schema = structural_schema(node, definitions, cls.__name__)
    properties = schema.setdefault("properties", {})
    schema["type"] = "object"
    required = [
        name
        for name in schema.pop("required", ())
        if name not in {"apiVersion", "kind", "metadata"}
    ]
    for name in ("apiVersion", "kind", "metadata"):
        properties.pop(name, None)
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **properties,
    }
    if required:
        schema["required"] = required
    if rules:
        schema.setdefault("x-kubernetes-validations", []).extend(rule.schema() for rule in rules)
    return schema


def _definition(versions: Sequence[CustomResource]) -> dict[str, Any]:
    first = versions[0].resource
    for other in versions[1:]:
        for field in ("group", "kind", "plural", "namespaced"):
            mine, theirs = getattr(first, field), getattr(other.resource, field)
            if mine != theirs:
                raise ResourceTypeError(
                    f"{versions[0].cls.__name__} and {other.cls.__name__} are no versions of one "
                    f"resource: their {field} is {mine!r} and {theirs!r}"
                )
    given_versions = [one.resource.version for one in versions]
    for version in given_versions:
        if given_versions.count(version) > 1:
            raise ResourceTypeError(f"{first.kind}: two types have the version {version}")
    ordered = sorted(versions, key=lambda one: version_priority(one.resource.version), reverse=True)
    marked = [one for one in ordered if one.storage]
    served = [one for one in ordered if one.served and one.storage is None]
    if len(marked) > 1:
        several = " and ".join(one.resource.version for one in marked)
        raise ResourceTypeError(f"{first.kind}: only one version can be stored, not {several}")
    stored = (marked or served or ordered)[0]
    names: dict[str, Any] = {
        "kind": first.kind,
        "listKind": f"{first.kind}List",
        "plural": first.plural,
        "singular": versions[0].singular,
    }
    if first.short_names:
        names["shortNames"] = list(first.short_names)
    if first.categories:
        names["categories"] = list(first.categories)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{first.plural}.{first.group}"},
        "spec": {
            "group": first.group,
            "names": names,
            "scope": "Namespaced" if first.namespaced else "Cluster",
            "versions": [one.version(storage=one is stored) for one in ordered],
        },
    }


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Return the sort key of a version, the newest last (apimachinery, `pkg/version`)."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (0, 0, 0, version)
    stability = {"alpha": 1, "beta": 2, None: 3}[match[2]]
    return (stability, int(match[1]), int(match[3] or 0), "")


def _check(manifest: Mapping[str, Any], kind: str) -> None:
    completed: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(manifest))
    default_definition(completed)
    causes = validate_definition(completed)
    if causes:
        shown = "; ".join(f"{_place(cause.field)}: {_said(cause.message)}" for cause in causes[:5])
        more = f" ({len(causes) - 5} more)" if len(causes) > 5 else ""
        raise ResourceTypeError(f"{kind}: {shown}{more}")


def _place(field: str) -> str:
    """Return the type's field for a field of the definition, if there is one."""
    _, found, inner = field.partition(".openAPIV3Schema")
    if not found:
        return field
    inner = _FIELD.sub(r".\1", inner)
    inner = _RULE.sub(r" rule \1", inner)
    return inner.strip(". ") or "the whole"


def _said(message: str) -> str:
    """Return a server's message, shorter if it is about a rule that does not compile."""
    match = _UNCOMPILED.search(message)
    if match is None:
        return message
    rule = msgspec.json.decode(match["rule"])
    words = " ".join(match["why"].split())
    return f"{rule!r} does not compile: line {match['line']}, column {match['column']}: {words}"
