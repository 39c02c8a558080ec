"""A function as an admission hook: what it applies to, and how it is called."""

import base64
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec

from listwatch.client.resource import Resource
from listwatch.client.typed_objects import manifest_of, schema_of_type, with_changes
from listwatch.clock import in_thread
from listwatch.errors import ConfigError
from listwatch.objects import ObjectDecodeError
from listwatch.objects.resource_types import name_of_resource
from listwatch.resources.problems import Problem
from listwatch.selector import LabelSelector, SelectorError, subdomain_problems
from listwatch.webhooks.dispatch import REVIEW_BYTES, Answer, ReviewError
from listwatch.webhooks.json_difference import json_difference
from listwatch.webhooks.requests import AdmissionRequest, Denied, Named, Operation, untyped
from listwatch.webhooks.responses import allowed, denial

T = TypeVar("T")

SideEffects: TypeAlias = Literal["None", "NoneOnDryRun", "Some"]
FailurePolicy: TypeAlias = Literal["Fail", "Ignore"]

REVIEW: Final = ("AdmissionReview", "admission.k8s.io/v1")
#: Calls of one hook at once.
CONCURRENCY: Final = 16
#: Seconds that the API server waits.
TIMEOUT: Final = 10
_OPERATIONS: Final = frozenset(get_args(Operation))
_POSITION: Final = re.compile(r"compilation failed: ERROR: <input>:(\d+):(\d+)")
_VERSION: Final = re.compile(r"v\d+((alpha|beta)\d+)?|\*")


class HookOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests a hook gets, and what happens when it fails.

    Attributes:
        operations: "CREATE", "UPDATE", "DELETE" and "CONNECT".
        subresource: get requests for this subresource instead of the object, such as "status".
        namespace_selector: labels of namespaces, as in a webhook configuration.
        object_selector: labels of objects, as in a webhook configuration.
        match_conditions: CEL expressions by name, all of which must be true.
        failure_policy: "Fail" refuses requests that the hook can't answer; "Ignore" lets them pass.
        side_effects: "None"; "NoneOnDryRun" if the function has side effects unless the request is
            a dry run; "Some" if it always has: then it is not called for dry runs, which pass.
        timeout: whole seconds that the API server waits, from 1 to 30. The function gets a little
            less.
        match_policy: "Equivalent" gets requests in other versions too, converted.
        reinvoke: of a mutating hook: call it again if a later hook changed the object.
        concurrency: maximum calls at once.
    """

    operations: tuple[Operation, ...] = ("CREATE", "UPDATE")
    subresource: str = ""
    namespace_selector: Mapping[str, Any] = {}
    object_selector: Mapping[str, Any] = {}
    match_conditions: Mapping[str, str] = {}
    failure_policy: FailurePolicy = "Fail"
    side_effects: SideEffects = "None"
    timeout: int = TIMEOUT
    match_policy: Literal["Equivalent", "Exact"] = "Equivalent"
    reinvoke: bool = False
    concurrency: int = CONCURRENCY


class Target(Generic[T]):
    """The resource of a hook, and how its objects are decoded.

    Args:
        resource: a type made by `listwatch.resources.resource`, a model of another client, or text:
            "v1/pods", "apps/v1/deployments"; "*" stands for any.
        subresource: of the resource; empty for the objects themselves.

    Raises:
        ConfigError: the text names no resource, or the subresource is not of the type.
    """

    def __init__(self, resource: type[T] | Resource | str, subresource: str = "") -> None:
        self.cls: type[T] | None = None
        if isinstance(resource, str):
            self.named = _parse(resource)
        elif isinstance(resource, Resource):
            self.named = Named(resource.group, resource.version, resource.plural)
        else:
            self.cls = resource
            self.named = _named(resource)
            if subresource not in {"", "status"}:
                raise ConfigError(
                    f"{resource.__name__}: the objects of {subresource} have another type; name "
                    f'the resource by text, as "{self.named}"'
                )
        self.subresource = subresource

    @property
    def rule(self) -> dict[str, Any]:
        """The fields of a configuration's rule that name the resource."""
        plural = self.named.resource
        return {
            "apiGroups": [self.named.group],
            "apiVersions": [self.named.version],
            "resources": [f"{plural}/{self.subresource}" if self.subresource else plural],
        }

    def decode(self, value: dict[str, Any]) -> Any:
        """Return a decoded object in the hook's type, or unchanged if there is none.

        Raises:
            Denied: it does not fit the type.
        """
        if self.cls is None:
            return value
        try:
            return untyped(value).decode(self.cls)
        except ObjectDecodeError as error:
            raise Denied(str(error), code=422) from error

    def patch(self, before: dict[str, Any], read: Any, after: Any) -> list[dict[str, Any]]:
        """Return the JSON patch for a change of a decoded object.

        Args:
            before: the object as it came.
            read: the manifest of the object as the function got it.
            after: the changed object.
        """
        if self.cls is None:
            return json_difference(before, after)
        changed = manifest_of(after, self.cls)
        # Fields that the type lacks stay.
        whole = with_changes(before, read, changed, schema_of_type(self.cls))
        return json_difference(before, whole)

    def __str__(self) -> str:
        return f"{self.named}/{self.subresource}" if self.subresource else str(self.named)


