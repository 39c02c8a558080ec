"""Finds the policies and webhooks for a request."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.admission.chain import Admission, Source
from listwatch.apiserver.admission.matching import Attributes
from listwatch.apiserver.admission.policies import Editing, PatchTestError
from listwatch.apiserver.api.apply import merge_applied
from listwatch.apiserver.api.body import check_kind, decode_value
from listwatch.apiserver.api.configuration import misfit
from listwatch.apiserver.api.patch import PatchError, PatchValueError, json_patch
from listwatch.apiserver.http.call import Call
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.store import Bucket, Storage
from listwatch.apiserver.user import User
from listwatch.apiserver.webhooks.consultation import Question, ask
from listwatch.clock import Clock
from listwatch.errors import BadRequestError
from listwatch.schema.copying import copy_of
from listwatch.schema.facts import Schema
from listwatch.schema.typed import WrongTypeError

Object = dict[str, Any]

_GROUP = "admissionregistration.k8s.io"
#: Resources whose objects enable admission; policies without bindings do not.
_CONFIGURATION = (
    "mutatingadmissionpolicybindings",
    "mutatingwebhookconfigurations",
    "validatingadmissionpolicybindings",
    "validatingwebhookconfigurations",
)


class Gate:
    """Chooses the policies and webhooks for a request. For one event loop.

    Args:
        store: contains the configuration.
        sources: policies and webhooks, in order.
        clock: times injected delays.
    """

    def __init__(self, store: Storage, sources: Sequence[Source], clock: Clock) -> None:
        self._clock = clock
        self._buckets: tuple[Bucket, ...] = tuple(
            store.bucket(f"{_GROUP}/{name}") for name in _CONFIGURATION
        )
        self._sources = sources

    def open(
        self,
        call: Call,
        options: Mapping[str, Any] | None = None,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Admission | None:
        """Return the admission of a write; None if nothing is configured.

        Args:
            call: the request, whose resource is known.
            options: those of the write, without kind and apiVersion; None to read them from the
                query.
            subresource: the subresource that is written.
            dry_run: whether nothing is stored.
        """
        fault = call.fault
        delay = 0.0 if fault is None else fault.admission_delay
        if not (delay or self._is_configured()):
            return None
        resource = call.resource
        assert resource is not None  # noqa: S101 - set for every write
        return self._admission(
            Attributes(
                "",
                resource,
                call.user,
                call.info.namespace if resource.namespaced or call.info.of_namespace else "",
                call.info.name,
                subresource,
                options=_options_of(call) if options is None else dict(options),
                dry_run=dry_run,
                warnings=call.warnings,
                annotations=call.annotations,
            ),
            delay,
        )

    def of_server(
        self, user: User, resource: APIResource, namespace: str, name: str, subresource: str
    ) -> Admission | None:
        """Return the admission of a write by the server's own controllers, like `open`."""
        if not self._is_configured():
            return None
        options: dict[str, Any] = {}
        return self._admission(
            Attributes("", resource, user, namespace, name, subresource, options=options)
        )

    def _is_configured(self) -> bool:
        for bucket in self._buckets:  # noqa: SIM110 - a loop is faster than any()
            if bucket.entries:
                return True
        return False

    def _admission(self, attributes: Attributes, delay: float = 0.0) -> Admission | None:
        if attributes.configures_admission:
            return None
        if delay:
            return Admission(attributes, [*self._sources, _Slow(delay, self._clock)])
        return Admission(attributes, self._sources)


class _Slow:
    """Delays admission, so tests can make concurrent changes first."""

    def __init__(self, delay: float, clock: Clock) -> None:
        self._delay = delay
        self._clock = clock

    def mutator(self) -> None:
        """Change nothing."""

    def validator(self) -> "_Slow":
        """Return itself: it accepts everything."""
        return self

    def validate(self, _: Attributes) -> None:
        """Wait once for each request, as for a webhook."""
        ask(Question(_Slow, lambda _: self._clock.sleep(self._delay)))


def _options_of(call: Call) -> dict[str, Any]:
    """Return the options of a write from the query."""
    given: dict[str, Any] = {
        key: call.first(key) for key in ("fieldManager", "fieldValidation") if call.first(key)
    }
    if call.query.get("dryRun"):
        given["dryRun"] = call.query["dryRun"]
    return given


def _json_patched(obj: Object, operations: Sequence[Object]) -> Object:
    try:
        patched = json_patch(copy_of(obj), operations)
    except PatchValueError:
        raise PatchTestError from None
    except PatchError as error:
        raise ValueError(str(error)) from None
    assert isinstance(patched, dict)  # noqa: S101 - the whole document can't be replaced
    return patched


def _merged(obj: Object, wanted: Object, schema: Schema) -> Object:
    merged: Object = merge_applied(obj, wanted, schema)
    return merged


def _decoded(whole: Object, resource: APIResource) -> Object:
    """Decode the result of a mutation; raise an internal error if that fails."""
    try:
        decoded = decode_value(copy_of(whole), resource)
    except BadRequestError as error:
        raise refusal.internal_error(error.message) from None
    if decoded.problems and resource.custom is None:
        problems = ", ".join(dict.fromkeys(decoded.problems))
        raise refusal.internal_error(f"strict decoding error: {problems}")
    return decoded.obj


def _revised(obj: Object, operations: Sequence[Object], resource: APIResource) -> Object:
    """Return an object changed by a webhook's patch, decoded and defaulted."""
    try:
        patched = json_patch(copy_of(obj), operations)
    except PatchError as error:
        raise refusal.internal_error(str(error)) from None
    if not isinstance(patched, dict):
        raise refusal.internal_error("a patch made something else of the object than an object")
    if resource.custom is not None:
        version = patched.get("apiVersion")
        if version and version != resource.api_version:
            raise refusal.server_error(
                f"request to convert CR from an invalid group/version: {version}"
            )
    else:
        _check_revised(patched, resource)
    try:
        decoded = decode_value(patched, resource, msgspec.json.encode(patched))
    except BadRequestError as error:
        # Go's message has only the error in the value, not the expected type
        why = error.message.partition(f"cannot be handled as a {resource.kind}: ")
        raise refusal.internal_error(why[2] or error.message) from None
    return {"apiVersion": resource.api_version, "kind": resource.kind, **decoded.obj}


def _check_revised(patched: Object, resource: APIResource) -> None:
    """Refuse an object whose kind was changed."""
    try:
        check_kind(patched, resource)
    except WrongTypeError as error:
        if "unknown conversion" in str(error):
            raise refusal.server_error(str(error)) from None
        raise refusal.internal_error(str(error)) from None


#: How policies and webhooks change objects.
EDITING = Editing(_json_patched, _merged, misfit, _decoded, _revised)
