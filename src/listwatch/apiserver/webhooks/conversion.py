"""The versions of a custom resource, and the conversion of its objects.

The rules and messages are those of `apiextensions-apiserver/pkg/apiserver/conversion`.
"""

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.kinds.rules import validate_annotations, validate_labels
from listwatch.apiserver.webhooks.client import Endpoint, WebhookCallError, WebhookClient
from listwatch.apiserver.webhooks.consultation import SharedQuestion, ask, can_ask
from listwatch.apiserver.webhooks.reviews import Head, ReviewError, decode_review
from listwatch.errors import StatusError
from listwatch.schema.copying import copy_of
from listwatch.schema.facts import Schema
from listwatch.schema.structural import apply_schema_defaults, prune

Object = dict[str, Any]

_GROUP = "apiextensions.k8s.io"
#: Time limit of a webhook in seconds.
_SECONDS = 30
_encode = msgspec.json.Encoder(order="sorted").encode


class _Result(msgspec.Struct):
    status: str | None = None
    message: str | None = None


class _Response(msgspec.Struct, rename="camel"):
    uid: str | None = None
    converted_objects: list[msgspec.Raw] | None = None
    result: _Result | None = None


class ConversionReview(msgspec.Struct):
    """A webhook's response."""

    response: _Response | None = None


class ConversionWebhook:
    """Converts objects with a definition's webhook.

    Args:
        client: calls the webhook.
        webhook: as in `spec.conversion.webhook` of the definition.
        kind: of the objects.
        identity: of the definition's current state; a change leads to new questions.
    """

    def __init__(
        self, client: WebhookClient, webhook: Mapping[str, Any], kind: str, identity: object
    ) -> None:
        self._client = client
        self._endpoint = Endpoint.read(webhook.get("clientConfig") or {})
        versions = webhook.get("conversionReviewVersions") or ()
        self._version = next((each for each in versions if each in {"v1", "v1beta1"}), "v1")
        self._kind = kind
        self._identity = identity

    def convert(self, obj: Object, source: str, target: str) -> Object:
        """Return an object of one version, without kind and apiVersion, in another version.

        Raises:
            Unanswered: the webhook has not been called yet.
            StatusError: 500, it can't convert the object.
        """
        metadata = obj["metadata"]
        # a real server converts before storing, when the next resource version is unknown
        shown = {key: each for key, each in metadata.items() if key != "resourceVersion"}
        whole = {"apiVersion": source, "kind": self._kind, **obj, "metadata": shown}
        kin = ("conversion", self._identity, source, target)
        encoded = _encode(whole)
        question = SharedQuestion(
            (kin, encoded), kin, whole, len(encoded), partial(self._convert, source, target)
        )
        converted = ask(question)
        # several states of an object, with different metadata, may share one answer
        return copy_of({**converted, "metadata": _restored(metadata, converted["metadata"])})

    async def _convert(self, source: str, target: str, objects: Sequence[Object]) -> list[Object]:
        """Return objects of one version in another version, in the same order."""
        what = f"conversion webhook for {source}, Kind={self._kind}"
        uid = str(uuid.uuid4())
        version = f"{_GROUP}/{self._version}"
        review = {
            "kind": "ConversionReview",
            "apiVersion": version,
            "request": {"uid": uid, "desiredAPIVersion": target, "objects": objects},
            "response": {"uid": "", "convertedObjects": None, "result": {"metadata": {}}},
        }
        try:
            data = await self._client.post(self._endpoint, _encode(review), _SECONDS)
            found = self._accepted(*decode_review(data, version, ConversionReview), uid)
        except (WebhookCallError, ReviewError) as error:
            raise refusal.server_error(f"{what} failed: {error}") from None
        if len(found) != len(objects):
            expected = f"expected {len(objects)}"
            raise refusal.server_error(f"{what} returned {len(found)} objects, {expected}")
        return [
            self._checked(what, target, index, obj, _object(raw))
            for index, (obj, raw) in enumerate(zip(objects, found, strict=True))
        ]

    def _checked(
        self, what: str, target: str, index: int, obj: Object, converted: Object
    ) -> Object:
        """Return one converted object without kind and apiVersion; refuse forbidden changes."""
        version = converted["apiVersion"]
        if version != target:
            raise refusal.server_error(
                f"{what} returned invalid object at index {index}: invalid groupVersion (expected "
                f"{target}, received {version or '/'})"
            )
        if converted["kind"] != self._kind:
            raise refusal.server_error(
                f"{what} returned invalid object at index {index}: invalid kind (expected "
                f"{self._kind}, received {converted['kind']})"
            )
        why = _difference(obj["metadata"], converted.get("metadata"))
        if why:
            raise refusal.server_error(f"{what} returned invalid object: {why}")
        why = _metadata_problem(obj["metadata"], converted)
        if why:
            raise refusal.server_error(f"{what} returned invalid metadata: {why}")
        return {key: each for key, each in converted.items() if key not in {"apiVersion", "kind"}}

    def _accepted(self, head: Head, review: ConversionReview, uid: str) -> list[msgspec.Raw]:
        wanted = f"{_GROUP}/v1, Kind=ConversionReview"
        if self._version == "v1" and str(head) != wanted:
            raise ReviewError(f"expected webhook response of {wanted}, got {head}")
        response = review.response
        if response is None:
            raise ReviewError("no response provided")
        if self._version == "v1" and (response.uid or "") != uid:
            raise ReviewError(f'expected response.uid="{uid}", got "{response.uid or ""}"')
        result = response.result or _Result()
        if result.status != "Success":
            raise ReviewError(
                result.message
                or f"response.result.status was '{result.status or ''}', not 'Success'"
            )
        return response.converted_objects or []


