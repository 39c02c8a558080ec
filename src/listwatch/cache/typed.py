"""The type that informers, listers and handlers use: `Object`, or a type of the caller's."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    # `typing.TypeVar` has defaults only from Python 3.13 on. Type checkers know this module even if
    # it is not installed.
    from typing_extensions import TypeVar

    from listwatch.objects import Object

    T = TypeVar("T", default=Object)
    T_contra = TypeVar("T_contra", default=Object, contravariant=True)
else:
    from typing import TypeVar

    T = TypeVar("T")
    T_contra = TypeVar("T_contra", contravariant=True)

#: A type that `Object.decode` accepts: a msgspec Struct, dataclass, attrs class, TypedDict or
#: pydantic model, or a callable that takes a fresh dict.
Into: TypeAlias = type[T] | Callable[[dict[str, Any]], T]


def checked(decode: Into[T] | None) -> Into[T] | None:
    """Return the value of `decode=` after checking it.

    Raises:
        TypeError: it is neither a type nor a callable.
    """
    if decode is None or callable(decode):
        return decode
    raise TypeError(f"decode={decode!r} must be a type, or a function that takes a dict")
