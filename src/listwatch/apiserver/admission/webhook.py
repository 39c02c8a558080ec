"""One admission webhook: when it applies, its request, and the meaning of its response.

The rules and messages are those of `apiserver/pkg/admission/plugin/webhook`.
"""

from __future__ import annotations

import base64
import binascii
import math
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.admission.matching import Criteria, in_version, request_of
from listwatch.apiserver.webhooks.client import Endpoint, WebhookCallError
from listwatch.apiserver.webhooks.consultation import Question
from listwatch.apiserver.webhooks.reviews import ReviewError, decode_review
from listwatch.errors import ListWatchError, StatusError
from listwatch.schema.facts import facts
from listwatch.schema.parsing import parse_json
from listwatch.schema.typed import Conversion, WrongTypeError
from listwatch.selector import qualified_name_problems

if TYPE_CHECKING:
    from listwatch.apiserver.admission.expressions import Decide
    from listwatch.apiserver.admission.matching import Attributes, Cluster
    from listwatch.apiserver.kinds.resources import APIResource
    from listwatch.apiserver.webhooks.client import WebhookClient
    from listwatch.apiserver.webhooks.reviews import Head
    from listwatch.cel.admission import MatchConditions
    from listwatch.cel.patience import Patience

Object = dict[str, Any]
View = Mapping[str, Any]

_GROUP = "admission.k8s.io"
_STATUS = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"
_encode = msgspec.json.Encoder(order="sorted").encode


class _Response(msgspec.Struct, rename="camel"):
    uid: str | None = None
    allowed: bool | None = None
    status: dict[str, Any] | None = None
    patch: str | None = None
    patch_type: str | None = None
    audit_annotations: dict[str, str] | None = None
    warnings: list[str] | None = None


class AdmissionReview(msgspec.Struct):
    """A webhook's response."""

    response: _Response | None = None


class CallError(ListWatchError):
    """A webhook could not be called, or its response is unusable."""


class Answer(msgspec.Struct, frozen=True):
    """A webhook's decision; the status is that of a denial."""

    allowed: bool
    status: Object | None
    patch: list[Any]
    patch_type: str
    annotations: dict[str, str]
    warnings: list[str]


