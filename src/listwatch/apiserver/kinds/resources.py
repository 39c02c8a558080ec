"""What the server serves: resources by group, version and plural name."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from listwatch.apiserver.kinds.autoscaling import AutoscalerConverter
from listwatch.schema.facts import Facts, Schema

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Subresource(msgspec.Struct, frozen=True):
    """A part of an object with a path of its own, such as status and scale."""

    name: str
    kind: str
    group: str
    version: str
    verbs: tuple[str, ...]


class Converter(Protocol):
    """Turns objects between the form that is stored and that of another version."""

    def inward(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an object of the version in the form that is stored."""

    def outward(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return a stored object in the form of the version."""


class Resource:
    """One resource of one group and version.

    Attributes:
        storage: the key under which its objects are stored; versions of one resource share it.
        custom: the custom resource definition's facts, None for built-in kinds.
    """

    __slots__ = (
        "api_version",
        "categories",
        "convert",
        "custom",
        "group",
        "kind",
        "list_kind",
        "name",
        "namespaced",
        "object_prefix",
        "schema",
        "short_names",
        "singular",
        "storage",
        "subresources",
        "verbs",
        "version",
    )

    def __init__(
        self,
        group: str,
        version: str,
        name: str,
        kind: str,
        *,
        schema: Schema,
        namespaced: bool = True,
        list_kind: str = "",
        singular: str = "",
        verbs: Iterable[str] = ALL_VERBS,
        short_names: Iterable[str] = (),
        categories: Iterable[str] = (),
        subresources: Iterable[Subresource] = (),
        storage: str = "",
        custom: Mapping[str, Any] | None = None,
    ) -> None:
        self.group = group
        self.version = version
        self.name = name
        self.kind = kind
        self.list_kind = list_kind or f"{kind}List"
        self.namespaced = namespaced
        self.singular = singular or kind.lower()
        self.verbs = frozenset(verbs)
        self.short_names = tuple(short_names)
        self.categories = tuple(categories)
        self.subresources = {sub.name: sub for sub in subresources}
        self.schema = schema
        self.api_version = f"{group}/{version}" if group else version
        self.storage = storage or (f"{group}/{name}" if group else name)
        self.custom = custom
        #: turns objects from and to the form in which another version stores them
        self.convert: Converter | None = None
        kind_json, version_json = (
            msgspec.json.encode(x).decode() for x in (kind, self.api_version)
        )
        #: what stands before the stored bytes of an object, which lack kind and apiVersion
        self.object_prefix = (
            f'{{"kind":{kind_json},"apiVersion":{version_json},'
            if custom is None
            else f'{{"apiVersion":{version_json},"kind":{kind_json},'
        ).encode()

    @property
    def qualified_name(self) -> str:
        """The name with the group, as messages have it: `deployments.apps`, `pods`."""
        return f"{self.name}.{self.group}" if self.group else self.name

    @property
    def qualified_kind(self) -> str:
        """The kind with the group, as messages have it: `Lease.coordination.k8s.io`, `Pod`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


#: Resources whose objects another group serves too, under the same storage key.
_SHARED_STORAGE = {"events.k8s.io/events": "events"}
#: Groups in the order of preference in which a server lists them.
_GROUP_ORDER = (
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
)


class ResourceTable:
    """All resources served at this time: the built-in ones and those of the definitions.

    One task of the server's event loop changes it; whoever reads it there sees whole states.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        #: the OpenAPI documents made of this table, until it changes
        self.documents: dict[str, bytes] | None = None
        #: the document of version 2, in JSON and in protobuf
        self.documents_v2: tuple[bytes, bytes] | None = None
        self._by_path: dict[tuple[str, str, str], Resource] = {}
        self._versions: dict[str, list[str]] = {"": ["v1"]}
        for group in _GROUP_ORDER:
            self._versions[group] = []
        for row in facts.resources:
            group, version, name = row["group"], row["version"], row["resource"]
            key = f"{group}/{name}" if group else name
            self._add(
                Resource(
                    group,
                    version,
                    name,
                    row["kind"],
                    schema=facts.schema(group, version, row["kind"]),
                    namespaced=row["scope"] == "Namespaced",
                    singular=row["singular"],
                    verbs=row["verbs"],
                    short_names=row["short_names"],
                    categories=row["categories"],
                    subresources=[
                        Subresource(
                            sub["name"],
                            sub["kind"],
                            sub["group"],
                            sub["version"],
                            tuple(sub["verbs"]),
                        )
                        for sub in row["subresources"]
                    ],
                    storage=_SHARED_STORAGE.get(key, key),
                )
            )

    def _add(self, resource: Resource) -> None:
        if resource.group == "events.k8s.io":
            resource.convert = EventConverter()
        elif resource.qualified_name == "horizontalpodautoscalers.autoscaling":
            resource.convert = AutoscalerConverter() if resource.version == "v1" else None
        versions = self._versions.setdefault(resource.group, [])
        if resource.version not in versions:
            versions.append(resource.version)
        self._by_path[resource.group, resource.version, resource.name] = resource

    def set_custom(self, group: str, name: str, resources: Iterable[Resource]) -> None:
        """Serve these versions of a custom resource in place of what was served under its name."""
        self.documents = self.documents_v2 = None
        for key in [key for key in self._by_path if key[0] == group and key[2] == name]:
            del self._by_path[key]
        for resource in resources:
            self._add(resource)
        served = [key[1] for key in self._by_path if key[0] == group]
        versions = [version for version in self._versions.get(group, ()) if version in served]
        if versions:
            self._versions[group] = sorted(versions, key=version_priority)
        else:
            self._versions.pop(group, None)

    def get(self, group: str, version: str, name: str) -> Resource | None:
        """Return the resource of this plural name, or None."""
        return self._by_path.get((group, version, name))

    @staticmethod
    def is_built_in(group: str) -> bool:
        """Tell whether a group has built-in resources."""
        return group in _GROUP_ORDER

    def groups(self) -> Mapping[str, list[str]]:
        """Return the versions of every group, the preferred one first; "" is the core group."""
        return self._versions

    def of_version(self, group: str, version: str) -> Iterator[Resource]:
        """Yield the resources of a group and version, by name."""
        names = sorted(key for key in self._by_path if key[:2] == (group, version))
        return (self._by_path[key] for key in names)

    def of_kind(self, group: str, version: str, kind: str) -> Resource | None:
        """Return the resource of a kind, or None."""
        for resource in self._by_path.values():
            if (
                resource.kind == kind
                and resource.group == group
                and version in ("", resource.version)
            ):
                return resource
        return None

    def __iter__(self) -> Iterator[Resource]:
        return iter(list(self._by_path.values()))


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Sort versions as Kubernetes does: v2, v1, v1beta2, v1beta1, v1alpha1, then others by name.

    The rule is that of `apimachinery/pkg/version` (CompareKubeAwareVersionStrings).
    """
    digits = version[1:]
    for rank, word in enumerate(("", "beta", "alpha")):
        major, found, minor = digits.partition(word) if word else (digits, "", "0")
        if version[:1] == "v" and bool(found) is bool(word) and major.isdigit() and minor.isdigit():
            return rank, -int(major), -int(minor), ""
    return 3, 0, 0, version


class EventConverter:
    """Events of `events.k8s.io/v1`, stored as those of the core group."""

    _NAMES = (
        ("regarding", "involvedObject"),
        ("note", "message"),
        ("deprecatedSource", "source"),
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("reportingController", "reportingComponent"),
    )

    def inward(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an event in the form that is stored."""
        result = dict(obj)
        for new, old in self._NAMES:
            if new in result:
                result[old] = result.pop(new)
        result.setdefault("involvedObject", {})
        for key, empty in (
            ("source", {}),
            ("firstTimestamp", None),
            ("lastTimestamp", None),
            ("eventTime", None),
            ("reportingComponent", ""),
            ("reportingInstance", ""),
        ):
            result.setdefault(key, empty)
        return result

    def outward(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return a stored event in the form of the version."""
        result = dict(obj)
        for new, old in self._NAMES:
            if old in result:
                value = result.pop(old)
                if value not in (None, "", 0):
                    result[new] = value
        if not result.get("reportingInstance"):
            result.pop("reportingInstance", None)
        result.setdefault("eventTime", None)
        return result