def _object(raw: msgspec.Raw) -> Object:
    value = msgspec.json.decode(raw)
    text = bytes(raw).decode()
    if value is not None and not isinstance(value, dict):
        words = {list: "array", str: "string", bool: "bool"}
        word = words.get(type(value), "number")
        raise refusal.server_error(
            f"json: cannot unmarshal {word} into Go value of type map[string]interface {{}}"
        )
    if not value or not isinstance(value.get("kind"), str) or not value["kind"]:
        raise refusal.server_error(f"Object 'Kind' is missing in '{text}'")
    version = value.get("apiVersion")
    obj: Object = {**value, "apiVersion": version if isinstance(version, str) else ""}
    return obj


def _difference(old: Mapping[str, Any], new: Any) -> str:
    """Return the part of the immutable metadata that differs; "" for none."""
    found = new if isinstance(new, Mapping) else {}
    for key, shown in (("name", "name"), ("namespace", "namespace"), ("uid", "UID")):
        before, after = old.get(key) or "", found.get(key) or ""
        if before != after:
            return f"must have the same {shown}: {before} != {after}"
    return ""


def _metadata_problem(old: Mapping[str, Any], converted: Mapping[str, Any]) -> str:
    """Return the violation in the labels and annotations of a converted object."""
    if "metadata" not in converted:
        return "missing metadata in converted object"
    metadata = converted["metadata"]
    for part, check in (("labels", validate_labels), ("annotations", validate_annotations)):
        found = metadata.get(part)
        if found is None or found == old.get(part):
            continue
        if not isinstance(found, dict):
            return f"invalid metadata.{part} of type {_go_type(found)} in converted object"
        for key, value in found.items():
            if not isinstance(value, str):
                return (
                    f"metadata.{part}[{key}] must be a string, but is {_go_type(value)} in "
                    "converted object"
                )
        causes = check(found, f"metadata.{part}".removesuffix("s" if part != "labels" else ""))
        if causes:
            words = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
            return words[0] if len(words) == 1 else f"[{', '.join(words)}]"
    return ""


def _go_type(value: Any) -> str:
    types = {dict: "map[string]interface {}", list: "[]interface {}", str: "string", bool: "bool"}
    return types.get(type(value), "float64" if isinstance(value, float) else "int64")


