"""What a request is about: its resource, object and verb, from its method and path."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote


class RequestTarget(NamedTuple):
    """The target of a request; `name` is empty for a collection."""

    group: str
    version: str
    plural: str
    namespace: str
    name: str
    subresource: str

    @property
    def resource(self) -> str:
        """The resource as in metrics and messages, such as "deployments.apps/status"."""
        word = f"{self.plural}.{self.group}" if self.group else self.plural
        return f"{word}/{self.subresource}" if self.subresource else word


# Statistics and a reconcile's history ask for the same request, often again for the same object.
@lru_cache(maxsize=1024)
def target_of(path: str) -> RequestTarget | None:
    """Return the target of a request's path; None if it is not a resource."""
    _, root, *parts = path.split("/")
    if "%" in path:
        parts = [unquote(part) for part in parts]
    if root == "apis" and len(parts) > 2:
        group, version, *rest = parts
    elif root == "api" and len(parts) > 1:
        group, (version, *rest) = "", parts
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource, *_ = [*rest, "", ""]
    return RequestTarget(group, version, plural, namespace, name, subresource)


_APPLY: Final = "application/apply-patch+yaml"


def verb_of(
    method: str,
    target: RequestTarget | None,
    query: Iterable[tuple[str, str]] = (),
    content_type: str = "",
) -> str:
    """Return the verb of a request, as an API server's own metrics name it.

    These are GET, LIST, WATCH, POST, PUT, PATCH, APPLY, DELETE, DELETECOLLECTION, and other HTTP
    methods as they are.

    Args:
        method: the HTTP method.
        target: the target; None if it is not a resource.
        query: names and values.
        content_type: of the body.
    """
    if method == "PATCH":
        return "APPLY" if content_type == _APPLY else method
    if target is None or target.name:
        return method
    if method == "GET":
        is_watch = any(name == "watch" and value not in {"", "0", "false"} for name, value in query)
        return "WATCH" if is_watch else "LIST"
    return "DELETECOLLECTION" if method == "DELETE" else method
