"""A function: its overloads, from which the checker chooses, and its implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from listwatch.cel.types import Type
    from listwatch.cel.values import Value


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature. `id` is the reference's name of it, used to look up costs."""

    id: str
    parameters: tuple[Type, ...]
    result: Type
    method: bool = False

    @property
    def generic(self) -> tuple[str, ...]:
        """Return the names of its type parameters."""
        return tuple(dict.fromkeys(_names((*self.parameters, self.result))))


@dataclass(frozen=True, slots=True)
class Function:
    """A function or operator, with one implementation for all its overloads.

    `call` gets the target of a method as its first argument, and only values that fit an overload.
    It raises EvaluationError if the result can't be computed.
    """

    name: str
    overloads: tuple[Overload, ...]
    call: Callable[..., Value]


def _names(types: tuple[Type, ...]) -> list[str]:
    names: list[str] = []
    for one in types:
        if one.kind == "param":
            names.append(one.name)
        names.extend(_names(one.parameters))
    return names


def function(name: str, call: Callable[..., Value], *overloads: Overload) -> Function:
    """Return a function of these overloads."""
    return Function(name, overloads, call)


def plain(identity: str, *types: Type) -> Overload:
    """Return the overload of a function: its parameters, then its result."""
    return Overload(identity, types[:-1], types[-1])


def method(identity: str, *types: Type) -> Overload:
    """Return the overload of a method: its target and other parameters, then its result."""
    return Overload(identity, types[:-1], types[-1], method=True)
