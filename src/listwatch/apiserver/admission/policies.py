"""Policies and their bindings: which apply, and with which parameters.

The rules are those of `apiserver/pkg/admission/plugin/policy/generic`. Expressions are compiled
when a policy is first needed, and again after a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from listwatch.apiserver.admission.matching import Criteria
from listwatch.apiserver.admission.validation import LONG
from listwatch.apiserver.webhooks.consultation import in_thread
from listwatch.errors import StatusError
from listwatch.schema.causes import go_quoted
from listwatch.selector import LabelSelector, SelectorError

if TYPE_CHECKING:
    from listwatch.apiserver.admission.matching import Attributes, Cluster
    from listwatch.apiserver.kinds.resources import APIResource
    from listwatch.schema.facts import Schema

Object = dict[str, Any]
View = Mapping[str, Any]
PolicyT = TypeVar("PolicyT")


class Configuration(Protocol):
    """The objects that configure admission; `storage/cluster.py` implements it."""

    def exists(self, plural: str) -> bool:
        """Return whether there are any objects of a kind."""

    def version(self, plural: str) -> int:
        """Return a number that increases with each change of an object of a kind."""

    def objects(self, plural: str) -> Iterable[tuple[int, Object]]:
        """Yield the objects of a kind by name, each after its revision."""


class Editing(msgspec.Struct, frozen=True):
    """Functions that change objects, provided by the packages above.

    Attributes:
        json_patch: applies a JSON patch; raises ValueError if it does not fit, and `PatchTestError`
            if a test in it fails.
        merge: merges an apply configuration into an object by a schema.
        check: returns why a configuration does not fit a schema, or "".
        decode: decodes an object with kind and apiVersion, and sets defaults; raises the refusal if
            it is invalid.
        revise: applies the JSON patch of a webhook to an object with kind and apiVersion, decodes
            it and sets defaults; raises the refusal if the patch or the object is invalid.
    """

    json_patch: Callable[[Object, Sequence[Object]], Object]
    merge: Callable[[Object, Object, Schema], Object]
    check: Callable[[Object, Schema], str]
    decode: Callable[[Object, APIResource], Object]
    revise: Callable[[Object, Sequence[Object], APIResource], Object]


class PatchTestError(Exception):
    """A test within a JSON patch failed: nothing is changed."""


class PolicyFailure(msgspec.Struct):
    """A policy's failure, or its objection to a request.

    Attributes:
        policy: its name.
        binding: the name of the binding; None if the policy itself is at fault.
        message: the message.
        reason: of the refusal; "" for the default.
    """

    policy: str
    binding: str | None
    message: str
    reason: str = ""

    def words(self) -> str:
        """Return the message in the words of a refused mutation."""
        if self.binding is None:
            return f"policy {go_quoted(self.policy)} denied request: {self.message}"
        return (
            f"policy '{self.policy}' with binding '{self.binding}' denied request: {self.message}"
        )


class Binding(msgspec.Struct, frozen=True):
    """One binding of a policy."""

    name: str
    criteria: Criteria | None
    params: Mapping[str, Any] | None
    actions: tuple[str, ...]

    @classmethod
    def read(cls, obj: View) -> Binding:
        """Parse a binding of either kind of policy."""
        spec = obj.get("spec") or {}
        match = spec.get("matchResources")
        return cls(
            obj["metadata"]["name"],
            None if match is None else Criteria.of_match_resources(match),
            spec.get("paramRef"),
            tuple(spec.get("validationActions") or ()),
        )


class BoundPolicy(Generic[PolicyT]):
    """A policy with its bindings; `compiled` is the result of compiling the object."""

    __slots__ = ("bindings", "compiled", "criteria", "fails", "name", "param_kind")

    def __init__(self, obj: View, compiled: PolicyT) -> None:
        spec = obj.get("spec") or {}
        self.name: str = obj["metadata"]["name"]
        self.criteria = Criteria.of_match_resources(spec.get("matchConstraints"))
        self.fails = spec.get("failurePolicy") != "Ignore"
        self.param_kind: Mapping[str, str] | None = spec.get("paramKind")
        self.compiled = compiled
        self.bindings: list[Binding] = []


class Invocation(msgspec.Struct, Generic[PolicyT], frozen=True):
    """A policy that applies to a request, with one binding and one parameter."""

    policy: BoundPolicy[PolicyT]
    binding: Binding
    matched: APIResource
    params: Object | None


#: A policy that applies, or a policy that failed, with the failure.
Applying = Invocation[PolicyT] | tuple[BoundPolicy[PolicyT], PolicyFailure]


#: What the compiled expressions depend on: the policy's uid and generation.
_State = tuple[str, int]


class _ConfigurationError(Exception):
    pass


class PolicyIndex(Generic[PolicyT]):
    """The policies of one kind that have bindings. For one event loop.

    Args:
        kind: "validating" or "mutating".
        configuration: contains the objects.
        make: compiles a policy; called once for each of its revisions.
    """

    def __init__(
        self, kind: str, configuration: Configuration, make: Callable[[View], PolicyT]
    ) -> None:
        self._kind = kind
        self._configuration = configuration
        self._make = make
        #: the versions of the policies and bindings when last read
        self.seen: tuple[int, int] = (-1, -1)
        self._compiled: dict[_State, PolicyT] = {}
        self._policies: list[BoundPolicy[PolicyT]] = []

    def current(self) -> Sequence[BoundPolicy[PolicyT]]:
        """Return the policies, by name."""
        policies = f"{self._kind}admissionpolicies"
        bindings = f"{self._kind}admissionpolicybindings"
        seen = (self._configuration.version(policies), self._configuration.version(bindings))
        if self.seen != seen:
            objects = self._configuration.objects
            self._policies = self._read(objects(policies), objects(bindings))
            self.seen = seen
        return self._policies

    def _read(
        self,
        policies: Iterable[tuple[int, Object]],
        bindings: Iterable[tuple[int, Object]],
    ) -> list[BoundPolicy[PolicyT]]:
        by_policy: dict[str, list[Binding]] = {}
        for _, obj in bindings:
            by_policy.setdefault((obj.get("spec") or {}).get("policyName", ""), []).append(
                Binding.read(obj)
            )
        bound = [obj for _, obj in policies if obj["metadata"]["name"] in by_policy]
        self._compiled = self._compile(bound)
        found = []
        for obj in bound:
            policy = BoundPolicy(obj, self._compiled[_state_of(obj)])
            policy.bindings = by_policy[policy.name]
            found.append(policy)
        return found

    def _compile(self, bound: Sequence[Object]) -> dict[_State, PolicyT]:
        """Return the compiled policies; the request waits if compiling takes long."""
        new = {_state_of(obj): obj for obj in bound if _state_of(obj) not in self._compiled}

        def work() -> dict[_State, PolicyT]:
            return {state: self._make(obj) for state, obj in new.items()}

        if sum(len(msgspec.json.encode(obj)) for obj in new.values()) > LONG:
            made = in_thread(("compile", self._kind, *new), work)
        else:
            made = work()
        made = {**self._compiled, **made}
        return {state: made[state] for state in map(_state_of, bound)}

    def applying(self, attributes: Attributes, cluster: Cluster) -> Iterator[Applying[PolicyT]]:
        """Yield the policies that apply to a request, and the failures of others."""
        for policy in self.current():
            try:
                matched = policy.criteria.match(attributes, cluster)
                if matched is None:
                    continue
                kind = policy.param_kind
                of = None if kind is None else _param_resource(kind, cluster)
            except (StatusError, _ConfigurationError) as error:
                message = f"failed to configure policy: {_words(error)}"
                yield policy, PolicyFailure(policy.name, None, message)
                continue
            for binding in policy.bindings:
                try:
                    if (
                        binding.criteria is not None
                        and binding.criteria.match(attributes, cluster) is None
                    ):
                        continue
                    all_params = _params(of, binding.params, attributes.namespace, cluster)
                except (StatusError, _ConfigurationError) as error:
                    message = f"failed to configure binding: {_words(error)}"
                    yield policy, PolicyFailure(policy.name, binding.name, message)
                    continue
                for params in all_params:
                    yield Invocation(policy, binding, matched, params)


def _state_of(policy: View) -> _State:
    metadata = policy["metadata"]
    return metadata["uid"], metadata.get("generation", 0)


def _words(error: Exception) -> str:
    return error.message if isinstance(error, StatusError) else str(error)


def _param_resource(kind: Mapping[str, str], cluster: Cluster) -> APIResource:
    api_version, name = kind.get("apiVersion", ""), kind.get("kind", "")
    found = cluster.of_kind(api_version, name)
    if found is None:
        raise _ConfigurationError(
            f"failed to find resource referenced by paramKind: '{api_version}, Kind={name}'"
        )
    return found


def _params(
    of: APIResource | None, reference: View | None, namespace: str, cluster: Cluster
) -> Sequence[Object | None]:
    """Return the parameters of a binding; a single null if it names none."""
    if of is None or reference is None:
        return [None]
    given = reference.get("namespace") or ""
    if of.namespaced:
        namespace = given or namespace
        if not namespace:
            raise _ConfigurationError(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped "
                "resources"
            )
    elif given:
        raise _ConfigurationError(
            "paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
        )
    else:
        namespace = ""
    found: Sequence[Object | None]
    if reference.get("name"):
        one = cluster.find(of, namespace, reference["name"])
        found = [] if one is None else [one]
    else:
        try:
            selector = LabelSelector.from_dict(reference.get("selector") or {})
        except SelectorError as error:
            raise _ConfigurationError(str(error)) from None
        found = cluster.select(of, namespace, selector)
    if not found and reference.get("parameterNotFoundAction") == "Deny":
        raise _ConfigurationError(
            "no params found for policy binding with `Deny` parameterNotFoundAction"
        )
    return found


def object_name(attributes: Attributes) -> str:
    """Return the object's name for the message of a refusal."""
    if attributes.name:
        return attributes.name
    metadata = (attributes.obj or {}).get("metadata") or {}
    return metadata.get("name") or metadata.get("generateName") or "Unknown"
