"""The request that an admission hook gets, and how it denies."""

import copy
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from listwatch.client.typed_objects import manifest_of
from listwatch.errors import ListWatchError
from listwatch.objects import Object
from listwatch.objects.metadata import ObjectMeta
from listwatch.objects.resource_types import plural_of
from listwatch.resources.problems import Problem

T = TypeVar("T")

Operation: TypeAlias = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


class Denied(ListWatchError):  # noqa: N818 - raised to answer a request, which is no failure
    """Raise it in a hook to deny the request.

        raise Denied("websites are frozen until Monday")
        raise Denied(Problem("spec.host", "must not be an IP address"))
        raise Denied(*check(request.obj, request.old))

    Args:
        reasons: problems of fields, or text. With problems the client gets 422 Invalid and the
            fields as causes, otherwise 403 Forbidden.
        code: the HTTP status code instead, from 400 to 599.

    Raises:
        ValueError: there is no reason, or the code is none of a refusal.
    """

    def __init__(self, *reasons: Problem | str, code: int = 0) -> None:
        if not reasons:
            raise ValueError("Denied needs a reason: text, or problems of fields")
        if code and not 400 <= code <= 599:
            raise ValueError(f"Denied: code {code} is no refusal; use 400 to 599")
        self.problems = tuple(reason for reason in reasons if isinstance(reason, Problem))
        self.code = code or (422 if self.problems else 403)
        super().__init__("; ".join(str(reason) for reason in reasons))


class User(msgspec.Struct, frozen=True, kw_only=True):
    """Who sent the request to the API server.

    Attributes:
        name: such as "system:serviceaccount:default:shop".
        uid: identifies the user beyond the name; often empty.
        groups: the groups.
        extra: more, as the authenticator provides it.
    """

    name: str = msgspec.field(default="", name="username")
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class Named(msgspec.Struct, frozen=True):
    """A resource by group, version and plural."""

    group: str = ""
    version: str = ""
    resource: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.group, self.version, self.resource) if part)


class KindName(msgspec.Struct, frozen=True):
    """A kind by group, version and name."""

    group: str = ""
    version: str = ""
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


class Facts(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of an AdmissionRequest but its objects."""

    operation: Operation
    kind: KindName
    resource: Named
    uid: str = ""
    sub_resource: str | None = None
    name: str | None = None
    namespace: str | None = None
    user_info: User = User()
    dry_run: bool | None = None
    options: Mapping[str, Any] | None = None


class AdmissionRequest(Generic[T]):
    """A request to the API server that a hook checks or changes.

    Attributes:
        uid: of the review, as in logs.
        operation: "CREATE", "UPDATE", "DELETE" or "CONNECT".
        resource: what is written, in the version that the hook asked for.
        kind: kind of the object.
        subresource: such as "status"; empty for the object itself.
        name: of the object; empty if the server is still to make it from `generateName`.
        namespace: of the object; empty if it has none.
        user: who asks.
        dry_run: the request changes nothing, so a hook must have no side effects.
        options: the request's options, such as `fieldManager`.
        warnings: those so far; see `warn`.
        annotations: those so far; see `annotate`.
    """

    def __init__(self, request: Mapping[str, Any], decode: Callable[[dict[str, Any]], T]) -> None:
        facts = msgspec.convert(request, Facts)
        self.uid = facts.uid
        self.operation: Operation = facts.operation
        self.resource = facts.resource
        self.kind = facts.kind
        self.subresource = facts.sub_resource or ""
        self.name = facts.name or ""
        self.namespace = facts.namespace or ""
        self.user = facts.user_info
        self.dry_run = bool(facts.dry_run)
        self.options: Mapping[str, Any] = facts.options or {}
        self._object: dict[str, Any] | None = request.get("object")
        self._old: dict[str, Any] | None = request.get("oldObject")
        self._decode = decode
        self.warnings: list[str] = []
        self.annotations: dict[str, str] = {}

    @classmethod
    def of(
        cls,
        obj: T,
        old: T | None = None,
        *,
        operation: Operation | None = None,
        user: User | None = None,
        subresource: str = "",
        dry_run: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> "AdmissionRequest[T]":
        """Return a request, to call a hook in a test without a server.

        Args:
            obj: the object, of a resource type or a dict; the one to be deleted for "DELETE".
            old: the object before the change.
            operation: by default "UPDATE" with an old object, otherwise "CREATE".
            user: who asks; by default nobody.
            subresource: such as "status".
            dry_run: whether the request changes nothing.
            options: the request's options.

        Raises:
            TypeError: the type is not a resource.
        """
        operation = operation or ("CREATE" if old is None else "UPDATE")
        given = old if operation == "DELETE" and old is not None else obj
        manifest = _manifest(given)
        meta = manifest.get("metadata") or {}
        group, _, version = str(manifest.get("apiVersion", "")).rpartition("/")
        kind = str(manifest.get("kind", ""))
        request: dict[str, Any] = {
            "uid": "test",
            "operation": operation,
            "kind": {"group": group, "version": version, "kind": kind},
            "resource": {"group": group, "version": version, "resource": plural_of(kind)},
            "subResource": subresource,
            "name": meta.get("name"),
            "namespace": meta.get("namespace"),
            "dryRun": dry_run,
            "options": options,
            "object": None if operation == "DELETE" else manifest,
            "oldObject": manifest if operation == "DELETE" else old and _manifest(old),
        }
        made = cls(request, lambda value: _decoded(value, given))
        made.user = user or made.user
        return made

    @property
    def manifest(self) -> dict[str, Any]:
        """A fresh copy of the object as decoded JSON, with fields that its type lacks."""
        found = self._old if self._object is None else self._object
        return copy.deepcopy(found or {})

    @cached_property
    def obj(self) -> T:
        """The object; for DELETE the one to be deleted.

        Of the hook's type, or a dict for a resource named by text. Of a request to connect, such as
        `pods/exec`, the options.
        """
        return self._decode(self.manifest)

    @cached_property
    def old(self) -> T | None:
        """The object before the change; None for CREATE and CONNECT."""
        return None if self._old is None else self._decode(copy.deepcopy(self._old))

    def warn(self, text: str) -> None:
        """Send a warning to the client, which kubectl prints; a short line of text."""
        self.warnings.append(text)

    def annotate(self, key: str, value: str) -> None:
        """Add an annotation to the server's audit log; the server prefixes the hook's name."""
        self.annotations[key] = value


def _manifest(obj: object) -> dict[str, Any]:
    return copy.deepcopy(obj) if isinstance(obj, dict) else manifest_of(obj)


def _decoded(value: dict[str, Any], like: Any) -> Any:
    """Return a decoded object in the type of another one."""
    if isinstance(like, dict):
        return value
    return untyped(value).decode(type(like))


def untyped(value: Mapping[str, Any]) -> Object:
    """Return a decoded object as an `Object` to be decoded again; it may lack a name."""
    meta = value.get("metadata") or {}
    name = meta.get("name") or f"{meta.get('generateName', '')}…"
    namespace = meta.get("namespace")
    return Object(
        f"{namespace}/{name}" if namespace else name,
        ObjectMeta(),
        value.get("kind", ""),
        value.get("apiVersion", ""),
        msgspec.json.encode(value),
    )
