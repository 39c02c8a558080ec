"""Types of every shape, for the spec of a custom resource."""

import dataclasses
import datetime as dt
import enum
import uuid
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from listwatch.resources import (
    AnyObject,
    Atomic,
    Conditions,
    Container,
    Duration,
    EmbeddedObject,
    FreeForm,
    IntOrString,
    Keywords,
    ListMap,
    ListSet,
    PodTemplateSpec,
    Quantity,
    ResourceRequirements,
    Rule,
    SecretKeySelector,
    Time,
    rules,
)

T = TypeVar("T")


class Colour(enum.Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """A level."""

    LOW = 1
    HIGH = 2


class Port(msgspec.Struct, rename="camel"):
    """A port."""

    name: Annotated[str, Meta(max_length=15)]
    container_port: Annotated[int, Meta(ge=1, le=65535)]


@rules(Rule("self.low <= self.high", message="low must not exceed high", field_path=".low"))
class Range(msgspec.Struct):
    low: int = 1
    high: int = 9


@dataclasses.dataclass
class Plain:
    a: int
    b: str = "x"
    c: list[str] = dataclasses.field(default_factory=list)


class Typed(TypedDict):
    a: int
    b: str


class Box(msgspec.Struct, Generic[T]):
    content: T


class Level3(msgspec.Struct):
    value: int = 3


class Level2(msgspec.Struct):
    inner: Level3 = msgspec.field(default_factory=Level3)


class Level1(msgspec.Struct):
    inner: Level2 = msgspec.field(default_factory=Level2)


#: Types of a field, by special feature.
SHAPES: dict[str, Any] = {
    "text": str,
    "number": int,
    "fraction": float,
    "flag": bool,
    "optional": str | None,
    "enum": Colour,
    "enum of numbers": Level,
    "literal": Literal["a", "b"],
    "literal of numbers": Literal[1, 2],
    "literal or nothing": Literal["a", "b"] | None,
    "bounds": Annotated[int, Meta(ge=1, le=9)],
    "open bounds": Annotated[float, Meta(gt=0, lt=1)],
    "multiples": Annotated[int, Meta(multiple_of=5)],
    "length": Annotated[str, Meta(min_length=1, max_length=9)],
    "pattern": Annotated[str, Meta(pattern="^[a-z]+$", max_length=9)],
    "time": dt.datetime,
    "day": dt.date,
    "time as text": Time,
    "duration": Duration,
    "uuid": uuid.UUID,
    "bytes": bytes,
    "int or text": int | str,
    "int or text by name": IntOrString | None,
    "quantity": Quantity,
    "optional quantity": Quantity | None,
    "list": list[int],
    "list of lists": list[list[str]],
    "bounded list": Annotated[list[str], Meta(min_length=1, max_length=3)],
    "set": Annotated[list[str], ListSet()],
    "python set": set[str],
    "tuple of one type": tuple[int, ...],
    "atomic list": Annotated[list[str], Atomic()],
    "keyed list": Annotated[list[Port], ListMap("name")],
    "list of two keys": Annotated[list[Port], ListMap("name", "containerPort")],
    "map": dict[str, str],
    "map of lists": dict[str, list[int]],
    "map of objects": dict[str, Port],
    "atomic map": Annotated[dict[str, str], Atomic()],
    "object": Port,
    "optional object": Port | None,
    "objects in objects": Level1,
    "rules": Range,
    "rule of a field": Annotated[
        str, Rule("self.startsWith('a')"), Meta(max_length=9, pattern="^a")
    ],
    "transition": Annotated[str, Rule("self == oldSelf", message="is immutable")],
    "dataclass": Plain,
    "typed dict": Typed,
    "generic": Box[int],
    "anything": Any,
    "any object": AnyObject,
    "free form": Annotated[Port, FreeForm()],
    "embedded": Annotated[dict[str, Any], EmbeddedObject()],
    "pod template": PodTemplateSpec,
    "container": Container,
    "requirements": ResourceRequirements | None,
    "secret key": SecretKeySelector,
    "conditions": Conditions,
    "keyword": Annotated[str, Keywords({"format": "ipv4"})],
}


def spec_of(hint: Any) -> type:
    """Return a type with a field `value` of this type."""
    return msgspec.defstruct("Spec", [("value", hint)], module=__name__)
