"""Versions of a custom resource, and the conversion of objects between them."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from listwatch.client.typed_objects import is_same, manifest_of, with_changes
from listwatch.errors import ListWatchError
from listwatch.objects import Object, ObjectDecodeError, decode_object
from listwatch.printable import printable
from listwatch.resources.custom_resource import CustomResource, custom_resource_of, definition
from listwatch.resources.errors import ResourceTypeError

_logger = logging.getLogger(__name__)

A = TypeVar("A")
B = TypeVar("B")
Manifest = dict[str, Any]

#: Fields that every object has; a conversion leaves all metadata as it is.
_COMMON: Final = frozenset({"apiVersion", "kind", "metadata"})
#: A server's limit for all annotations of an object, in bytes.
_ANNOTATIONS: Final = 256 * 1024


class ConversionError(ListWatchError):
    """An object can't be converted; raise it in a conversion function to say why.

    The API server shows the text to the client whose request needed the conversion.
    """


class Conversions:
    """The versions of one custom resource, and the functions that convert between them.

        websites = Conversions(WebsiteV1Alpha1, WebsiteV1)

        @websites.convert(WebsiteV1Alpha1, WebsiteV1)
        def to_v1(old: WebsiteV1Alpha1) -> WebsiteV1:
            return WebsiteV1(old.metadata, WebsiteSpec(hosts=[old.spec.host]))

    Each pair of versions needs a way, directly or through others: a chain of neighbours, or one
    version that all others convert to and from. `Manager.convert` serves the conversions.

    The functions are plain and always return the same for the same object. They may be called from
    any thread. Metadata stays as it is, whatever they return.

    Args:
        types: the versions, decorated by `@resource` with the same group and kind.
        keep_lost: keep what a version can't hold in the annotation `GROUP/lost-fields` of the
            converted object, and put it back on the way back. Changes made in between win.

    Raises:
        ResourceTypeError: the types are not versions of one resource, or two have the same version.
    """

    def __init__(self, *types: type, keep_lost: bool = False) -> None:
        if len(types) < 2:
            raise ResourceTypeError("conversions need at least two versions of a resource")
        definition(*types)  # checks that they belong together
        #: The versions.
        self.types = types
        self._resources = [custom_resource_of(cls) for cls in types]
        self._versions: dict[str, CustomResource] = {
            one.resource.version: one for one in self._resources
        }
        self.keep_lost = keep_lost
        self._functions: dict[tuple[str, str], Callable[[Any], Any]] = {}

    @property
    def kind(self) -> str:
        """The kind of the objects."""
        return self._resources[0].resource.kind

    @property
    def group(self) -> str:
        """The group of the resource."""
        return self._resources[0].resource.group

    @property
    def name(self) -> str:
        """The name of the CustomResourceDefinition, such as "websites.example.com"."""
        return f"{self._resources[0].resource.plural}.{self.group}"

    @property
    def versions(self) -> Sequence[str]:
        """The names of the versions, such as "v1alpha1"."""
        return list(self._versions)

    @property
    def annotation(self) -> str:
        """The annotation of `keep_lost`."""
        return f"{self.group}/lost-fields"

    # --- Functions ---

    def convert(self, old: type[A], new: type[B]) -> Callable[[Callable[[A], B]], Callable[[A], B]]:
        """Declare the function that converts one version to another; a decorator.

        Args:
            old: the version that the function gets.
            new: the version that it returns.

        Raises:
            ResourceTypeError: a type is none of the versions, or the pair has a function.
        """
        step = (self._version_of(old), self._version_of(new))
        if step[0] == step[1]:
            raise ResourceTypeError(f"{self.kind}: {old.__name__} needs no conversion to itself")

        def declare(function: Callable[[A], B]) -> Callable[[A], B]:
            if step in self._functions:
                raise ResourceTypeError(
                    f"{self.kind}: a function converts {step[0]} to {step[1]} already"
                )
            self._functions[step] = function
            return function

        return declare

    def check(self) -> None:
        """Check that there is a way between any two versions.

        Raises:
            ResourceTypeError: there is none; the message says which function to write.
        """
        for old in self._versions:
            for new in self._versions:
                self._steps(old, new)
        for old, new in self._functions if self.keep_lost else ():
            if (new, old) not in self._functions:
                raise self._no_way(new, old, "keep_lost=True needs both directions")

    def _version_of(self, cls: type) -> str:
        for one in self._resources:
            if one.cls is cls:
                return one.resource.version
        known = ", ".join(one.cls.__name__ for one in self._resources)
        raise ResourceTypeError(f"{cls.__name__} is no version of these conversions: {known}")

    def _no_way(self, old: str, new: str, why: str) -> ResourceTypeError:
        types = ", ".join(self._versions[one].cls.__name__ for one in (old, new))
        return ResourceTypeError(
            f"{self.kind}: no function converts {old} to {new}: write one and decorate it with "
            f"convert({types}); {why}"
        )

    def _steps(self, old: str, new: str) -> list[tuple[str, str]]:
        """Return the shortest way between two versions."""
        ways: dict[str, list[tuple[str, str]]] = {old: []}
        waiting = deque([old])
        while waiting:
            here = waiting.popleft()
            if here == new:
                return ways[here]
            for step in self._functions:
                if step[0] == here and step[1] not in ways:
                    ways[step[1]] = [*ways[here], step]
                    waiting.append(step[1])
        raise self._no_way(old, new, "or to a version between them")

    # --- Objects ---

    def converted(self, obj: object, new: type[B]) -> B:
        """Return an object of one version as another.

        Args:
            obj: an object of a version.
            new: the wanted version.

        Raises:
            ConversionError: it can't be converted.
            ResourceTypeError: a type is none of the versions, or there is no way.
        """
        self._version_of(type(obj))
        manifest = self.converted_manifest(manifest_of(obj), self._version_of(new))
        return typed_object(manifest, new)

    def converted_manifest(self, manifest: Mapping[str, Any], version: str) -> Manifest:
        """Return a decoded manifest of one version as another, with the same metadata.

        Args:
            manifest: with apiVersion and kind; not changed.
            version: such as "v1".

        Raises:
            ConversionError: it can't be converted, or has another kind; the message names it.
            ResourceTypeError: there is no way.
        """
        group, _, old = str(manifest.get("apiVersion")).rpartition("/")
        if group != self.group or manifest.get("kind") != self.kind or old not in self._versions:
            raise ConversionError(
                f"{_name(manifest)} of {manifest.get('apiVersion')} is no {self.kind} of "
                f"{self.group}/{{{','.join(self._versions)}}}"
            )
        if version not in self._versions:
            known = ", ".join(self._versions)
            raise ConversionError(f"{self.name} has no version {version!r}, only {known}")
        value: Manifest = msgspec.json.decode(msgspec.json.encode(manifest))
        for step in self._steps(old, version):
            value = self._step(value, *step)
        return value

    def review(self, request: Mapping[str, Any]) -> Manifest:
        """Answer the request of a ConversionReview: all objects, or a failure that names one.

        Args:
            request: the decoded `request` of the review.

        Returns:
            Its `response`, without the uid.
        """
        version = str(request.get("desiredAPIVersion")).removeprefix(f"{self.group}/")
        converted = []
        for obj in request.get("objects") or ():
            try:
                converted.append(self.converted_manifest(obj, version))
            except ConversionError as error:
                return _failure(str(error))
            except Exception:
                # The exception's text may contain secrets, and anybody may read the answer.
                _logger.exception(
                    "converting %s to %s, request %s",
                    printable(_name(obj)),
                    printable(version),
                    printable(str(request.get("uid"))),
                )
                return _failure(
                    f"converting {_name(obj)} to {version} failed; the webhook's log tells why"
                )
        return {"convertedObjects": converted, "result": {"status": "Success"}}

    def _step(self, value: Manifest, old: str, new: str) -> Manifest:
        if not self.keep_lost:
            return self._plain(value, old, new)
        kept = self._kept(value)
        made = self._plain(value, old, new)
        if new in kept:
            made = self._restored(made, kept.pop(new), old, new)
        lost = self._lost(value, made, old, new)
        if lost:
            kept[old] = lost
        else:
            kept.pop(old, None)
        return self._with_kept(made, kept)

    def _plain(self, value: Manifest, old: str, new: str) -> Manifest:
        """Return the result of one function as a manifest, with the metadata of its argument."""
        cls = self._versions[new].cls
        result = self._functions[old, new](typed_object(value, self._versions[old].cls))
        if not isinstance(result, _class_of(cls)):
            raise ConversionError(
                f"the conversion of {self.kind} from {old} to {new} returned "
                f"{type(result).__name__}, not {cls.__name__}"
            )
        return {**plain_manifest(result, cls), "metadata": value.get("metadata") or {}}

    # --- What a version can't hold ---

    def _lost(self, value: Manifest, made: Manifest, old: str, new: str) -> Manifest:
        """Return the fields of an object that come back different from its new version."""
        cls = self._versions[old].cls
        mine = plain_manifest(typed_object(value, cls), cls)
        back = self._plain(made, new, old)
        return {
            field: value[field]
            for field in value
            if field not in _COMMON and not is_same(mine.get(field), back.get(field))
        }

    def _restored(self, made: Manifest, kept: Manifest, old: str, new: str) -> Manifest:
        """Put kept fields of the new version back, under what has changed since."""
        whole = {**made, **kept}
        before = self._plain(self._plain(whole, new, old), old, new)
        fields = self._versions[new].schema.get("properties") or {}
        for field, value in kept.items():
            changed = with_changes(
                value, before.get(field), made.get(field), fields.get(field) or {}
            )
            whole[field] = changed
        return {field: value for field, value in whole.items() if value is not None}

    def _kept(self, value: Manifest) -> dict[str, Manifest]:
        metadata = value.get("metadata") or {}
        text = (metadata.get("annotations") or {}).get(self.annotation)
        if text is None:
            return {}
        try:
            kept: dict[str, Manifest] = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
        except msgspec.MsgspecError as error:
            raise ConversionError(
                f"the annotation {self.annotation} of {_name(value)} was not written by a "
                f"conversion: {error}; remove it"
            ) from None
        return {version: {**fields} for version, fields in kept.items()}

    def _with_kept(self, value: Manifest, kept: Mapping[str, Manifest]) -> Manifest:
        metadata = dict(value["metadata"])
        annotations = dict(metadata.pop("annotations", None) or {})
        annotations.pop(self.annotation, None)
        if kept:
            annotations[self.annotation] = msgspec.json.encode(kept, order="sorted").decode()
            size = sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items())
            if size > _ANNOTATIONS:
                raise ConversionError(
                    f"what {value['apiVersion']} can't hold of {_name(value)} does not fit into "
                    f"its annotations: {size} bytes, of {_ANNOTATIONS} at most"
                )
        if annotations:
            metadata["annotations"] = annotations
        return {**value, "metadata": metadata}


def typed_object(value: Mapping[str, Any], cls: type[B]) -> B:
    """Return a decoded manifest as an object of a type.

    Raises:
        ConversionError: it does not fit the type.
    """
    metadata = dict(value.get("metadata") or {})
    metadata.setdefault("name", "without-a-name")  # the server has not generated it yet
    try:
        whole: Object = decode_object(msgspec.json.encode({**value, "metadata": metadata}))
        return whole.decode(cls)
    except ObjectDecodeError as error:
        raise ConversionError(str(error)) from error


def plain_manifest(obj: object, cls: type) -> Manifest:
    """Return an object of a resource type as a server has it: without fields that are None."""
    made: Manifest = _without_nulls(manifest_of(obj, cls), custom_resource_of(cls).schema)
    return made


def _class_of(cls: type) -> type:
    return dict if hasattr(cls, "__required_keys__") and issubclass(cls, dict) else cls


def _failure(message: str) -> Manifest:
    return {"convertedObjects": [], "result": {"status": "Failure", "message": message}}


def _name(value: object) -> str:
    """Return kind, namespace and name of a manifest, as far as it has them."""
    if not isinstance(value, Mapping):
        return "an object"
    metadata = value.get("metadata")
    if not isinstance(metadata, Mapping):
        metadata = {}
    parts: Iterable[Any] = (metadata.get("namespace"), metadata.get("name"))
    return f"{value.get('kind')} {'/'.join(str(part) for part in parts if part)}".rstrip()


def _without_nulls(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a value without the named fields that are null, which a server need not have.

    Null stays where no schema names the field, because there it may have a meaning.
    """
    if isinstance(value, Mapping):
        fields = schema.get("properties") or {}
        others = schema.get("additionalProperties") or {}
        return {
            key: _without_nulls(one, fields.get(key, others))
            for key, one in value.items()
            if not (one is None and key in fields)
        }
    if isinstance(value, list):
        return [_without_nulls(one, schema.get("items") or {}) for one in value]
    return value
