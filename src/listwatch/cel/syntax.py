"""The tree of an expression as the parser builds it, with macros expanded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from listwatch.cel.types import DYN, Type

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Constant: TypeAlias = "bool | int | float | str | bytes | None"


@dataclass(slots=True, eq=False)
class Node:
    """A position in the source (line and column from 1), and the checker's results."""

    line: int
    column: int
    type: Type = field(default=DYN, init=False)


@dataclass(slots=True, eq=False)
class Literal(Node):
    """A constant. An unsigned integer is a `UInt`."""

    value: Constant


@dataclass(slots=True, eq=False)
class Ident(Node):
    """A variable or, after the check, the full name of a type."""

    name: str


@dataclass(slots=True, eq=False)
class Select(Node):
    """`operand.field`; with `test`, `has(operand.field)`; with `optional`, `operand.?field`."""

    operand: Node
    name: str
    test: bool = False
    optional: bool = False


@dataclass(slots=True, eq=False)
class Call(Node):
    """A function, an operator such as `_&_`, or with a target a method."""

    function: str
    target: Node | None
    arguments: list[Node]
    overloads: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class ListLiteral(Node):
    """`[a, ?b]`; `optional` has the positions of the elements that may be absent."""

    elements: list[Node]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Entry:
    """One entry of a map, or with a string key one field of an object."""

    key: Node
    value: Node
    optional: bool = False


@dataclass(slots=True, eq=False)
class MapLiteral(Node):
    """`{a: b, ?c: d}`."""

    entries: list[Entry]


@dataclass(slots=True, eq=False)
class ObjectLiteral(Node):
    """`name{field: value}`."""

    name: str
    entries: list[Entry]


@dataclass(slots=True, eq=False)
class Comprehension(Node):
    """The expansion of a macro such as `all`: a loop that folds a range into an accumulator.

    With a `variable2`, the first variable is the index or key. A comprehension over nothing, with a
    false condition, only binds the accumulator for the result (`optMap`, `sortBy`).
    """

    variable: str
    variable2: str
    range: Node
    accumulator: str
    initial: Node
    condition: Node
    step: Node
    result: Node

    @property
    def binds(self) -> bool:
        """Whether it only binds a name to a value, without a loop."""
        return self.accumulator != ACCUMULATOR


class Visitor(ABC, Generic[T]):
    """Processes a tree, with a method for each class of nodes."""

    def __init__(self) -> None:
        self._by_node: dict[type[Node], Callable[..., T]] = {
            Literal: self._literal,
            Ident: self._ident,
            Select: self._select,
            Call: self._call,
            ListLiteral: self._list,
            MapLiteral: self._map,
            ObjectLiteral: self._object,
            Comprehension: self._comprehension,
        }

    @abstractmethod
    def _literal(self, node: Literal) -> T: ...
    @abstractmethod
    def _ident(self, node: Ident) -> T: ...
    @abstractmethod
    def _select(self, node: Select) -> T: ...
    @abstractmethod
    def _call(self, node: Call) -> T: ...
    @abstractmethod
    def _list(self, node: ListLiteral) -> T: ...
    @abstractmethod
    def _map(self, node: MapLiteral) -> T: ...
    @abstractmethod
    def _object(self, node: ObjectLiteral) -> T: ...
    @abstractmethod
    def _comprehension(self, node: Comprehension) -> T: ...


ACCUMULATOR = "@result"

RESERVED_WORDS = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
"""Names that variables and functions must not have, reserved for later versions."""
