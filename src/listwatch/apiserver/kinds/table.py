"""The table of served resources, built-in and custom."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from listwatch.apiserver.kinds.catalog import built_in
from listwatch.apiserver.kinds.resources import APIResource, Subresource
from listwatch.schema.facts import ANY, Facts

#: Groups in a server's order of preference.
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
#: Resources whose objects are stored as those of another group.
_STORED_AS = {"events.k8s.io/events": "events"}


class ResourceTable:
    """The resources served now: built-in ones and those of the definitions.

    One task of the server's event loop changes it; readers in that loop see consistent states.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        #: the OpenAPI documents for this table, until it changes
        self.documents: dict[str, bytes] | None = None
        #: the version 2 document, in JSON and in protobuf
        self.documents_v2: tuple[bytes, bytes] | None = None
        #: the aggregated discovery documents, of the core group and of all others, with their tags
        self.discovery: dict[bool, tuple[bytes, str]] = {}
        self._by_path: dict[tuple[str, str, str], APIResource] = {}
        self._by_storage: dict[str, list[APIResource]] = {}
        self._versions: dict[str, list[str]] = {"": ["v1"]}
        for group in _GROUP_ORDER:
            self._versions[group] = []
        for resource in _built_in_resources(facts):
            self._add(resource)

    def _add(self, resource: APIResource) -> None:
        versions = self._versions.setdefault(resource.group, [])
        if resource.version not in versions:
            versions.append(resource.version)
        self._by_path[resource.group, resource.version, resource.name] = resource
        self._by_storage.setdefault(resource.storage, []).append(resource)

    def set_custom(self, group: str, name: str, resources: Iterable[APIResource]) -> None:
        """Replace the served versions of a custom resource."""
        self.documents = self.documents_v2 = None
        self.discovery = {}
        for key in [key for key in self._by_path if key[0] == group and key[2] == name]:
            gone = self._by_path.pop(key)
            self._by_storage.pop(gone.storage, None)
        for resource in resources:
            self._add(resource)
        served = [key[1] for key in self._by_path if key[0] == group]
        versions = [version for version in self._versions.get(group, ()) if version in served]
        if versions:
            self._versions[group] = sorted(versions, key=version_priority)
        else:
            self._versions.pop(group, None)

    def get(self, group: str, version: str, name: str) -> APIResource | None:
        """Return the resource of this plural name, or None."""
        return self._by_path.get((group, version, name))

    @staticmethod
    def is_built_in(group: str) -> bool:
        """Return whether a group has built-in resources."""
        return group in _GROUP_ORDER

    def groups(self) -> Mapping[str, list[str]]:
        """Return the versions of every group, preferred first; "" is the core group."""
        return self._versions

    def of_version(self, group: str, version: str) -> Iterator[APIResource]:
        """Yield the resources of a group and version, by name."""
        names = sorted(key for key in self._by_path if key[:2] == (group, version))
        return (self._by_path[key] for key in names)

    def of_kind(self, group: str, version: str, kind: str) -> APIResource | None:
        """Return the resource of a kind, or None."""
        for resource in self._by_path.values():
            if (
                resource.kind == kind
                and resource.group == group
                and version in ("", resource.version)
            ):
                return resource
        return None

    def of_storage(self, storage: str) -> Sequence[APIResource]:
        """Return all versions that serve the objects under a storage key."""
        return self._by_storage.get(storage, ())

    def __iter__(self) -> Iterator[APIResource]:
        return iter(list(self._by_path.values()))


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Sort versions like Kubernetes: v2, v1, v1beta2, v1beta1, v1alpha1, then others by name.

    The rule is that of `apimachinery/pkg/version` (CompareKubeAwareVersionStrings).
    """
    digits = version[1:]
    for rank, word in enumerate(("", "beta", "alpha")):
        major, found, minor = digits.partition(word) if word else (digits, "", "0")
        if version[:1] == "v" and bool(found) is bool(word) and major.isdigit() and minor.isdigit():
            return rank, -int(major), -int(minor), ""
    return 3, 0, 0, version


class _BuiltIn(APIResource):
    """A built-in resource. Its type and converter are looked up when used: a start needs few."""

    __slots__ = ("_facts", "_key")

    def __init__(self, facts: Facts, row: Mapping[str, Any]) -> None:
        group, name = row["group"], row["resource"]
        self._facts = facts
        self._key = key = f"{group}/{name}" if group else name
        super().__init__(
            group,
            row["version"],
            name,
            row["kind"],
            schema=ANY,
            namespaced=row["scope"] == "Namespaced",
            singular=row["singular"],
            verbs=row["verbs"],
            short_names=row["short_names"],
            categories=row["categories"],
            subresources=[
                Subresource(
                    sub["name"], sub["kind"], sub["group"], sub["version"], tuple(sub["verbs"])
                )
                for sub in row["subresources"]
            ],
            storage=_STORED_AS.get(key, key),
        )
        del self.schema, self.convert

    def __getattr__(self, name: str) -> Any:
        value: Any
        if name == "schema":
            value = self.schema = self._facts.schema(self.group, self.version, self.kind)
        elif name == "convert":
            value = self.convert = built_in(self._key).converters.get(self.version)
        else:
            raise AttributeError(name, name=name, obj=self)
        return value


@lru_cache(maxsize=2)
def _built_in_resources(facts: Facts) -> tuple[APIResource, ...]:
    """Return the built-in resources, shared by all servers: nothing changes them."""
    return tuple(_BuiltIn(facts, row) for row in facts.resources)