class Webhook:
    """One webhook of a configuration, parsed once. Immutable.

    Args:
        configuration: its name.
        revision: of the configuration.
        place: position of the webhook in it.
        obj: the webhook.
        mutating: whether its response may contain a patch.
    """

    def __init__(
        self, configuration: str, revision: int, place: int, obj: View, *, mutating: bool
    ) -> None:
        self.configuration = configuration
        self.key = (configuration, revision, place)
        self.name: str = obj.get("name", "")
        self.criteria = Criteria.of_webhook(obj)
        self.fails = obj.get("failurePolicy") != "Ignore"
        self.again = obj.get("reinvocationPolicy") == "IfNeeded"
        self.mutating = mutating
        self._endpoint = Endpoint.read(obj.get("clientConfig") or {})
        self._seconds: int = obj.get("timeoutSeconds") or 10
        self._dry_runs = obj.get("sideEffects") in {"None", "NoneOnDryRun"}
        versions = obj.get("admissionReviewVersions") or ()
        self._version = next((each for each in versions if each in {"v1", "v1beta1"}), "")
        self._conditions: MatchConditions | None = None
        conditions = obj.get("matchConditions") or ()
        if conditions:
            from listwatch.cel.admission import MatchConditions  # noqa: PLC0415 - loads a parser

            self._conditions = MatchConditions(conditions, fails=self.fails)

    def applies(
        self, attributes: Attributes, cluster: Cluster, decide: Decide
    ) -> APIResource | None:
        """Return the resource under which the webhook applies, or None.

        Raises:
            ForbiddenError: 403, a match condition failed.
        """
        matched = self.criteria.match(attributes, cluster)
        if matched is None or self._conditions is None:
            return matched
        found = self._hold(self._conditions, attributes, matched, cluster, decide)
        if isinstance(found, str):
            raise refusal.forbidden_object(attributes.resource, attributes.name, found)
        return matched if found else None

    def _hold(
        self,
        conditions: MatchConditions,
        attributes: Attributes,
        matched: APIResource,
        cluster: Cluster,
        decide: Decide,
    ) -> bool | str:
        """Return whether the match conditions hold, or why they failed."""
        from listwatch.apiserver.admission.expressions import Subject  # noqa: PLC0415 - as above
        from listwatch.apiserver.admission.patience import evaluated  # noqa: PLC0415 - as above
        from listwatch.cel.admission import ExpressionError  # noqa: PLC0415 - as above

        def work(decide: Decide, patience: Patience | None) -> bool | str:
            try:
                subject = Subject(attributes, matched, cluster, decide)
                return conditions.hold(subject.variables, patience)
            except ExpressionError as error:
                return str(error)

        states = msgspec.json.encode([attributes.obj, attributes.old])
        return evaluated(("conditions", self.key, attributes.operation, states), decide, work)

    def question(
        self, client: WebhookClient, attributes: Attributes, matched: APIResource, turn: int = 0
    ) -> Question:
        """Return the question to the webhook about a request."""
        source, sub = attributes.resource, attributes.subresource
        request = {
            **request_of(attributes, matched),
            "object": in_version(attributes.obj, source, matched, sub),
            "oldObject": in_version(attributes.old, source, matched, sub),
        }

        async def call(left: float) -> Answer:
            told = min(self._seconds, math.ceil(left))
            return await self._call(client, request, told)

        return Question(("admission", self.key, turn, _encode(request)), call)

    def check_dry_run(self, attributes: Attributes) -> None:
        """Refuse a dry run if the webhook has side effects in dry runs, too.

        Raises:
            BadRequestError: 400.
        """
        if attributes.dry_run and not self._dry_runs:
            raise refusal.bad_request(f'admission webhook "{self.name}" does not support dry run')

    async def _call(self, client: WebhookClient, request: Object, told: int) -> Answer:
        version = f"{_GROUP}/{self._version}"
        if not self._version:
            raise CallError(
                "could not create admission objects: webhook does not accept known "
                "AdmissionReview versions (v1, v1beta1)"
            )
        uid = str(uuid.uuid4())
        review = {
            "kind": "AdmissionReview",
            "apiVersion": version,
            "request": {"uid": uid, **request},
        }
        try:
            body = msgspec.json.encode(review)
            data = await client.post(self._endpoint, body, self._seconds, told=told)
            head, answer = decode_review(data, version, AdmissionReview)
            response = answer.response
            patch = _base64(response.patch) if response and response.patch else b""
            status = _status(response.status) if response and response.status else None
        except (WebhookCallError, ReviewError) as error:
            raise CallError(f"failed to call webhook: {error}") from None
        why = self._invalid(response, uid, head)
        if why or response is None:
            raise CallError(f"received invalid webhook response: {why}")
        return Answer(
            bool(response.allowed),
            status,
            _operations(patch) if response.allowed else [],
            (response.patch_type or "") if self._version == "v1" else "JSONPatch",
            response.audit_annotations or {},
            response.warnings or [],
        )

    def _invalid(self, response: _Response | None, uid: str, head: Head) -> str:
        if response is None:
            return "webhook response was absent"
        if self._version != "v1":
            return ""
        if (response.uid or "") != uid:
            return f'expected response.uid="{uid}", got "{response.uid or ""}"'
        wanted = f"{_GROUP}/v1, Kind=AdmissionReview"
        if str(head) != wanted:
            return f"expected webhook response of {wanted}, got {head}"
        patched, typed = bool(response.patch), response.patch_type is not None
        if not self.mutating:
            if patched:
                return "validating webhook may not return response.patch"
            return "validating webhook may not return response.patchType" if typed else ""
        if patched and not typed:
            return "webhook returned response.patch but not response.patchType"
        if typed and not patched:
            return "webhook returned response.patchType but not response.patch"
        if typed and not response.patch_type:
            return 'webhook returned invalid response.patchType of ""'
        return ""

    def failed(self, error: CallError) -> StatusError:
        """Return the refusal of a request because the webhook call failed."""
        return refusal.internal_error(f'failed calling webhook "{self.name}": {error}')

    def denial(self, status: View | None) -> StatusError:
        """Return the refusal of a request that the webhook denies."""
        status = status or {}
        words = f'admission webhook "{self.name}" denied the request'
        why = status.get("message") or status.get("reason")
        code = status.get("code") or 0
        details = status.get("details")
        error = StatusError(
            f"{words}: {why}" if why else f"{words} without explanation",
            code=max(code, 400) if code <= _LAST_CODE else 500,
            details=details,
            retry_after=(details or {}).get("retryAfterSeconds"),
        )
        error.reason = status.get("reason") or ""
        return error

    def tell(self, answer: Answer, attributes: Attributes) -> None:
        """Pass on the warnings and audit annotations of a response."""
        attributes.warnings.extend(answer.warnings)
        for each, value in answer.annotations.items():
            key = f"{self.name}/{each}"
            if not qualified_name_problems(key):
                # the first annotation with a key wins
                attributes.annotations.setdefault(key, value)


#: HTTP status codes have three digits; for any other code a real server responds with 500.
_LAST_CODE = 999


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except binascii.Error:
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
        place = next((at for at, char in enumerate(text) if char not in letters), len(text))
        raise ReviewError(f"illegal base64 data at input byte {place}") from None


def _status(status: Object) -> Object:
    try:
        found: Object = Conversion().convert(status, facts().definition(_STATUS), "response.status")
    except WrongTypeError as error:
        raise ReviewError(str(error)) from None
    return found


def _operations(patch: bytes) -> list[Any]:
    """Return the operations of a patch.

    Raises:
        CallError: it is invalid.
    """
    if not patch:
        return []
    words = "received undecodable patch in webhook response: "
    try:
        value = msgspec.json.decode(patch)
    except (ValueError, RecursionError):
        raise CallError(words + _go_syntax(patch)) from None
    if value is None:
        return []
    kinds = {dict: "object", str: "string", bool: "bool"}
    if not isinstance(value, list):
        word = kinds.get(type(value), "number")
        raise CallError(
            f"{words}json: cannot unmarshal {word} into Go value of type jsonpatch.Patch"
        )
    for each in value:
        if not isinstance(each, dict):
            word = kinds.get(type(each), "array" if isinstance(each, list) else "number")
            raise CallError(
                f"{words}json: cannot unmarshal {word} into Go value of type jsonpatch.Operation"
            )
    return value


def _go_syntax(data: bytes) -> str:
    try:
        parse_json(data)
    except ValueError as error:
        return str(error)
    return "invalid character"