def _restored(old: Mapping[str, Any], new: Mapping[str, Any]) -> Object:
    """Return an object's own metadata with the labels and annotations of the converted one."""
    restored = {key: each for key, each in old.items() if key not in {"labels", "annotations"}}
    restored |= {key: new[key] for key in ("labels", "annotations") if new.get(key) is not None}
    return restored


class Versions:
    """All versions of one custom resource.

    Args:
        group: of the resource.
        schemas: by version, in the definition's order.
        stored: the current storage version.
        before: the version of objects stored while there was only one version.
        webhook: converts objects; with None only the apiVersion changes.
    """

    def __init__(
        self,
        group: str,
        schemas: Mapping[str, Schema],
        stored: str,
        before: str,
        webhook: ConversionWebhook | None,
    ) -> None:
        self._group = group
        self._schemas = schemas
        self.stored = f"{group}/{stored}"
        self._before = f"{group}/{before}"
        self._webhook = webhook

    def of(self, version: str) -> "CustomConverter":
        """Return the converter of one version."""
        return CustomConverter(self, f"{self._group}/{version}")

    @property
    def asks(self) -> bool:
        """Whether a webhook converts."""
        return self._webhook is not None

    def version_of(self, obj: Mapping[str, Any]) -> str:
        """Return the group and version in which an object is stored."""
        version: str = obj.get("apiVersion") or self._before
        return version

    def convert(self, obj: Object, source: str, target: str) -> Object:
        """Return an object of one version in another, without fields unknown there.

        Raises:
            Unanswered: a webhook has not been called yet.
            StatusError: 500, it can't convert the object.
        """
        if source == target:
            return obj
        if self._webhook is not None:
            obj = self._webhook.convert(obj, source, target)
        schema = self.schema(target)
        if schema is not None:
            prune(obj, schema, "", [])
        return obj

    def schema(self, version: str) -> Schema | None:
        """Return the schema of a group and version; None if the definition has none."""
        return self._schemas.get(version.rpartition("/")[2])


class CustomConverter:
    """Converts objects of a custom resource between one version and the stored form.

    Stored objects have an `apiVersion`, unless they were stored while there was only one version.
    If a webhook converts and can't be called, as when the server itself deletes an object, objects
    stay in the stored form.
    """

    def __init__(self, versions: Versions, version: str) -> None:
        self.versions = versions
        self.version = version

    def inward(self, obj: Object) -> Object:
        """Return an object of the version, or one with an `apiVersion`, in the stored form.

        Converts back, too: once the object is stored, it is too late for questions.
        """
        stored = dict(obj)
        if "apiVersion" not in stored:
            target = self.versions.stored
            stored = self.versions.convert(copy_of(stored), self.version, target)
            schema = self.versions.schema(target)
            if schema is not None and target != self.version:
                apply_schema_defaults(stored, schema)
            stored["apiVersion"] = target
        if can_ask():
            with contextlib.suppress(StatusError):  # reported again when it is stored
                self.outward(copy_of(stored))
        return stored

    def outward(self, obj: Object) -> Object:
        """Return a stored object, which may be changed, in the version."""
        source = self.versions.version_of(obj)
        if self.versions.asks and source != self.version and not can_ask():
            return {**obj, "apiVersion": source}
        obj.pop("apiVersion", None)
        return self.versions.convert(obj, source, self.version)

    def to(self, obj: Object, other: "CustomConverter") -> Object:
        """Return an object of the version in another version, without storing it."""
        return self.versions.convert(copy_of(obj), self.version, other.version)

    def mark(self, obj: Object) -> None:
        """Set an object's storage version, in place, if it has none."""
        obj["apiVersion"] = self.versions.version_of(obj)

    def is_current(self, obj: Mapping[str, Any]) -> bool:
        """Return whether a stored object is in the current storage version."""
        return self.versions.version_of(obj) == self.versions.stored
