"""A kind of object, and its paths on an API server."""

from urllib.parse import quote

import msgspec


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of object that an API server serves.

    Attributes:
        group: empty for the core group.
        plural: the name in URLs.
        namespaced: the objects are in namespaces.
        subresources: such as "status" and "scale".
        subresource_types: name, apiVersion and kind of those whose type the server reports.
    """

    group: str = ""
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    verbs: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    subresource_types: tuple[tuple[str, str, str], ...] = ()

    @property
    def api_version(self) -> str:
        """The apiVersion of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """The unambiguous name of this resource, such as "deployments.v1.apps"."""
        return f"{self.plural}.{self.version}.{self.group}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of a collection, an object or a subresource, percent-encoded.

        Raises:
            ValueError: a namespace for a cluster-scoped resource, or an invalid object name.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace:
            if not self.namespaced:
                raise ValueError(f"{self.plural} have no namespace, but {namespace!r} was given")
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        for part in parts:
            if part in {".", ".."} or "/" in part:
                raise ValueError(f"{part!r} is not a valid object name")
        return "/" + "/".join(quote(part, safe=":") for part in parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural
