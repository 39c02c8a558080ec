"""The decorators with which a program declares its webhooks."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from listwatch.client.resource import Resource
from listwatch.resources.problems import Problem
from listwatch.webhooks.hooks import (
    AdmissionHook,
    FailurePolicy,
    HookOptions,
    SideEffects,
    Target,
)
from listwatch.webhooks.requests import AdmissionRequest, Operation
from listwatch.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from listwatch.resources.conversion import Conversions

T = TypeVar("T")
Found: TypeAlias = Iterable[Problem] | None
R = TypeVar("R", bound=Found | Coroutine[Any, Any, Found])
Manifest: TypeAlias = dict[str, Any]


class HookArguments(TypedDict, total=False):
    """The options of a hook; see `HookOptions`."""

    operations: Sequence[Operation]
    subresource: str
    namespace_selector: Mapping[str, Any]
    object_selector: Mapping[str, Any]
    match_conditions: Mapping[str, str]
    failure_policy: FailurePolicy
    side_effects: SideEffects
    timeout: int
    match_policy: Literal["Equivalent", "Exact"]
    concurrency: int
    name: str


class MutatingHookArguments(HookArguments, total=False):
    """The options of a mutating hook; see `HookOptions`."""

    reinvoke: bool


class DeclaresWebhooks:
    """Has decorators for hooks; for a manager.

    Attributes:
        webhooks: the declared hooks.
    """

    webhooks: Webhooks

    @overload
    def validate(self, resource: type[T], **options: Unpack[HookArguments]) -> "_Validating[T]": ...
    @overload
    def validate(
        self, resource: str | Resource, **options: Unpack[HookArguments]
    ) -> "_Validating[Manifest]": ...
    def validate(self, resource: Any, **options: Unpack[HookArguments]) -> "_Validating[Any]":
        """Check objects before they are stored; a decorator.

            @app.validate(Website)
            def check_host(request: AdmissionRequest[Website]) -> None:
                if request.obj.spec.host == "localhost":
                    raise Denied(Problem("spec.host", "must be a public name"))

        The function may be async; a plain one runs in a thread. It gets an `AdmissionRequest`,
        after the server's own checks. It allows the request by returning None, and denies it by
        raising `Denied` or returning problems. If it raises anything else, the request is refused
        or, with `failure_policy="Ignore"`, passes.

        Args:
            resource: a type made by `listwatch.resources.resource`, or text, such as "v1/pods" or
                "apps/v1/deployments", whose objects come as dicts.
            options: see `HookOptions`, and `name`, by default the function's name.

        Raises:
            ConfigError: an option is invalid, or another hook has the name.
        """
        return _Validating(self, resource, options, mutating=False)

    @overload
    def mutate(
        self, resource: type[T], **options: Unpack[MutatingHookArguments]
    ) -> "_Mutating[T]": ...
    @overload
    def mutate(
        self, resource: str | Resource, **options: Unpack[MutatingHookArguments]
    ) -> "_Mutating[Manifest]": ...
    def mutate(self, resource: Any, **options: Unpack[MutatingHookArguments]) -> "_Mutating[Any]":
        """Change objects before they are checked and stored; a decorator.

            @app.mutate(Website)
            def complete(request: AdmissionRequest[Website]) -> None:
                request.obj.metadata.labels.setdefault("team", "unknown")

        As for `validate`, but the function may also change `request.obj`, or return a changed
        object. Only the difference is sent, so fields that a type lacks stay. It must do the same
        when called with its own result.

        Args:
            resource: as for `validate`.
            options: as for `validate`.

        Raises:
            ConfigError: as for `validate`.
        """
        return _Mutating(self, resource, options, mutating=True)

    def convert(self, conversions: "Conversions") -> None:
        """Convert objects between the versions of a custom resource.

        The running manager makes the definition call it; see `Conversions`.

        Args:
            conversions: of a definition that has none yet.

        Raises:
            ResourceTypeError: there is no way between two of the versions.
            ConfigError: the definition has conversions already.
        """
        from listwatch.webhooks.conversion_hook import (  # noqa: PLC0415 - few programs convert
            ConversionHook,
        )

        self._check_not_started()
        conversions.check()
        self.webhooks.add(ConversionHook(conversions), definition=conversions.name)

    def _check_not_started(self) -> None:
        """Raise a RuntimeError if it has started."""


class _Declaring(Generic[T]):
    def __init__(
        self, owner: DeclaresWebhooks, resource: Any, given: Mapping[str, Any], *, mutating: bool
    ) -> None:
        options = dict(given)
        self._name: str = options.pop("name", "")
        if "operations" in options:
            options["operations"] = tuple(options["operations"])
        self._owner = owner
        self._options = HookOptions(**options)
        self._target: Target[T] = Target(resource, self._options.subresource)
        self._mutating = mutating

    def _declare(self, function: Callable[[AdmissionRequest[T]], Any]) -> None:
        self._owner._check_not_started()  # noqa: SLF001 - its own decorator
        hook = AdmissionHook(
            self._target,
            function,
            mutating=self._mutating,
            options=self._options,
            name=self._name,
        )
        self._owner.webhooks.add(hook)


class _Validating(_Declaring[T]):
    def __call__(
        self, function: Callable[[AdmissionRequest[T]], R]
    ) -> Callable[[AdmissionRequest[T]], R]:
        self._declare(function)
        return function


class _Mutating(_Declaring[T]):
    @overload
    def __call__(
        self, function: Callable[[AdmissionRequest[T]], Coroutine[Any, Any, T | None]]
    ) -> Callable[[AdmissionRequest[T]], Coroutine[Any, Any, T | None]]: ...
    @overload
    def __call__(
        self, function: Callable[[AdmissionRequest[T]], T | None]
    ) -> Callable[[AdmissionRequest[T]], T | None]: ...
    def __call__(self, function: Any) -> Any:
        self._declare(function)
        return function