def _named(cls: type) -> Named:
    try:
        plural, version, group = name_of_resource(cls).split(".", 2)
    except TypeError as error:
        raise ConfigError(str(error)) from None
    return Named(group, version, plural)


def _parse(text: str) -> Named:
    parts = text.split("/")
    if len(parts) == 2:
        parts = ["", *parts]
    if len(parts) != 3 or not _VERSION.fullmatch(parts[1]) or not parts[2]:
        raise ConfigError(
            f"{text!r} names no resource: write version/plural or group/version/plural, as "
            '"v1/pods" or "apps/v1/deployments"'
        )
    return Named(*parts)


class AdmissionHook(Generic[T]):
    """One function that validates or mutates.

    Args:
        target: what it gets.
        function: async, or plain and then called in a thread.
        mutating: whether it may change the object.
        options: the other options.
        name: by default the function's name.

    Raises:
        ConfigError: a server would refuse the name or an option.
    """

    review = REVIEW
    limit = REVIEW_BYTES

    def __init__(
        self,
        target: Target[T],
        function: Callable[[AdmissionRequest[T]], Any],
        *,
        mutating: bool,
        options: HookOptions,
        name: str = "",
    ) -> None:
        self.target = target
        self.mutating = mutating
        self.options = options
        self.name = name or getattr(function, "__name__", "").strip("_").replace("_", "-")
        self._function = function
        self._executor: ThreadPoolExecutor | None = None
        self._check()

    def _check(self) -> None:
        options, words = self.options, f"webhook {self.name or repr(self._function)}"
        if problems := subdomain_problems(self.full_name):
            raise ConfigError(f"{words} can't have this name: {problems[0]}; give name=")
        if not options.operations or not set(options.operations) <= _OPERATIONS:
            known = ", ".join(sorted(_OPERATIONS))
            raise ConfigError(f"{words}: operations {options.operations} are not among {known}")
        if type(options.timeout) is not int or options.timeout not in range(1, 31):
            raise ConfigError(
                f"{words}: timeout {options.timeout} is not a whole number from 1 to 30"
            )
        for given, field in (
            (options.failure_policy, FailurePolicy),
            (options.side_effects, SideEffects),
            (options.match_policy, Literal["Equivalent", "Exact"]),
        ):
            if given not in get_args(field):
                raise ConfigError(f"{words}: {given!r} is none of {', '.join(get_args(field))}")
        if options.reinvoke and not self.mutating:
            raise ConfigError(f"{words}: only a mutating webhook can be invoked again")
        if options.concurrency < 1:
            raise ConfigError(f"{words}: concurrency {options.concurrency} is less than 1")
        for condition, text in options.match_conditions.items():
            if why := _condition_problem(text):
                raise ConfigError(f"{words}: the match condition {condition!r}: {why}")
        for selector in (options.namespace_selector, options.object_selector):
            try:
                LabelSelector.from_dict(selector)
            except SelectorError as error:
                raise ConfigError(f"{words}: {error}") from None

    @property
    def path(self) -> str:
        """The path to which the API server sends its reviews."""
        return f"/{'mutate' if self.mutating else 'validate'}/{self.name}"

    @property
    def full_name(self) -> str:
        """The name in a configuration, such as "check.websites.example.com"."""
        named = self.target.named
        rest = (named.resource, named.group or "core")
        return ".".join((self.name, *(part.replace("*", "all") for part in rest)))

    @property
    def concurrency(self) -> int:
        """Maximum calls at once."""
        return self.options.concurrency

    @property
    def timeout(self) -> float:
        """Seconds that the API server waits."""
        return self.options.timeout

    def manifest(
        self, client_config: Mapping[str, Any], excluded: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return the hook as an entry of a webhook configuration.

        Args:
            client_config: where the API server reaches it.
            excluded: namespaces whose objects it does not get.
        """
        options = self.options
        namespaces = dict(options.namespace_selector)
        if excluded:
            exclusion = {
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": list(excluded),
            }
            expressions = namespaces.get("matchExpressions") or ()
            namespaces["matchExpressions"] = [*expressions, exclusion]
        made: dict[str, Any] = {
            "name": self.full_name,
            "clientConfig": dict(client_config),
            "rules": [{"operations": list(options.operations), "scope": "*", **self.target.rule}],
            "namespaceSelector": namespaces,
            "objectSelector": dict(options.object_selector),
            "failurePolicy": options.failure_policy,
            "matchPolicy": options.match_policy,
            "sideEffects": "None" if options.side_effects == "None" else "NoneOnDryRun",
            "timeoutSeconds": options.timeout,
            "admissionReviewVersions": ["v1"],
        }
        if options.match_conditions:
            made["matchConditions"] = [
                {"name": name, "expression": text}
                for name, text in options.match_conditions.items()
            ]
        if self.mutating:
            made["reinvocationPolicy"] = "IfNeeded" if options.reinvoke else "Never"
        return made

    async def answer(self, request: dict[str, Any]) -> Answer:
        """Call the function, and return its decision.

        Raises:
            ReviewError: the request can't be read.
            Exception: the function failed.
        """
        try:
            asked: AdmissionRequest[T] = AdmissionRequest(request, self.target.decode)
        except msgspec.ValidationError as error:
            raise ReviewError(f"the review's request can't be read: {error}") from None
        if asked.dry_run and self.options.side_effects == "Some":
            return Answer({"allowed": True})
        try:
            patch = await (self._mutate(asked) if self.mutating else self._validate(asked))
        except Denied as denied:
            return Answer(denial(asked, denied), denied=True)
        response = allowed(asked)
        if patch:
            text = base64.b64encode(msgspec.json.encode(patch)).decode()
            response |= {"patchType": "JSONPatch", "patch": text}
        return Answer(response)

    async def _validate(self, asked: AdmissionRequest[T]) -> None:
        found = await self._call(asked)
        if found is None:
            return
        problems = list(found) if isinstance(found, Iterable) else [found]
        if not all(isinstance(problem, Problem) for problem in problems):
            raise TypeError(
                f"webhook {self.name} returned {type(found).__name__}: return None or problems, or "
                "raise Denied"
            )
        if problems:
            raise Denied(*problems)

    async def _mutate(self, asked: AdmissionRequest[T]) -> list[dict[str, Any]]:
        before, obj, cls = asked.manifest, asked.obj, self.target.cls
        read = None if cls is None else manifest_of(obj, cls)
        changed = await self._call(asked)
        after = obj if changed is None else changed
        expected: Any = dict if cls is None else cls
        if not isinstance(after, dict if is_typed_dict(expected) else expected):
            raise TypeError(
                f"webhook {self.name} returned {type(after).__name__}: return None or a "
                f"{expected.__name__}, or raise Denied"
            )
        if asked.operation == "DELETE":
            return []
        return self.target.patch(before, read, after)

    async def _call(self, asked: AdmissionRequest[T]) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(asked)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(
                self.concurrency, thread_name_prefix=f"webhook-{self.name}"
            )
        # A call whose time is over keeps its thread until it returns: the number stays bounded.
        found = await in_thread(self._executor, lambda: self._function(asked))
        return await found if inspect.isawaitable(found) else found

    def close(self) -> None:
        """Start no more calls in threads."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)


def _condition_problem(text: str) -> str:
    """Return why a match condition does not compile, in one line; "" if it does."""
    from listwatch.cel.admission import Vocabulary, compile_as  # noqa: PLC0415 - a parser, seldom needed
    from listwatch.cel.types import BOOL  # noqa: PLC0415 - as above

    found = compile_as(text, Vocabulary().environment(), BOOL)
    return (
        ""
        if found.program is not None
        else _POSITION.sub(r"line \1, column \2", found.error.partition("\n")[0])
    )


def is_typed_dict(cls: Any) -> bool:
    """Return whether a class is a TypedDict, whose objects are dicts."""
    return isinstance(cls, type) and issubclass(cls, dict) and hasattr(cls, "__required_keys__")
